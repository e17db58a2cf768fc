"""What workflows and activities are given and return: the control events that Temporal records.

References and counts only. Tokens, tensors and rewards stay on the stream and in the object store.
"""

import operator
from typing import Annotated, Literal

from pydantic import Field

from .contract import BlobRef, Contract, Digest
from .dataset import DatasetRef
from .job_spec import JobSpec
from .manifest import AdapterRevision, Fingerprint, PhaseSeconds, StepMetrics
from .names import JobKey
from .settings import Setting
from .tracker_calls import TrackerState


class ClaimInput(Contract):
    """Asks for the job's name, for the first run of its workflow."""

    spec: JobSpec
    first_run_id: str


class InitialiseInput(Contract):
    spec: JobSpec
    dataset: DatasetRef


class Candidate(Contract):
    """A computed policy version that no manifest has committed yet.

    Attributes:
        version: that a commit makes of it.
        parent: digest of the manifest that it was computed from; None for version 0.
        batch: that it was trained on; None for version 0.
    """

    version: Annotated[int, Field(ge=0)]
    parent: Digest | None
    adapter: BlobRef
    optimizer: BlobRef
    batch: BlobRef | None
    metrics: StepMetrics | None
    fingerprint: Fingerprint


class ReopenInput(Contract):
    """Lets a job go on that has ended.

    Attributes:
        spec: that it was started with.
        first_run_id: of the TrainJob that goes on.
    """

    spec: JobSpec
    first_run_id: str


class Started(Contract):
    """What the steps of a job share once it has started.

    Attributes:
        epoch: how often the job was resumed after its end.
        fingerprint: of the worker that made version 0.
        adapter: of version 0, the reference of a KL penalty against the start; None in jobs that began
            before there were such penalties.
    """

    dataset: DatasetRef
    fingerprint: Fingerprint
    adapter: BlobRef | None = None
    epoch: Annotated[int, Field(ge=0)] = 0


class GroupAssignment(Contract):
    """One group to sample."""

    group: str
    prompt_index: Annotated[int, Field(ge=0)]


class RolloutInput(Contract):
    """Samples groups from one policy version.

    Attributes:
        revision: pinned: every token of every group comes from it.
        samples: per group.
        temperature: 0 is greedy decoding.
    """

    spec: JobSpec
    started: Started
    revision: AdapterRevision
    groups: tuple[GroupAssignment, ...]
    samples: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0)]

    @property
    def key(self) -> JobKey:
        return self.spec.key.in_epoch(self.started.epoch)


class Span(Contract):
    """A stretch of a worker's time, in seconds since 1970 by its clock."""

    began: float
    ended: float


class RolloutResult(Contract):
    """What a rollout published, or found published by an earlier attempt.

    Attributes:
        completion_tokens: sampled by this attempt.
        sampling: from the request to the last sample, of this attempt.
    """

    groups: int
    completion_tokens: int
    sampling: Span


class RewardInput(Contract):
    """Scores groups that are on the stream.

    Attributes:
        round: 0 at first. A later round gives the samples whose scoring failed another chance.
    """

    spec: JobSpec
    dataset: DatasetRef
    groups: tuple[GroupAssignment, ...]
    samples: Annotated[int, Field(ge=1)]
    round: Annotated[int, Field(ge=0)] = 0
    epoch: Annotated[int, Field(ge=0)] = 0

    @property
    def key(self) -> JobKey:
        return self.spec.key.in_epoch(self.epoch)


class RewardResult(Contract):
    """Counts over the groups.

    Attributes:
        varied_groups: whose rewards differ.
        failure: one of the failures, as an example; None when there are none.
        scoring: from the first score to the last, of this attempt.
    """

    groups: int
    varied_groups: int = 0
    failed_groups: int
    failed_samples: int
    failure: str | None
    scoring: Span


class SelectInput(Contract):
    """Assembles the batch of a step from the stream.

    Attributes:
        round: of scoring, whose scores are taken; a group that it left out has those of an earlier one.
    """

    spec: JobSpec
    step: Annotated[int, Field(ge=0)]
    groups: tuple[str, ...]
    round: Annotated[int, Field(ge=0)] = 0
    epoch: Annotated[int, Field(ge=0)] = 0

    @property
    def key(self) -> JobKey:
        return self.spec.key.in_epoch(self.epoch)


class SelectedBatch(Contract):
    """The batch of a step, recorded in history before training starts.

    Attributes:
        reward_parts: see `StepMetrics`.
    """

    blob: BlobRef
    groups: int
    samples: int
    failed_samples: int
    failure: str | None
    reward_parts: dict[str, float] = Field(default_factory=dict[str, float], exclude_if=operator.not_)


class TrainInput(Contract):
    """One optimizer step from a committed revision."""

    spec: JobSpec
    started: Started
    revision: AdapterRevision
    batch: BlobRef


class SnapshotInput(Contract):
    """Commits a candidate, then drops the groups that it consumed from the stream.

    Attributes:
        first_run_id: of the TrainJob, for which version 0 claims the job's name; None for other versions.
        dataset: likewise, of version 0 only.
        spec: that the job was started with.
        settings: made since, that held for the step.
        rounds: in which the groups were scored.
        phases: of the step that made it; None for version 0.
    """

    spec: JobSpec
    candidate: Candidate
    groups: tuple[str, ...]
    phases: PhaseSeconds | None = None
    first_run_id: str | None = None
    dataset: DatasetRef | None = None
    epoch: Annotated[int, Field(ge=0)] = 0
    settings: tuple[Setting, ...] = ()
    rounds: Annotated[int, Field(ge=1)] = 1


