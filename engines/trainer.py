"""One optimizer step of one job's adapter: from files to files, on a base model that many jobs share."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from ..schemas.batch import Batch
from ..schemas.engine_calls import ADAPTER_FILE, OPTIMIZER_FILE
from ..schemas.job_spec import JobSpec, LoraSpec
from ..schemas.manifest import StepMetrics
from .adamw import load_optimizer, save_optimizer, write_initial_state
from .base_model import BaseModel, UnusableModel
from .checkpointing import checkpoint_layers
from .gradients import check_head
from .learning_signal import (
    PolicyTokens,
    Signal,
    StartLogprobs,
    find_signal,
    needs_proximal,
    start_decides_signal,
    why_not,
)
from .lora import check_adapter, initial_adapter, target_layers
from .policy_gradient import compute_policy_logprobs
from .step_metrics import step_metrics
from .update_steps import Update, make_updates


@dataclass(frozen=True)
class _Slot:
    """A model with adapter layers of one shape. What they hold is written anew by every step.

    Attributes:
        checkpointing: whether the model's layers are checkpointed.
        model: with its own modules on the base model's weights.
        layers: the base model's linear layers that have an adapter here.
        parameters: the adapter's, by their names in an adapter file, sorted.
    """

    lora: LoraSpec
    checkpointing: bool
    model: PreTrainedModel
    layers: dict[str, nn.Linear]
    parameters: dict[str, nn.Parameter]


class Trainer:
    """Trains adapters on one base model, one step at a time.

    The trainer keeps no state of any job from one call to the next: weights and moments are read from
    files and written to files, so equal inputs give equal bytes whatever was trained in between. What
    stays is a model with adapter layers, which the next adapter of the same shape is read into. The base
    model is left as it is.

    Raises:
        UnusableModel: when the model's logits are not its output layer's alone.
    """

    def __init__(self, base: BaseModel) -> None:
        check_head(base.model)
        self._model = base.model
        self._slot: _Slot | None = None

    def initialise(
        self, lora: LoraSpec, seed: int, folder: Path, start: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Writes version 0 of an adapter, and of its optimizer state with moments of 0, into a folder.

        Args:
            start: the adapter's tensors, float32; by default new ones.

        Raises:
            UnusableModel: when a target names no linear layer of the model, or `start` does not fit: another
                rank, other layers, a tensor missing.
        """
        layers = self._fit(lora, checkpointing=False).layers
        tensors = dict(start) if start is not None else initial_adapter(layers, lora, seed)
        check_adapter(tensors, layers, lora)
        save_file(tensors, folder / ADAPTER_FILE)
        write_initial_state(tensors, folder / OPTIMIZER_FILE)

    def train(
        self,
        spec: JobSpec,
        batch: Batch,
        version: int,
        adapter: Path,
        optimizer: Path,
        folder: Path,
        start_adapter: Path | None = None,
    ) -> StepMetrics:
        """Trains version `version` on a batch and writes version `version + 1`.

        The step is skipped, and both files copied byte for byte, when there is no signal (no advantage
        other than 0, every token masked) or something is not finite: a sampler's log-probability, a loss, a
        gradient.

        Args:
            adapter: safetensors file of version `version`.
            optimizer: the state that was written with it.
            folder: of this attempt alone, other than the inputs'; `adapter.safetensors` and
                `optimizer.safetensors` are written there. They are complete when the call returns.
            start_adapter: of version 0, for a KL penalty whose reference is `start`.

        Raises:
            UnusableModel: when a file does not fit the model and the spec exactly.
            ValueError: when a valid sample's reward is not finite, or a sequence has no prompt.
        """
        started = time.perf_counter()
        tokens = PolicyTokens.of(batch, mask_truncated=spec.objective.mask_truncated)
        start = StartLogprobs()
        if start_decides_signal(spec):
            start = self._start(spec, batch, tokens, adapter, start_adapter)
        signal = find_signal(spec, batch, tokens, start)
        outcome = why_not(batch, signal)
        if outcome is None:
            if not start_decides_signal(spec):
                start = self._start(spec, batch, tokens, adapter, start_adapter)
            outcome = self._update(spec, batch, version, signal, start, optimizer, folder)
        if isinstance(outcome, str):
            shutil.copyfile(adapter, folder / ADAPTER_FILE)
            shutil.copyfile(optimizer, folder / OPTIMIZER_FILE)
        seconds = time.perf_counter() - started
        return step_metrics(spec, batch, version, signal, start, outcome, seconds)

    def _update(
        self,
        spec: JobSpec,
        batch: Batch,
        version: int,
        signal: Signal,
        start: StartLogprobs,
        optimizer: Path,
        folder: Path,
    ) -> list[Update] | str:
        """Trains the adapter in the slot and writes it; or says why not, and nothing is written."""
        slot = self._fit(spec.lora, spec.optimizer.gradient_checkpointing)
        adamw = load_optimizer(slot.parameters, spec.optimizer, optimizer)
        outcome = make_updates(slot.model, slot.parameters, adamw, spec, batch, version, signal, start)
        if not isinstance(outcome, str):
            written = {name: p.detach().to("cpu", torch.float32) for name, p in slot.parameters.items()}
            save_file(written, folder / ADAPTER_FILE)
            save_optimizer(adamw, slot.parameters, folder / OPTIMIZER_FILE)
        return outcome

    def _start(
        self, spec: JobSpec, batch: Batch, tokens: PolicyTokens, adapter: Path, start_adapter: Path | None
    ) -> StartLogprobs:
        """Log-probabilities before the first update; leaves the adapter in the slot."""
        slot, kl = self._fit(spec.lora, spec.optimizer.gradient_checkpointing), spec.objective.kl
        reference = proximal = None
        if kl is not None and kl.reference == "base":
            reference = compute_policy_logprobs(self._model, spec, batch, tokens)
        elif kl is not None:
            if start_adapter is None:
                raise UnusableModel("objective.kl.reference is start, and version 0's adapter is not given")
            _load_adapter(slot, start_adapter)
            reference = compute_policy_logprobs(slot.model, spec, batch, tokens)
        _load_adapter(slot, adapter)
        if needs_proximal(spec):
            proximal = compute_policy_logprobs(slot.model, spec, batch, tokens)
        return StartLogprobs(proximal, reference)

    def _fit(self, lora: LoraSpec, checkpointing: bool) -> _Slot:
        """A model with adapter layers of this shape, without gradients."""
        slot = self._slot
        if slot is None or (slot.lora, slot.checkpointing) != (lora, checkpointing):
            self._slot = slot = None  # freed before the next is made
            self._slot = slot = _make_slot(self._model, lora, checkpointing)
        for parameter in slot.parameters.values():
            parameter.grad = None
        return slot


def _make_slot(base: PreTrainedModel, lora: LoraSpec, checkpointing: bool) -> _Slot:
    layers = target_layers(base, lora)
    shared = {id(tensor): tensor for tensor in (*base.parameters(), *base.buffers())}
    model = copy.deepcopy(base, cast(dict[int, Any], shared))
    config = LoraConfig(r=lora.rank, lora_alpha=cast(int, lora.alpha), target_modules=list(layers))
    peft = get_peft_model(cast(Any, model), config).eval()
    parameters = {
        name.replace(".default.", "."): parameter
        for name, parameter in sorted(peft.named_parameters())
        if parameter.requires_grad
    }
    if checkpointing:
        checkpoint_layers(model)
    return _Slot(lora, checkpointing, model, layers, parameters)


def _load_adapter(slot: _Slot, path: Path) -> None:
    tensors = load_file(path, backend="pread")  # mmap loses 62 bytes a tensor for good (safetensors 0.8.0)
    check_adapter(tensors, slot.layers, slot.lora)
    with torch.no_grad():
        for name, parameter in slot.parameters.items():
            parameter.copy_(tensors[name])
