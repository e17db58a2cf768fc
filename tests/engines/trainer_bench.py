"""A trainer with folders for what it writes, for the tests of training."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import StepMetrics
from marlaas.tests.engines.training_batches import make_spec, random_batch
from safetensors.torch import load_file

SPEC = make_spec(lora={"rank": 4}, optimizer={"learning_rate": 0.01})


@dataclass(frozen=True)
class Revision:
    """A folder with a policy version."""

    folder: Path

    @property
    def adapter(self) -> Path:
        return self.folder / ADAPTER_FILE

    @property
    def optimizer(self) -> Path:
        return self.folder / OPTIMIZER_FILE

    @property
    def digests(self) -> tuple[str, str]:
        return digest(self.adapter), digest(self.optimizer)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.adapter)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Bench:
    """A trainer, and a fresh folder for everything that it writes."""

    trainer: Trainer
    root: Path
    folders: int = 0

    def fresh(self) -> Path:
        self.folders += 1
        folder = self.root / str(self.folders)
        folder.mkdir()
        return folder

    def start(self, spec: JobSpec = SPEC, seed: int = 0) -> Revision:
        revision = Revision(self.fresh())
        self.trainer.initialise(spec.lora, seed, revision.folder)
        return revision

    def step(
        self, revision: Revision, batch: Batch, spec: JobSpec = SPEC, version: int = 0
    ) -> tuple[Revision, StepMetrics]:
        written = Revision(self.fresh())
        metrics = self.trainer.train(
            spec, batch, version, revision.adapter, revision.optimizer, written.folder
        )
        return written, metrics


def batch_number(seed: int, groups: int = 3) -> Batch:
    batch = random_batch(seed, groups=groups, samples=4, prompt=(3, 9), completion=(1, 8), vocabulary=259)
    return replace(batch, logprobs=np.where(batch.mask == 1, np.float32(-5.5), np.float32(0)))  # near uniform
