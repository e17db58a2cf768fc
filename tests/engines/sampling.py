"""Adapters, requests and a slow reference for the tests of the sampler."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from marlaas.engines.base_model import BaseModel
from marlaas.engines.batched_lora import AdapterWeights
from marlaas.engines.lora import initial_adapter, target_layers
from marlaas.engines.sampler import FinishedSample, GroupRequest, Sampler
from marlaas.schemas.job_spec import LoraSpec
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

Samples = dict[tuple[str, int], FinishedSample]


def write_adapter(folder: Path, base: BaseModel, lora: LoraSpec, seed: int, size: float = 0.1) -> Path:
    """A random adapter whose file is named by its digest; B is normal with deviation `size`."""
    tensors = initial_adapter(target_layers(base.model, lora), lora, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if ".lora_B." in name:
            tensor.normal_(0, size, generator=generator)
    return save_adapter(folder, tensors)


def save_adapter(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "new"
    save_file(tensors, path)
    return path.rename(folder / hashlib.sha256(path.read_bytes()).hexdigest())


def load(sampler: Sampler, path: Path, lora: LoraSpec) -> AdapterWeights:
    return sampler.load_adapter(path.name, path, lora)


def group(
    request: str,
    prompt_ids: Sequence[int],
    adapter: AdapterWeights,
    *,
    seeds: Sequence[int] = (0,),
    temperature: float = 1.0,
    max_tokens: int = 8,
    stop: tuple[str, ...] = (),
) -> GroupRequest:
    return GroupRequest(request, prompt_ids, seeds, temperature, max_tokens, adapter, stop)


def finish(sampler: Sampler) -> Samples:
    """Steps until nothing is left."""
    found: Samples = {}
    while not sampler.idle:
        for sample in sampler.step():
            assert (sample.request, sample.sample) not in found
            found[sample.request, sample.sample] = sample
    return found


def sample(sampler: Sampler, groups: Sequence[GroupRequest]) -> Samples:
    for one in groups:
        sampler.add(one)
    return finish(sampler)


class PlainPolicy:
    """transformers and PEFT as they come: one sequence at a time, whole, without a cache."""

    def __init__(self, base: BaseModel, adapter: Path, lora: LoraSpec) -> None:
        model = AutoModelForCausalLM.from_pretrained(base.folder, dtype=base.model.dtype)
        config = LoraConfig(r=lora.rank, lora_alpha=cast(int, lora.alpha), target_modules=list(lora.targets))
        self._model = cast(Any, get_peft_model(model, config)).to(base.model.dtype).eval()
        result = set_peft_model_state_dict(self._model, load_file(adapter))
        assert not result.unexpected_keys

    def logits(self, prompt_ids: Sequence[int], completion: Sequence[int]) -> torch.Tensor:
        """[tokens of the completion, vocabulary], each row that which its token was drawn from."""
        with torch.no_grad():
            output = self._model(input_ids=torch.tensor([[*prompt_ids, *completion]]))
        return output.logits[0, len(prompt_ids) - 1 : -1]

    def differences(self, request: GroupRequest, found: FinishedSample) -> torch.Tensor:
        """Absolute differences in log-probability, token by token."""
        logits = self.logits(request.prompt_ids, found.token_ids) / (request.temperature or 1.0)
        ids = torch.tensor(found.token_ids)[:, None]
        expected = torch.log_softmax(logits, -1).gather(1, ids)[:, 0]
        return (expected.double() - torch.tensor(found.logprobs, dtype=torch.float64)).abs()