class CloseInput(Contract):
    """Ends what a job holds, if its name belongs to this run."""

    key: JobKey
    first_run_id: str
    epoch: Annotated[int, Field(ge=0)] = 0


class ClosedJob(Contract):
    """What a job leaves.

    Attributes:
        version: newest committed; None for a run that does not have its job's name.
    """

    version: int | None


class SummariseInput(Contract):
    """Writes the evaluation document of a revision from its scored groups on the stream."""

    spec: JobSpec
    dataset: DatasetRef
    revision: AdapterRevision
    epoch: Annotated[int, Field(ge=0)] = 0

    @property
    def key(self) -> JobKey:
        return self.spec.key.in_epoch(self.epoch)


class ReportInput(Contract):
    """Brings JSONL and trackers up to what is committed.

    Attributes:
        since: rows of versions before this one are in the JSONL.
        newest: committed version.
        evaluated: evaluations of versions up to this one have ended.
        final: the job has ended.
    """

    spec: JobSpec
    since: int
    newest: int
    evaluated: int
    final: bool


class ReportResult(Contract):
    trackers: tuple[TrackerState, ...]


class EvaluationResult(Contract):
    """Held-out scores of one policy version; see `EvaluationDocument`."""

    version: int
    accuracy: float
    greedy_accuracy: float
    failed_samples: int
    reward_mean: float | None = None


class StepSeconds(PhaseSeconds):
    """Where a whole step's time went.

    Attributes:
        total: from the start of the step's workflow to its end.
        snapshot: from dispatch to the end.
    """

    total: float
    snapshot: float


class StepInput(Contract):
    """One TrainStep.

    Attributes:
        generating: the revision that samples the set.
        lead: steps that had to be committed before this one's turn, when it was opened.
        training: the revision that the step trains, when it is committed already; else the step
            waits for the signal `turn`.
        settings: made since the job started.
        protocol: what the job understands. From 1 on a step samples refill groups, waits when too many
            samples failed, and tells of its trouble.
    """

    spec: JobSpec
    started: Started
    step: Annotated[int, Field(ge=0)]
    lead: Annotated[int, Field(ge=0)]
    generating: AdapterRevision
    training: AdapterRevision | None
    settings: tuple[Setting, ...] = ()
    protocol: int = 0


class Trouble(Contract):
    """Why a workflow does not go on.

    Attributes:
        kind: `paused`: it waits for the signal `resume`. `stalled`: nothing has moved for
            `durability.stalled_after_minutes`; it goes on by itself when that changes.
    """

    kind: Literal["paused", "stalled"]
    reason: str


class StepResult(Contract):
    """What a step committed."""

    step: int
    revision: AdapterRevision
    metrics: StepMetrics
    seconds: StepSeconds


class StepProgress(Contract):
    """Answer of the query `progress` of a TrainStep."""

    step: int
    generating_version: int
    phase: Literal["rollout", "reward", "turn", "select", "paused", "train", "snapshot", "done"]
    groups: int
    groups_sampled: int
    groups_scored: int


class EvaluateInput(Contract):
    spec: JobSpec
    started: Started
    revision: AdapterRevision


class EvaluationProgress(Contract):
    """Answer of the query `progress` of an Evaluate. Every held-out prompt is two groups: sampled, greedy."""

    version: int
    groups: int
    groups_sampled: int
    groups_scored: int


class JobState(Contract):
    """What a TrainJob carries over continue-as-new.

    Attributes:
        recent: the last K+1 committed revisions, oldest first; what open steps are generated from.
        next_step: that has not been opened.
        settings: made so far, in order.
        reported: rows of the versions up to this one have been reported.
    """

    started: Started
    recent: tuple[AdapterRevision, ...]
    next_step: int
    paused: bool
    stopping: bool
    evaluations: tuple[EvaluationResult, ...]
    last: StepResult | None
    settings: tuple[Setting, ...] = ()
    reported: int = -1


class JobResult(Contract):
    """Result of a TrainJob.

    Attributes:
        outcome: `completed` after all steps, `stopped` after the signal `stop`.
        evaluations: of the first and the last version, when evaluation is on; what was evaluated
            between them is in the object store.
        steps: that the job was to train at its end; None in results of before there was such a field.
        untrained: why steps whose prompts were dispatched have not been trained, if there are such.
    """

    outcome: Literal["completed", "stopped"]
    revision: AdapterRevision
    evaluations: tuple[EvaluationResult, ...]
    steps: int | None = None
    untrained: str | None = None


class JobProgress(Contract):
    """Answer of the query `progress` of a TrainJob.

    Attributes:
        version: newest committed; None before version 0.
        open_steps: that have started and not ended, lowest first.
        evaluations: the first and the latest.
        last: the step that was committed last.
        reason: why the job is `paused` or `stalled`, unless it was asked to be.
        settings: made since the job started, in order.
        refused: what was wrong with the last signal `set`, if it was refused.
        trackers: how they did at the last report.
    """

    state: Literal["starting", "evaluating", "training", "paused", "stalled", "stopping", "done"]
    steps: int
    version: int | None
    open_steps: tuple[int, ...]
    evaluations: tuple[EvaluationResult, ...]
    last: StepResult | None
    reason: str | None = None
    settings: tuple[Setting, ...] = ()
    refused: str | None = None
    trackers: tuple[TrackerState, ...] = ()
