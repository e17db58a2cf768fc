"""Models that the tests of the engines share."""

from pathlib import Path

import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import SMOLLM2, BaseModel
from marlaas.engines.trainer import Trainer
from marlaas.tests.engines.trainer_bench import Bench
from marlaas.tests.tiny_model import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """SmolLM2-135M-Instruct; dequantised once per checkout."""
    return base_model.resolve(SMOLLM2, ROOT / ".marlaas" / "models")


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> BaseModel:
    return base_model.load(smollm2_folder)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    """A random model in float32. Tests leave it unchanged."""
    return base_model.load(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def tiny_double(tiny: BaseModel) -> BaseModel:
    """The tiny model in float64."""
    return base_model.load(tiny.folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def trainer(tiny: BaseModel) -> Trainer:
    return Trainer(tiny)


@pytest.fixture
def bench(trainer: Trainer, tmp_path: Path) -> Bench:
    return Bench(trainer, tmp_path)
