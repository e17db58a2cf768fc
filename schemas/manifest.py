"""What a job commits: one manifest per policy version, the first of which claims its name."""

import operator
from typing import Annotated

from pydantic import Field

from .contract import BlobRef, Contract, Digest, Document
from .dataset import DatasetRef
from .job_spec import JobSpec
from .names import JobKey
from .settings import Setting


class Fingerprint(Contract):
    """What must be equal for two workers to compute the same bytes.

    Attributes:
        device: the processor kind, for example `cpu x86_64 avx512` or `cuda NVIDIA H200`.
        torch: version of torch.
        transformers: version of transformers.
        dtype: of weights and arithmetic, for example `float32`.
        base: sha256 over the base model's configuration, tokenizer and weights.
    """

    device: str
    torch: str
    transformers: str
    dtype: str
    base: Digest


class AdapterRevision(Contract):
    """A committed policy version: what samplers and trainers are pointed at.

    Attributes:
        version: number of optimizer steps that it has seen.
        manifest: sha256 of the manifest's bytes.
        adapter: LoRA tensors, as safetensors with PEFT's names.
        optimizer: training state that goes with them (moments and step count), as safetensors.
    """

    version: Annotated[int, Field(ge=0)]
    manifest: Digest
    adapter: BlobRef
    optimizer: BlobRef


class StepMetrics(Contract):
    """What one step reports.

    Attributes:
        reward_mean: over the samples with a reward; None when there are none.
        reward_std: likewise, population standard deviation.
        reward_parts: means of the reward's named parts, before weighting, each over the samples that it
            applies to.
        loss: mean over the updates; near 0 in the first update on fresh samples by construction; watch the
            reward instead.
        grad_norm: before clipping, mean over the updates.
        updates: of the optimizer.
        learning_rate: of the last update; None when there was none.
        ratio_mean: mean importance ratio over the trained tokens and the updates. Trained are the tokens of
            sequences with an advantage other than 0 (all that count, with a KL penalty in the loss); the
            others have no gradient and are not computed.
        clipped_share: share of trained tokens whose gradient the clip changed.
        entropy: over the trained tokens, the mean entropy of the policy before the update, in nats; None
            when there was none.
        kl: over the trained tokens, the mean estimate of the divergence from the reference before the
            step; None without a penalty.
        logprob_gap_mean: over the trained tokens, the mean absolute difference, in nats, between the
            sampler's log-probability and the trainer's of the same token before the update. With
            staleness it includes the policy's change.
        logprob_gap_max: the largest such difference.
        zero_variance_share: of the groups that have a reward, the share whose rewards are all equal.
        groups: in the batch, failed ones included.
        failed_groups: that had weight 0.
        failed_samples: without a reward.
        samples: in the batch.
        prompt_tokens: summed over samples.
        completion_tokens: that the policy produced.
        completion_length_max: of the longest completion, in tokens.
        truncated_share: share of samples with finish reason `length`.
        staleness_max: training version less generating version, the largest in the batch.
        skipped: True when there was no signal (every advantage 0) or something was not finite, so that
            neither weights nor optimizer changed; `skip_reason` says which. Then the loss, the norm, the
            ratio, the gaps and `clipped_share` are 0.
        train_seconds: time of the training computation.
    """

    reward_mean: float | None
    reward_std: float | None
    reward_parts: dict[str, float] = Field(default_factory=dict[str, float], exclude_if=operator.not_)
    loss: float
    grad_norm: float
    updates: int = 1
    learning_rate: float | None = None
    ratio_mean: float
    clipped_share: float
    entropy: float | None = None
    kl: float | None = None
    logprob_gap_mean: float
    logprob_gap_max: float
    zero_variance_share: float
    groups: int
    failed_groups: int
    failed_samples: int
    samples: int
    prompt_tokens: int
    completion_tokens: int
    completion_length_max: int = 0
    truncated_share: float
    staleness_max: int
    skipped: bool
    skip_reason: str | None = None
    train_seconds: float


