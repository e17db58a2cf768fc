"""An adapter merged into a copy of its base model."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from ..schemas.job_spec import LoraSpec
from .base_model import BaseModel
from .lora import check_adapter, target_layers, tensor_names


def write_merged(base: BaseModel, adapter: Path, lora: LoraSpec, out: Path) -> None:
    """Writes W + (alpha / rank) · B·A for each layer with an adapter, and all else as it is, in float32.

    Merging into weights of less precision would lose a part of the adapter for good. The given model's own
    weights are left as they are; weights that are tied stay tied.

    Args:
        base: in the precision that the adapter was trained on.
        out: existing folder; is given configuration, weights and tokenizer as transformers loads them.

    Raises:
        UnusableModel: when the adapter does not fit the model and the spec exactly.
    """
    tensors = load_file(adapter, backend="pread")
    layers = target_layers(base.model, lora)
    check_adapter(tensors, layers, lora)
    model = base.model.float()
    with torch.no_grad():
        for layer, linear in layers.items():
            a, b = (tensors[name] for name in tensor_names(layer))
            linear.weight = nn.Parameter(linear.weight + lora.scale * (b @ a), requires_grad=False)
    model.save_pretrained(out)
    base.tokenizer.save_pretrained(out)
