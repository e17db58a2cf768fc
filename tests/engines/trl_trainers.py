"""TRL's own trainers on given completions, for comparison."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from marlaas.engines.base_model import BaseModel
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.tests.engines.peft_policy import Policy
from peft import LoraConfig
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_config import RLOOConfig
from trl.trainer.rloo_trainer import RLOOTrainer


class GivenCompletions:
    """A batch as TRL wants it. Padded sequences, scores and losses are TRL's own work.

    Args:
        batch: groups of equal size, every completion with a token; what was not cut ends in a stop token.
    """

    def __init__(self, batch: Batch) -> None:
        self.prompt_ids: list[list[int]] = []
        self.completion_ids: list[list[int]] = []
        self.logprobs: list[list[float]] = []
        self.masks: list[list[int]] = []
        for begin, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
            first = begin + int(batch.mask[begin:end].argmax())
            self.prompt_ids.append(batch.token_ids[begin:first].tolist())
            self.completion_ids.append(batch.token_ids[first:end].tolist())
            self.logprobs.append(batch.logprobs[first:end].tolist())
            self.masks.append(batch.mask[first:end].tolist())
        valid = zip(batch.rewards.tolist(), batch.valid.tolist(), strict=True)
        self.rewards = [reward if scored else None for reward, scored in valid]

    @property
    def rows(self) -> list[dict[str, str]]:
        """The prompts as text, which nothing reads."""
        return [{"prompt": "?"} for _ in self.prompt_ids]

    def roll_out(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`."""
        return {
            "prompt_ids": self.prompt_ids,
            "completion_ids": self.completion_ids,
            "logprobs": self.logprobs,
            "env_mask": self.masks,
        }

    def reward(self, **kwargs: Any) -> list[float | None]:
        """TRL's reward function."""
        return self.rewards


class _GivenRloo(RLOOTrainer):
    """RLOOTrainer has no `rollout_func`."""

    given: GivenCompletions

    def _generate(self, prompts: list[str]) -> Any:
        return self.given.prompt_ids, self.given.completion_ids, ["" for _ in prompts]


class TrlPolicy:
    """A policy in the hands of a TRL trainer.

    In float64 the log-probabilities come from the model's logits: TRL's own output layer is float32.
    """

    def __init__(
        self,
        base: BaseModel,
        model: PreTrainedModel,
        policy: Policy,
        spec: JobSpec,
        batch: Batch,
        options: dict[str, Any],
        scratch: Path,
    ) -> None:
        """
        Args:
            base: the tokenizer's.
            model: without an adapter, for the trainer alone.
            options: of GRPOConfig; or of RLOOConfig, when the spec's objective is `rloo`.
        """
        self._policy, self._spec = policy, spec
        self._given = GivenCompletions(batch)
        self._double = model.dtype == torch.float64
        self._trainer = self._build(base, model, options, scratch)
        self._model = self._trainer.model.eval()
        if self._double:
            self._trainer._get_per_token_logps_and_entropies = self._logprobs

    def score(self) -> dict[str, Any]:
        """Advantages, masks and log-probabilities before the first update."""
        self._copy_weights()
        with self._default_dtype():
            inputs = self._trainer._generate_and_score_completions(self._given.rows)
        if self._spec.objective.old == "sampler":
            sampled = torch.zeros(inputs["completion_ids"].shape, dtype=self._model.dtype)
            for row, logprobs in zip(sampled, self._given.logprobs, strict=True):
                row[: len(logprobs)] = torch.tensor(logprobs)
            inputs["old_per_token_logps"] = sampled
            inputs["old_logps"] = (sampled * inputs["completion_mask"]).sum(1)
        return inputs

    def loss(self, inputs: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
        """Loss and gradient, by the adapter's weights of now."""
        self._copy_weights()
        loss = self._trainer._compute_loss(self._model, inputs)
        loss.backward()
        return loss.item(), {name: cast(torch.Tensor, p.grad) for name, p in self._parameters()}

    def _build(self, base: BaseModel, model: PreTrainedModel, options: dict[str, Any], scratch: Path) -> Any:
        lora, sampling = self._spec.lora, self._spec.sampling
        rloo = self._spec.objective.name == "rloo"
        config = cast(Any, RLOOConfig if rloo else GRPOConfig)(
            output_dir=str(scratch),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            per_device_train_batch_size=len(self._given.rewards),
            per_device_eval_batch_size=len(self._given.rewards),
            num_generations=sampling.samples_per_group,
            max_completion_length=sampling.max_tokens,
            temperature=sampling.temperature,
            **options,
        )
        trainer = cast(Any, _GivenRloo if rloo else GRPOTrainer)(
            model=model,
            reward_funcs=self._given.reward,
            args=config,
            train_dataset=Dataset.from_list(self._given.rows),
            processing_class=base.tokenizer,
            peft_config=LoraConfig(
                r=lora.rank, lora_alpha=cast(int, lora.alpha), target_modules=list(lora.targets)
            ),
            **({} if rloo else {"rollout_func": self._given.roll_out}),
        )
        trainer.given = self._given
        if self._spec.objective.correction is not None:  # as with vLLM, whose weights nobody has to load
            trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
        return trainer

    def _parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)

    def _copy_weights(self) -> None:
        found = dict(self._parameters())
        assert found.keys() == self._policy.parameters.keys()
        with torch.no_grad():
            for name, parameter in found.items():
                parameter.copy_(self._policy.parameters[name])
                parameter.grad = None

    @contextmanager
    def _default_dtype(self) -> Generator[None]:
        """In which TRL turns lists into tensors."""
        torch.set_default_dtype(self._model.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)

    def _logprobs(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> Any:
        """In place of `_get_per_token_logps_and_entropies`: log-probabilities, entropies, auxiliary loss."""
        positions = (attention_mask.cumsum(1) - 1).clamp(min=0)  # angles are float32: only equal ones cancel
        output = model(input_ids=input_ids, attention_mask=attention_mask, position_ids=positions)
        logits = output.logits[:, :-1]
        distribution = torch.log_softmax(logits / self._spec.sampling.temperature, -1)
        found = distribution.gather(2, input_ids[:, 1:, None])[:, -logits_to_keep:, 0]
        return found, torch.zeros_like(found), None
