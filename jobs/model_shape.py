"""The shape of a base model, read from its folder without loading it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError, safe_open


class UnknownShape(Exception):
    """A model's shape cannot be told here; the message says why."""


@dataclass(frozen=True)
class ModelShape:
    """What estimates need of a causal language model.

    Attributes:
        linear: [out, in] of each layer with a two-dimensional weight, by the layer's name.
        parameters: of the whole model, tied weights once.
        intermediate: width of the feed-forward layers.
        vocabulary: number of tokens.
    """

    linear: Mapping[str, tuple[int, int]]
    parameters: int
    hidden: int
    intermediate: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    def targets(self, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
        """The layers whose names end in one of these parts.

        Raises:
            UnknownShape: when a name fits no layer.
        """
        found = {layer: shape for layer, shape in self.linear.items() if layer.rpartition(".")[2] in names}
        missing = set(names) - {layer.rpartition(".")[2] for layer in found}
        if missing:
            raise UnknownShape(f"the model has no layer named {', '.join(sorted(missing))} (lora.targets)")
        return found


def find_model(name: str, models: Path) -> Path:
    """The folder of a base model, where it is on this machine.

    Args:
        models: where the workers of this machine keep models.

    Raises:
        UnknownShape: when it is not here.
    """
    hub = models / "hub" / f"models--{name.replace('/', '--')}"
    newest = hub / "refs" / "main"
    folders = [Path(name), models / name]
    if newest.is_file():
        folders.append(hub / "snapshots" / newest.read_text().strip())
    for folder in folders:
        if (folder / "config.json").is_file():
            return folder
    raise UnknownShape(
        f"model {name} is not on this machine: it is no folder with a config.json, and {models} does not "
        "have it; a worker puts it there when a first job starts"
    )


def read_shape(folder: Path) -> ModelShape:
    """Reads `config.json` and the headers of the safetensors files.

    Raises:
        UnknownShape: when a file is missing, cannot be read, or is of another kind of model.
    """
    try:
        config = json.loads((folder / "config.json").read_text())
        shapes = _weights(folder)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            linear={
                name.removesuffix(".weight"): (shape[0], shape[1])
                for name, shape in shapes.items()
                if name.endswith(".weight") and len(shape) == 2
            },
            parameters=sum(map(prod, shapes.values())),
            hidden=hidden,
            intermediate=int(config["intermediate_size"]),
            blocks=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            vocabulary=int(config["vocab_size"]),
        )
    except KeyError as error:
        raise UnknownShape(f"{folder / 'config.json'} has no {error}: estimates know Llama's kind") from error
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise UnknownShape(f"model folder {folder}: {error}") from error


def _weights(folder: Path) -> dict[str, list[int]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UnknownShape(f"model folder {folder} has no *.safetensors")
    shapes: dict[str, list[int]] = {}
    for file in files:
        # Typed for torch only.
        with cast(Any, safe_open)(file, framework="numpy") as opened:
            shapes |= {str(name): opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    return shapes
