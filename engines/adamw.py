"""AdamW for one adapter, and its state as a file that travels with the adapter's."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ..schemas.job_spec import OptimizerSpec
from .base_model import UnusableModel

_FORMAT = 1
_MOMENTS = ("exp_avg", "exp_avg_sq")


def write_initial_state(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes the state before the first step: moments of 0, float32, for each of the adapter's tensors."""
    moments = {
        f"{kind}.{name}": torch.zeros_like(tensor) for name, tensor in tensors.items() for kind in _MOMENTS
    }
    _write(moments, 0, path)


def load_optimizer(
    parameters: Mapping[str, nn.Parameter], spec: OptimizerSpec, path: Path
) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2) that goes on from a state file.

    Raises:
        UnusableModel: when the file's format is unknown, or it does not fit the parameters exactly.
    """
    state = load_file(path, backend="pread")  # mmap loses 62 bytes a tensor for good (safetensors 0.8.0)
    written = int(state.pop("format", torch.zeros(1)))
    if written != _FORMAT:
        raise UnusableModel(
            f"{path.name} has format {written}; this version of marlaas reads format {_FORMAT}"
        )
    step = state.pop("step").to(torch.float32)
    expected = {f"{kind}.{name}": p.shape for name, p in parameters.items() for kind in _MOMENTS}
    found = {name: tensor.shape for name, tensor in state.items()}
    if found != expected:
        wrong = sorted({name for name, _ in found.items() ^ expected.items()})
        raise UnusableModel(
            f"{path.name} does not fit the adapter: missing, unknown or of another shape: {wrong}"
        )
    optimizer = torch.optim.AdamW(
        list(parameters.values()),
        lr=spec.learning_rate,
        betas=(spec.beta1, spec.beta2),
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    restored: dict[str, Any] = optimizer.state_dict()
    restored["state"] = {
        index: {"step": step.clone(), **{kind: state[f"{kind}.{name}"] for kind in _MOMENTS}}
        for index, name in enumerate(parameters)
    }
    optimizer.load_state_dict(restored)
    return optimizer


def save_optimizer(optimizer: torch.optim.AdamW, parameters: Mapping[str, nn.Parameter], path: Path) -> None:
    """Writes the state of an optimizer of `load_optimizer`; equal states give equal bytes."""
    moments = {
        f"{kind}.{name}": optimizer.state[parameter][kind].to("cpu", torch.float32)
        for name, parameter in parameters.items()
        for kind in _MOMENTS
    }
    steps = {int(optimizer.state[parameter]["step"]) for parameter in parameters.values()}
    _write(moments, steps.pop(), path)


def _write(moments: dict[str, torch.Tensor], step: int, path: Path) -> None:
    numbers = {"format": torch.tensor([_FORMAT]), "step": torch.tensor(step)}
    save_file({**numbers, **moments}, path)
