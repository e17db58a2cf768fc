"""What bounds the memory of a training step, and that it changes no gradient."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel
from marlaas.engines.trainer import Trainer
from marlaas.tests.engines.trainer_bench import SPEC, Bench, batch_number
from marlaas.tests.engines.training_batches import make_spec
from marlaas.tests.tiny_model import write_tiny_model

BLOCK = 2**23 * 4
"""Bytes of one block of float32 logits."""


def test_memory_is_flat_in_the_vocabulary(tmp_path: Path) -> None:
    """8,000 tokens, vocabularies of 8,192 and 131,072: logits of all would be 262 MB and 4.2 GB.

    Log-probabilities of a KL penalty's reference, losses, entropies and the gradient, for each vocabulary in
    a process of its own. What may differ is how well a few blocks of logits fill the room that they get.
    """
    small, large = (peak(tmp_path / str(size), size) for size in (8_192, 131_072))
    assert large - small < 4 * BLOCK
    assert large < 24 * BLOCK


def peak(folder: Path, vocabulary: int) -> int:
    folder.mkdir()
    command = [sys.executable, "-m", "marlaas.tests.engines.vocabulary_memory", str(vocabulary), str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


CHECKPOINTED: dict[str, Any] = {"learning_rate": 0.01, "gradient_checkpointing": True}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_checkpointing_changes_no_bit(tiny: BaseModel, tmp_path: Path, dtype: torch.dtype) -> None:
    bench = Bench(Trainer(base_model.load(tiny.folder, dtype=dtype)), tmp_path)
    start, batch = bench.start(), batch_number(0)
    plain, _ = bench.step(start, batch)
    checkpointed, metrics = bench.step(start, batch, make_spec(lora={"rank": 4}, optimizer=CHECKPOINTED))
    again, _ = bench.step(start, batch)
    assert metrics.grad_norm > 0
    assert checkpointed.digests == plain.digests == again.digests


def test_checkpointing_keeps_less_for_the_backward_pass(tmp_path: Path) -> None:
    """Counted where autograd saves tensors, in a model of 8 layers."""
    model = write_tiny_model(tmp_path, layers=8)
    bench = Bench(Trainer(base_model.load(model)), tmp_path)
    start, batch = bench.start(), batch_number(0)

    def saved(spec: Any) -> int:
        """Bytes that a backward pass finds outside of the layers that it computes again."""
        sizes: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            bench.step(start, batch, spec)
        return sum(sizes)

    assert saved(make_spec(lora={"rank": 4}, optimizer=CHECKPOINTED)) < saved(SPEC) / 3
