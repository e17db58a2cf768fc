"""LoRA tensors on disk and in memory: PEFT's names, float32, one pair (A, B) per target layer.

y = W x + (alpha / rank) · B (A x), A [rank, in], B [out, rank] (Hu et al., arXiv 2106.09685, eq. 3).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import math
from collections.abc import Mapping

import torch
from torch import nn

from ..schemas.job_spec import LoraSpec
from .base_model import UnusableModel

_PREFIX = "base_model.model."


def target_layers(model: nn.Module, lora: LoraSpec) -> dict[str, nn.Linear]:
    """The linear layers that get an adapter, by module name in the base model, in sorted order.

    Raises:
        UnusableModel: when a target names no linear layer.
    """
    found: dict[str, nn.Linear] = {}
    missing: list[str] = []
    for target in lora.targets:
        layers = {
            name: module
            for name, module in model.named_modules()
            if name.rsplit(".", 1)[-1] == target and isinstance(module, nn.Linear)
        }
        if not layers:
            missing.append(target)
        found.update(layers)
    if missing:
        linear = {n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear)}
        raise UnusableModel(
            f"lora.targets: the model has no linear layer named {', '.join(missing)}; "
            f"it has {', '.join(sorted(linear))}"
        )
    if "lm_head" in lora.targets:
        raise UnusableModel("lora.targets: lm_head is not supported; name layers of the transformer blocks")
    return dict(sorted(found.items()))


def tensor_names(layer: str) -> tuple[str, str]:
    """Names of A and B of a layer in an adapter file, as PEFT writes them."""
    return f"{_PREFIX}{layer}.lora_A.weight", f"{_PREFIX}{layer}.lora_B.weight"


def initial_adapter(layers: Mapping[str, nn.Linear], lora: LoraSpec, seed: int) -> dict[str, torch.Tensor]:
    """Version 0: A uniform as in `nn.Linear` (Kaiming, a = √5), B zero, so the policy is the base model.

    Returns:
        float32 tensors on the CPU; equal for equal seeds.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for layer, linear in layers.items():
        name_a, name_b = tensor_names(layer)
        a = torch.empty(lora.rank, linear.in_features)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
        tensors[name_a] = a
        tensors[name_b] = torch.zeros(linear.out_features, lora.rank)
    return tensors


def check_adapter(
    tensors: Mapping[str, torch.Tensor], layers: Mapping[str, nn.Linear], lora: LoraSpec
) -> None:
    """Refuses an adapter that does not fit the model and the spec exactly.

    Raises:
        UnusableModel: naming the tensors that are missing, unknown or of another shape.
    """
    expected: dict[str, tuple[int, int]] = {}
    for layer, linear in layers.items():
        name_a, name_b = tensor_names(layer)
        expected[name_a] = (lora.rank, linear.in_features)
        expected[name_b] = (linear.out_features, lora.rank)
    wrong = [f"missing {name}" for name in expected.keys() - tensors.keys()]
    wrong += [f"unknown {name}" for name in tensors.keys() - expected.keys()]
    wrong += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {shape}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if wrong:
        raise UnusableModel(f"the adapter does not fit: {'; '.join(sorted(wrong))}")