class JobDocument(Document):
    """The claim of a job's name, in the manifest of version 0.

    Attributes:
        first_run_id: of the TrainJob workflow's first run; continue-as-new and retries keep it.
        dataset: of the job; None in jobs that began before there was such a field.
    """

    spec: JobSpec
    spec_digest: Digest
    first_run_id: str
    dataset: DatasetRef | None = None


class EpochDocument(Document):
    """A job that has ended goes on: whoever puts the document of the next epoch is its only run.

    Attributes:
        epoch: from 1; a job is in epoch 0 until it is first resumed.
        first_run_id: of the TrainJob that goes on.
        version: newest committed when the epoch began.
    """

    epoch: Annotated[int, Field(ge=1)]
    first_run_id: str
    version: Annotated[int, Field(ge=0)]


class PhaseSeconds(Contract):
    """Where a step's time went up to its commit, by phase, in seconds of wall time.

    Attributes:
        rollout: from the dispatch of the rollouts to the end of the last one.
        reward: likewise for the rewards.
        turn: waiting for the version that the step trains on (0 when K is 0).
        select: reading the scored groups and writing the batch.
        train: from dispatch to the end.
        sampling: time in which a sampler worked for the step.
        scoring: time in which rewards were computed for the step and nothing was sampled for it.
        training: time of the training computation.
    """

    rollout: float
    reward: float
    turn: float
    select: float
    train: float
    sampling: float
    scoring: float
    training: float


class Manifest(Document):
    """Commits a policy version. A version exists if and only if its manifest does.

    Attributes:
        claim: of version 0: the run that committed it has the job's name, for good. None for all others,
            and in jobs that began when the claim was a document of its own, job.json.
        parent: digest of the previous version's manifest; None for version 0.
        batch: trained on to get here; None for version 0.
        spec_digest: of the spec that the job was started with.
        settings: made since, that held for the step.
        epoch: of the run that committed the version: how often the job was resumed after its end.
        metrics: of the step that led here; None for version 0.
        phases: of that step; None for version 0, and in jobs of before they were kept.
        time: of the commit, in seconds since 1970 by the clock of whoever committed; None in jobs of
            before it was kept.
        fingerprint: of the worker that computed the version.
    """

    key: JobKey
    version: Annotated[int, Field(ge=0)]
    parent: Digest | None
    spec_digest: Digest
    adapter: BlobRef
    optimizer: BlobRef
    batch: BlobRef | None
    metrics: StepMetrics | None
    phases: PhaseSeconds | None = None
    time: float | None = None
    fingerprint: Fingerprint
    settings: tuple[Setting, ...] = ()
    epoch: Annotated[int, Field(ge=0)] = 0
    claim: JobDocument | None = None


class HeldOutScores(Contract):
    """Of some held-out prompts; the figures are those of `EvaluationDocument`."""

    prompts: int
    accuracy: float
    greedy_accuracy: float
    reward_mean: float | None
    pass_at: dict[int, float]


class EvaluationDocument(Document):
    """Held-out scores of one policy version.

    Attributes:
        version: that was evaluated; every sample is from it.
        prompts: number of held-out prompts.
        samples: per prompt, at the training temperature.
        accuracy: avg@samples, the share of samples that are right, failed samples counting as wrong.
        greedy_accuracy: share of prompts whose greedy completion is right.
        reward_mean: mean reward of the samples; None when all of them failed.
        failed_samples: without a reward, greedy ones included.
        greedy_completions: token ids of every prompt's greedy completion, by prompt.
        time: when it was written, in seconds since 1970; None in those of before it was kept.
        pass_at: by k, for each power of two up to `samples`: the estimated chance that of k samples at least
            one is right, as a mean over the prompts; none in documents of before it was kept.
        by_environment: of a mixture, by the name of each environment that has held-out prompts.
    """

    key: JobKey
    version: Annotated[int, Field(ge=0)]
    prompts: int
    samples: int
    accuracy: float
    greedy_accuracy: float
    reward_mean: float | None
    failed_samples: int
    greedy_completions: tuple[tuple[int, ...], ...]
    time: float | None = None
    pass_at: dict[int, float] = Field(default_factory=dict[int, float])
    by_environment: dict[str, HeldOutScores] = Field(default_factory=dict[str, HeldOutScores])
