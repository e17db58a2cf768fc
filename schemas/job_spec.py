"""The job spec: everything that decides a training run, as a person writes it in YAML or JSON."""

import hashlib
import json
import operator
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from .contract import Contract, Digest, Document, Label, TenantLabel
from .environment import Environment, JobEnvironment, MixtureEnvironment
from .names import JobKey
from .objective import ObjectiveSpec
from .problems import problem_lines, shortened
from .trackers import Tracker

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Precision = Literal["float32", "bfloat16"]
StopString = Annotated[str, Field(min_length=1, max_length=64)]


class LoraSpec(Contract):
    """The low-rank adapter that is trained (Hu et al., arXiv 2106.09685)."""

    rank: Annotated[int, Field(ge=1, le=512)] = 16
    """Inner size of the product B·A."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """The product is multiplied with alpha / rank."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Last parts of the names of the linear layers that get an adapter."""

    @property
    def scale(self) -> float:
        """What the product B·A is multiplied with."""
        return self.alpha / self.rank


class StartSpec(Contract):
    """What version 0 is: an adapter that is there already, with fresh optimizer moments. Either `adapter`, or
    `job` and `version`. Its rank, alpha and layers have to be those of `lora`."""

    adapter: Annotated[str, Field(min_length=1)] | None = None
    """A folder with a LoRA adapter that PEFT wrote, as the GPU workers see it."""
    job: str | None = None
    """A job of the same tenant, as tenant/job, on the same base model."""
    version: Annotated[int, Field(ge=0)] | None = None
    """A committed version of that job."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if given not in ({"adapter"}, {"job", "version"}):
            raise ValueError(
                f"has {', '.join(sorted(given)) or 'nothing'}: give either adapter, or job and version"
            )
        return self


class RewardLimits(Contract):
    """What one call of the scorer may use, and what its failures lead to."""

    cpu_seconds: Annotated[float, Field(ge=0.01, le=86_400)] = 10.0
    """Counted by the child process that runs the reward, so a busy machine changes no outcome."""
    wall_seconds: Annotated[float, Field(ge=0.01, le=86_400)] = 60.0
    """A call that lasts longer is ended and tried again."""
    memory_mb: Annotated[int, Field(ge=128, le=10_000_000)] = 2048
    """What a call may take in addition to what its process has, in MB."""
    attempts: Annotated[int, Field(ge=1, le=100)] = 3
    """Tries before a wall limit or a lost process counts as the sample's failure."""
    max_failed_share: Fraction = 0.5
    """When more than this share of a step's samples failed, the job pauses before it trains on them, and
    scores the failed ones again: by itself after a while, or when it is told to resume."""


