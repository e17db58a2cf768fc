"""Prints by how many bytes a training step's peak exceeds the memory before it.

python -m marlaas.tests.engines.vocabulary_memory VOCABULARY SCRATCH
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import re
import sys
from pathlib import Path

import torch
from marlaas.engines import base_model
from marlaas.engines.trainer import Trainer
from marlaas.tests.engines.trainer_bench import Bench
from marlaas.tests.engines.training_batches import make_spec, random_batch
from marlaas.tests.tiny_model import write_tiny_model
from transformers import LlamaConfig, LlamaForCausalLM

SPEC = make_spec(
    sampling={"groups_per_step": 8, "samples_per_group": 4, "max_tokens": 256},
    lora={"rank": 4},
    objective={"kl": {"coefficient": 0.1}},
    optimizer={"micro_batch_tokens": 100_000},
)
TOKENS = 8_000


def write_model(folder: Path, vocabulary: int) -> Path:
    write_tiny_model(folder)
    config = LlamaConfig.from_pretrained(folder, vocab_size=vocabulary, num_hidden_layers=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def memory(kind: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    vocabulary, scratch = int(sys.argv[1]), Path(sys.argv[2])
    (scratch / "model").mkdir()
    trainer = Trainer(base_model.load(write_model(scratch / "model", vocabulary)))
    bench = Bench(trainer, scratch)
    start = bench.start(SPEC)
    batch = random_batch(0, groups=8, samples=4, prompt=(8, 8), completion=(250, 250), vocabulary=vocabulary)
    assert int(batch.mask.sum()) == TOKENS
    torch.ones(1).sum()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    _, metrics = bench.step(start, batch, SPEC)
    assert not metrics.skipped
    sys.stdout.write(f"{memory('VmHWM') - before}\n")


if __name__ == "__main__":
    main()
