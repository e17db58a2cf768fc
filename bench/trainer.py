"""Seconds of one training step on SmolLM2, packed, against plain PEFT with one sample after the other.

Run with OMP_NUM_THREADS=1 or 2; other processes on the machine disturb it.
"""
# pyright: reportUnknownMemberType=false

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from marlaas.engines import base_model
from marlaas.engines.packing import pack
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.tests.engines.training_batches import make_spec, random_batch
from peft import LoraConfig, get_peft_model

ROOT = Path(__file__).resolve().parents[1]
REPEATS = 3


def main() -> None:
    folder = base_model.resolve(base_model.SMOLLM2, ROOT / ".marlaas" / "models")
    spec = make_spec(optimizer={"micro_batch_tokens": 512})
    batch = random_batch(0, groups=8, samples=8, prompt=(38, 52), completion=(8, 24), vocabulary=49_152)
    packed = packed_seconds(folder, spec, batch)
    unpacked = unpacked_seconds(folder, spec, batch)
    tokens = sum(micro.token_ids.size for micro in pack(batch, range(64), 512))
    print(  # noqa: T201
        f"RESULT packed_s={packed:.2f} unpacked_s={unpacked:.2f} speedup={unpacked / packed:.2f} "
        f"packed_tokens={tokens} unpacked_tokens={len(batch.token_ids)} threads={torch.get_num_threads()}"
    )


def packed_seconds(folder: Path, spec: JobSpec, batch: Batch) -> float:
    """A whole step of the trainer, files included; the median of some."""
    trainer = Trainer(base_model.load(folder))
    with tempfile.TemporaryDirectory() as scratch:
        start, end = Path(scratch) / "start", Path(scratch) / "end"
        start.mkdir()
        end.mkdir()
        trainer.initialise(spec.lora, 0, start)
        files = start / ADAPTER_FILE, start / OPTIMIZER_FILE
        return statistics.median(
            trainer.train(spec, batch, 0, *files, end).train_seconds for _ in range(REPEATS)
        )


def unpacked_seconds(folder: Path, spec: JobSpec, batch: Batch) -> float:
    """Forward, loss and backward of each sample by itself, without optimizer and files."""
    model = base_model.load(folder).model
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=cast(int, spec.lora.alpha), target_modules=list(spec.lora.targets)
    )
    peft = get_peft_model(cast(Any, model), config).eval()
    started = time.perf_counter()
    for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.token_ids[start:stop].astype(np.int64))[None]
        mask = torch.from_numpy(batch.mask[start + 1 : stop].astype(np.float32))
        logprobs = torch.log_softmax(peft(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        (-(logprobs * mask).sum() / mask.sum()).backward()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
