"""LoRA for a batch whose rows follow different adapters, in any mixture of ranks and target layers."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import linear

from ..schemas.job_spec import LoraSpec
from .base_model import BaseModel, UnusableModel
from .lora import check_adapter, target_layers, tensor_names


@dataclass(frozen=True)
class Product:
    """The low-rank product of one layer.

    Attributes:
        a: [rank, in].
        b: [rank, out], transposed and scaled.
    """

    a: torch.Tensor
    b: torch.Tensor

    def add(self, x: torch.Tensor, out: torch.Tensor, others: torch.Tensor | None = None) -> None:
        """Adds the product of x [rows, in] to out [rows, out], except in rows where `others` is True."""
        hidden = linear(x.to(self.a.dtype), self.a)
        if others is not None:
            hidden.masked_fill_(others, 0.0)
        if out.dtype == self.b.dtype:
            out.addmm_(hidden, self.b)
        else:  # added before rounding, as PEFT does
            out.copy_(torch.addmm(out.to(self.b.dtype), hidden, self.b))


@dataclass(frozen=True, eq=False)
class AdapterWeights:
    """One adapter revision on the base model's device, float32 or wider; equal to itself only.

    Attributes:
        digest: of the file that it was read from.
        products: by layer.
    """

    digest: str
    products: Mapping[str, Product]


def read_adapter(base: BaseModel, digest: str, path: Path, lora: LoraSpec) -> AdapterWeights:
    """Reads a safetensors file with PEFT's names.

    Raises:
        UnusableModel: when the file can't be read, does not fit the model and the spec, or holds
            values that are not finite; the message names the tensors.
    """
    try:
        tensors = load_file(
            path, backend="pread"
        )  # mmap loses 62 bytes a tensor for good (safetensors 0.8.0)
    except (OSError, SafetensorError) as error:
        raise UnusableModel(f"adapter {digest}: {path} can't be read: {error}") from error
    layers = target_layers(base.model, lora)
    check_adapter(tensors, layers, lora)
    products: dict[str, Product] = {}
    broken: list[str] = []
    dtype = torch.promote_types(base.model.dtype, torch.float32)
    for layer in layers:
        names = tensor_names(layer)
        a, b = (tensors[name].to(base.model.device, dtype) for name in names)
        scaled = (b * lora.scale).t().contiguous()
        broken += [
            name for name, tensor in zip(names, (a, scaled), strict=True) if not tensor.isfinite().all()
        ]
        products[layer] = Product(a, scaled)
    if broken:
        raise UnusableModel(f"adapter {digest} holds values that are not finite: {', '.join(broken)}")
    return AdapterWeights(digest, products)


@dataclass(frozen=True)
class Run:
    """Rows of a batch, `start` … `stop` - 1, that follow one adapter.

    Attributes:
        others: bool [stop - start, 1], the rows among them that don't; None when all do.
    """

    adapter: AdapterWeights
    start: int
    stop: int
    others: torch.Tensor | None = None


@dataclass
class Runs:
    """What the layers of one model apply in the next forward pass."""

    current: Sequence[Run] = field(default=())


class LoraLinear(nn.Module):
    """A frozen linear layer that adds every row's own adapter to its output.

    Every adapter is a product of its own, so neither its rank nor its targets touch other rows.
    """

    def __init__(self, name: str, layer: nn.Linear, runs: Runs) -> None:
        super().__init__()
        self.name = name
        self.weight = layer.weight
        self.bias = layer.bias
        self.runs = runs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [..., in] to [..., out]; the leading dimensions together are the rows."""
        out = linear(x, self.weight, self.bias)
        rows, sums = x.reshape(-1, x.shape[-1]), out.view(-1, out.shape[-1])
        for run in self.runs.current:
            product = run.adapter.products.get(self.name)
            if product is not None:
                product.add(rows[run.start : run.stop], sums[run.start : run.stop], run.others)
        return out


def install(model: nn.Module, head: nn.Module | None) -> Runs:
    """Replaces every linear layer of a model but its head, in place.

    Returns:
        What decides which rows follow which adapter.
    """
    runs = Runs()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, LoraLinear(name, module, runs))
    return runs
