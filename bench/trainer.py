"""Seconds of one training step on SmolLM2, packed, against plain PEFT with one sample after the other.

Run with OMP_NUM_THREADS=1 or 2. Other processes on the machine disturb the wall times; the seconds of
processor time (…_cpu_s, summed over threads) are disturbed less.
"""
# pyright: reportUnknownMemberType=false

import tempfile
import time
from collections.abc import Callable
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
    with tempfile.TemporaryDirectory() as scratch:
        packed, packed_cpu = best(packed_step(folder, spec, batch, Path(scratch)))
    unpacked, unpacked_cpu = best(unpacked_step(folder, spec, batch))
    tokens = sum(micro.token_ids.size for micro in pack(batch, range(64), 512))
    print(  # noqa: T201
        f"RESULT packed_s={packed:.2f} unpacked_s={unpacked:.2f} packed_cpu_s={packed_cpu:.2f} "
        f"unpacked_cpu_s={unpacked_cpu:.2f} packed_tokens={tokens} unpacked_tokens={len(batch.token_ids)} "
        f"threads={torch.get_num_threads()}"
    )


def best(step: Callable[[], None]) -> tuple[float, float]:
    """The least wall and processor seconds of some runs."""
    walls: list[float] = []
    processors: list[float] = []
    for _ in range(REPEATS):
        wall, processor = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return min(walls), min(processors)


def packed_step(folder: Path, spec: JobSpec, batch: Batch, scratch: Path) -> Callable[[], None]:
    """A whole step of the trainer, files included."""
    trainer = Trainer(base_model.load(folder))
    start, end = scratch / "start", scratch / "end"
    start.mkdir()
    end.mkdir()
    trainer.initialise(spec.lora, 0, start)

    def step() -> None:
        metrics = trainer.train(spec, batch, 0, start / ADAPTER_FILE, start / OPTIMIZER_FILE, end)
        assert not metrics.skipped, metrics.skip_reason

    return step


def unpacked_step(folder: Path, spec: JobSpec, batch: Batch) -> Callable[[], None]:
    """Forward, loss and backward of each sample by itself, without optimizer and files."""
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=cast(int, spec.lora.alpha), target_modules=list(spec.lora.targets)
    )
    peft = get_peft_model(cast(Any, base_model.load(folder).model), config).eval()

    def step() -> None:
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            ids = torch.from_numpy(batch.token_ids[start:stop].astype(np.int64))[None]
            mask = torch.from_numpy(batch.mask[start + 1 : stop].astype(np.float32))
            logits = peft(input_ids=ids).logits[0, :-1]
            logprobs = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0]
            (-(logprobs * mask).sum() / mask.sum()).backward()

    return step


if __name__ == "__main__":
    main()
