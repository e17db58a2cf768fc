"""A policy under plain PEFT: what the system computes of it, and the same by plain forward passes."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from marlaas.engines import base_model
from marlaas.engines.learning_signal import PolicyTokens, Signal, StartLogprobs, find_signal, needs_proximal
from marlaas.engines.policy_gradient import (
    TrainedTokens,
    accumulate_policy_gradient,
    compute_policy_logprobs,
)
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.tests.engines.training_batches import make_spec
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm


@dataclass(frozen=True)
class Policy:
    """A model with a random adapter whose B is not zero, so that every factor matters."""

    peft: PeftModel
    parameters: dict[str, nn.Parameter]

    @classmethod
    def on(cls, model: PreTrainedModel) -> "Policy":
        lora = make_spec().lora
        torch.manual_seed(3)
        config = LoraConfig(r=lora.rank, lora_alpha=cast(int, lora.alpha), target_modules=list(lora.targets))
        peft = cast(PeftModel, get_peft_model(cast(Any, model), config)).eval()
        parameters = {name: p for name, p in peft.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for name, parameter in parameters.items():
                if ".lora_B." in name:
                    parameter.normal_(0, 0.02)
        return cls(peft, parameters)

    def logprobs(self, batch: Batch, temperature: float) -> list[torch.Tensor]:
        """Of all tokens but each sequence's first, in a forward pass per sequence, with gradients."""
        found: list[torch.Tensor] = []
        for start, stop in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            ids = torch.from_numpy(batch.token_ids[start:stop].astype(np.int64))[None]
            logits = self.peft(input_ids=ids).logits[0, :-1] / temperature
            found.append(torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0])
        return found

    def gradients(self) -> dict[str, torch.Tensor]:
        """Takes the gradients that were accumulated."""
        taken: dict[str, torch.Tensor] = {}
        for name, parameter in self.parameters.items():
            assert parameter.grad is not None
            taken[name] = parameter.grad
            parameter.grad = None
        return taken

    def start(self, spec: JobSpec, batch: Batch) -> StartLogprobs:
        """What the system computes before a step's first update."""
        model = cast(PreTrainedModel, self.peft.get_base_model())
        tokens = PolicyTokens.of(batch, mask_truncated=spec.objective.mask_truncated)
        reference = proximal = None
        if spec.objective.kl is not None:
            with self.peft.disable_adapter():
                reference = compute_policy_logprobs(model, spec, batch, tokens)
        if needs_proximal(spec):
            proximal = compute_policy_logprobs(model, spec, batch, tokens)
        return StartLogprobs(proximal, reference)

    def train(
        self, spec: JobSpec, batch: Batch, start: StartLogprobs | None = None
    ) -> tuple[TrainedTokens, dict[str, torch.Tensor]]:
        """What the system computes in an update, by default in the step's first."""
        model = cast(PreTrainedModel, self.peft.get_base_model())
        start = start if start is not None else self.start(spec, batch)
        signal = self.signal(spec, batch, start)
        sequences = np.arange(len(batch.valid))
        found = accumulate_policy_gradient(model, spec, batch, signal, start, sequences)
        return found, self.gradients()

    def signal(self, spec: JobSpec, batch: Batch, start: StartLogprobs) -> Signal:
        tokens = PolicyTokens.of(batch, mask_truncated=spec.objective.mask_truncated)
        return find_signal(spec, batch, tokens, start)

    @contextmanager
    def moved(self, size: float = 0.02) -> Generator[None]:
        """With other weights, as after an update."""
        before = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters.values():
                parameter += size * torch.randn(parameter.shape, generator=generator).to(parameter)
        yield
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(before[name])


def near_the_policy(policy: Policy, batch: Batch, temperature: float, noise: float = 0.2) -> Batch:
    """The batch as a sampler with a similar policy reports it, so that some tokens are clipped."""
    draw = np.random.default_rng(8)
    own = np.zeros(len(batch.mask), np.float32)
    with torch.no_grad():
        for start, values in zip(batch.offsets[:-1], policy.logprobs(batch, temperature), strict=True):
            own[start + 1 : start + 1 + len(values)] = values.numpy()
    noisy = own + draw.normal(0, noise, len(own)).astype(np.float32)
    return replace(batch, logprobs=(noisy * batch.mask).astype(np.float32))


def precise_model(folder: Path) -> PreTrainedModel:
    """A Llama in float64 throughout. Its own norm rounds to float32 on the way, which turns differences of
    1e-16 between equal computations of other shapes into 1e-8."""
    model = base_model.load(folder, dtype=torch.float64).model
    for name, module in list(model.named_modules()):
        if isinstance(module, LlamaRMSNorm):
            norm = nn.RMSNorm(module.weight.shape[0], eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            model.set_submodule(name, norm)
    return model