class SamplingSpec(Contract):
    """How trajectories are drawn. The whole of the model's distribution at `temperature` is sampled."""

    groups_per_step: Annotated[int, Field(ge=1, le=4096)]
    """Prompts of one step; each is sampled as one group."""
    samples_per_group: Annotated[int, Field(ge=1, le=1024)]
    """Completions of each prompt, which are compared with one another."""
    temperature: Annotated[float, Field(gt=0, le=10)] = 1.0
    """Logits are divided by it, in sampling and in training."""
    max_prompt_tokens: Positive = 512
    """A longer prompt is refused at the start of the job."""
    max_tokens: Positive = 512
    """Longest completion; a longer one is cut and has finish reason `length`."""
    stop: Annotated[tuple[StopString, ...], Field(max_length=16, exclude_if=operator.not_)] = ()
    """A completion ends when its text, without special tokens, holds one of these. Their tokens stay part of
    it and are trained; the text that the reward reads ends before them. Evaluation stops at the same."""
    slots: Annotated[int, Field(ge=16, le=1024, multiple_of=16)] = 32
    """Sequences that decode in one batch. A fixed shape is what makes a sample's bytes its own."""

    @property
    def context(self) -> int:
        """Cache length per slot: prompt and completion, rounded up to whole blocks of 32 tokens."""
        return -(-(self.max_prompt_tokens + self.max_tokens) // 32) * 32


class OptimizerSpec(Contract):
    """AdamW (Loshchilov & Hutter, arXiv 1711.05101) with the gradient clipped by its global norm."""

    learning_rate: Annotated[float, Field(ge=0)] = 1e-4
    """After the warm-up."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the mean of the gradients."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the root of that mean."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Share of each weight, times the learning rate, that an update takes off."""
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    """A gradient with a larger global norm is scaled down to it."""
    micro_batch_tokens: Annotated[int, Field(ge=1)] = 4096
    """Most tokens in one forward pass, padding included; it bounds memory and changes no gradient."""
    gradient_checkpointing: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Keep only each layer's input for the backward pass and compute the layer again. Less memory, about a
    third more time, the same gradients."""
    mini_batches: Annotated[int, Field(ge=1, le=4096)] = 1
    """Updates in one pass over the step's groups."""
    epochs: Annotated[int, Field(ge=1, le=64)] = 1
    """Passes over the step's groups. A step makes one policy version, however many updates it has."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up, until the job's last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate grows linearly to `learning_rate`."""
    final_share: Fraction = 0.0
    """Where `linear` and `cosine` end, as a share of `learning_rate`."""

    @property
    def updates(self) -> int:
        """Of one step, when no mini-batch is without signal."""
        return self.mini_batches * self.epochs


class EvaluationSpec(Contract):
    """Held-out prompts are kept out of training and scored before the first and after the last step."""

    prompts: Annotated[int, Field(ge=0, le=100_000)] = 0
    """How many prompts are held out; 0 turns evaluation off."""
    samples: Annotated[int, Field(ge=1, le=1024)] = 8
    """Samples per prompt at the training temperature (avg@k); greedy decoding is always added."""
    every: Annotated[int, Field(ge=0)] = 0
    """Also evaluate each time this many steps have been committed; 0 is never."""
    best: Annotated[
        Literal["accuracy", "greedy_accuracy", "reward_mean"],
        Field(exclude_if=lambda value: value == "accuracy"),
    ] = "accuracy"
    """By which figure `marlaas export --version best` chooses among the versions that were evaluated."""


class DurabilitySpec(Contract):
    """How soon a lost worker is noticed, and how long the job waits for a capable one."""

    heartbeat_seconds: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """A worker that says nothing for so long has lost its work to another."""
    give_up_hours: Annotated[float, Field(ge=0.001, le=24 * 365)] = 24 * 7.0
    """Longest that one activity may take, with all its retries and all its waiting for workers."""
    stalled_after_minutes: Annotated[
        float, Field(ge=0.01, le=24 * 60, exclude_if=lambda minutes: minutes == 30.0)
    ] = 30.0
    """When nothing in a step has moved for so long, or up to twice that, the job is shown as stalled."""
    fingerprint: Literal["require", "accept"] = "require"
    """`require`: only workers with the processor kind and versions that began the job go on with it.
    `accept`: any worker may; the manifests show which did."""


class JobSpec(Document):
    """One training job.

    Raises:
        pydantic.ValidationError: with the path of every wrong field, its value and what is allowed.
    """

    tenant: TenantLabel
    """Whose job it is. Each tenant has a bucket of its own."""
    job: Label
    """The job's name among the tenant's; used once, for good."""
    model: Annotated[str, Field(min_length=1)]
    """A name of `marlaas.engines.base_model`, a local folder in Hugging Face format, or a hub id."""
    precision: Annotated[Precision, Field(exclude_if=lambda value: value == "float32")] = "float32"
    """Of the base model. Adapter, moments, log-probabilities and losses are float32 or wider with either."""
    steps: Annotated[int, Field(ge=1, le=10_000_000)]
    """How many policy versions are trained after version 0."""
    max_staleness: Annotated[int, Field(ge=0, le=64)] = 0
    """K: training at version t uses trajectories of version t-K. 0 is synchronous RL."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of the adapter's first values, of the prompts' order, and of every sample."""
    lora: LoraSpec = LoraSpec()
    """The adapter that is trained."""
    start: Annotated[StartSpec | None, Field(exclude_if=lambda value: value is None)] = None
    """What version 0 is; by default an adapter that changes nothing, so that it is the base model."""
    environment: JobEnvironment
    """Where prompts and rewards come from."""
    rewards: RewardLimits = RewardLimits()
    """Limits of the reward."""
    sampling: SamplingSpec
    """How trajectories are drawn."""
    objective: ObjectiveSpec = ObjectiveSpec()
    """What is maximised."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """How the adapter is updated."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """Held-out scores."""
    durability: DurabilitySpec = DurabilitySpec()
    """When others take over."""
    trackers: tuple[Tracker, ...] = ()
    """Where metrics go besides `marlaas metrics` and the JSONL in the bucket; at most one of each kind."""

    @model_validator(mode="after")
    def _trackers_of_different_kinds(self) -> Self:
        kinds = [tracker.kind for tracker in self.trackers]
        if len(set(kinds)) != len(kinds):
            raise ValueError(f"trackers has a kind twice: {', '.join(kinds)}")
        return self

    @model_validator(mode="after")
    def _starts_within_the_tenant(self) -> Self:
        if self.start is not None and self.start.job is not None:
            try:
                key = JobKey.parse(self.start.job)
            except ValidationError:
                raise ValueError(f"start.job is {self.start.job!r}: write tenant/job") from None
            if key.tenant != self.tenant:
                raise ValueError(
                    f"start.job is {self.start.job!r}: a job of tenant {self.tenant} can start from that "
                    "tenant's jobs only; `marlaas export` and start.adapter take an adapter further"
                )
        return self

    @model_validator(mode="after")
    def _targets_named_once(self) -> Self:
        targets = self.lora.targets
        if len(set(targets)) != len(targets):
            raise ValueError(f"lora.targets names a layer twice: {', '.join(targets)}")
        return self

    @model_validator(mode="after")
    def _groups_can_be_compared_and_split(self) -> Self:
        samples, groups = self.sampling.samples_per_group, self.sampling.groups_per_step
        if samples == 1 and self.objective.compares_samples:
            raise ValueError(
                f"sampling.samples_per_group is 1: {self.objective.name} compares the samples of a prompt "
                "and needs at least 2; reinforce_pp compares all samples of a step"
            )
        if self.optimizer.mini_batches > groups:
            raise ValueError(
                f"optimizer.mini_batches is {self.optimizer.mini_batches}, and a mini-batch holds whole "
                f"groups: at most sampling.groups_per_step, {groups}"
            )
        if self.optimizer.warmup_steps > self.steps:
            raise ValueError(
                f"optimizer.warmup_steps is {self.optimizer.warmup_steps}: at most steps, {self.steps}"
            )
        overlong = self.objective.overlong
        if overlong is not None and overlong.buffer_tokens > self.sampling.max_tokens:
            raise ValueError(
                f"objective.overlong.buffer_tokens is {overlong.buffer_tokens}: at most "
                f"sampling.max_tokens, {self.sampling.max_tokens}"
            )
        return self

    @property
    def key(self) -> JobKey:
        return JobKey(tenant=self.tenant, job=self.job)

    @property
    def environments(self) -> Mapping[str, Environment]:
        """By the name that rows of the dataset give: those of the mixture, or the only one as ''."""
        if isinstance(self.environment, MixtureEnvironment):
            return {one.name: one.environment for one in self.environment.of}
        return {"": self.environment}

    @property
    def digest(self) -> Digest:
        """sha256 of the spec with its defaults filled in, but not of `trackers`, which change no training.

        A field that is younger than the first jobs is no part of the document while it has its default, so
        those jobs keep their digest, and older workers read specs that do without it.
        """
        return hashlib.sha256(self.model_dump_json(exclude={"trackers"}).encode()).hexdigest()


class InvalidJobSpec(ValueError):
    """A spec that can't be run; the message has a line for every wrong field."""


def parse_job_spec(data: Any) -> JobSpec:
    """Checks a spec as it came from YAML, JSON or Python.

    Raises:
        InvalidJobSpec: when anything in it is not allowed.
    """
    if not isinstance(data, dict):
        raise InvalidJobSpec(f"a job spec is a mapping of fields, not {shortened(data)}")
    try:
        return JobSpec.model_validate_json(json.dumps(data))
    except (TypeError, ValueError, RecursionError) as error:
        if not isinstance(error, ValidationError):
            raise InvalidJobSpec(f"the job spec is not made of plain JSON values: {error}") from error
        problems = [f"  {line}" for line in problem_lines(error.errors(), JobSpec)]
        raise InvalidJobSpec("\n".join(["the job spec is not valid:", *problems])) from None
