"""The adapter that a job starts from: another job's version, or a folder that PEFT wrote."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors import SafetensorError
from safetensors.torch import load_file

from ..schemas.engine_calls import InitialiseCall
from ..schemas.job_spec import LoraSpec
from .base_model import BaseModel, UnusableModel

_CHECKED = {"r", "lora_alpha", "target_modules"}
_WITHOUT_EFFECT = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision"),
    *("runtime_config", "task_type"),
}
"""Of a trained adapter. Which base model it is for is only a name."""
_PLAIN_BEGINNINGS = (True, False, None, "gaussian", "orthogonal")
"""Of `init_lora_weights`: the others change the base model."""


def starting_adapter(call: InitialiseCall, base: BaseModel) -> dict[str, torch.Tensor] | None:
    """Tensors of version 0, float32, as they stand in the files; None for a new adapter.

    Whether they fit the base model is for the trainer to check.

    Raises:
        UnusableModel: when they can't be read, when the other job's base model is another, or when the folder
            has an option that sampling could not honour.
    """
    if call.start_base is not None and call.start_base != base.digest:
        raise UnusableModel(
            f"start: the other job's base model has the digest {call.start_base}, and model "
            f"{call.spec.model} has {base.digest}"
        )
    if call.start_adapter_path is not None:
        return load_file(call.start_adapter_path, backend="pread")
    if call.spec.start is None or call.spec.start.adapter is None:
        return None
    return read_peft_folder(Path(call.spec.start.adapter), call.spec.lora)


def read_peft_folder(folder: Path, lora: LoraSpec) -> dict[str, torch.Tensor]:
    """The tensors of a folder that PEFT wrote, in float32.

    Raises:
        UnusableModel: naming what is missing, differs from `lora`, is not finite, or is an option that only
            PEFT could honour: another scale than alpha / rank, trained modules besides the adapter, dropout,
            ranks by layer and so on. An option is known by its value not being PEFT's default.
    """
    try:
        config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
        tensors = load_file(folder / "adapter_model.safetensors", backend="pread")
    except (OSError, ValueError, SafetensorError) as error:
        raise UnusableModel(f"start.adapter: {folder} is no folder with a PEFT adapter: {error}") from error
    wrong = [*_options(config), *_differences(config, lora)]
    wrong += [f"{name} is not finite" for name, tensor in tensors.items() if not tensor.isfinite().all()]
    if wrong:
        raise UnusableModel(f"start.adapter: {folder} cannot be gone on with: {'; '.join(wrong)}")
    return {name: tensor.to(torch.float32) for name, tensor in tensors.items()}


def _options(config: dict[str, Any]) -> list[str]:
    if config.get("peft_type") != "LORA":
        return [f"peft_type is {config.get('peft_type')}, not LORA"]
    plain: dict[str, Any] = {
        name: value.value if hasattr(value, "value") else value
        for name, value in LoraConfig().to_dict().items()
    }
    return [
        f"{name} is {json.dumps(value)}, which training and sampling here do not honour"
        for name, value in config.items()
        if name not in _CHECKED | _WITHOUT_EFFECT
        and not (name == "init_lora_weights" and value in _PLAIN_BEGINNINGS)
        and value != plain.get(name)
        and (value or plain.get(name))
    ]


def _differences(config: dict[str, Any], lora: LoraSpec) -> list[str]:
    pairs = (("r", lora.rank, "lora.rank"), ("lora_alpha", lora.alpha, "lora.alpha"))
    return [
        f"{name} is {config.get(name)}, and {field} is {ours}"
        for name, ours, field in pairs
        if config.get(name) != ours
    ]
