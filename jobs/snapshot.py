"""A job as it is at one moment."""

from datetime import datetime
from typing import Literal

from pydantic import computed_field

from ..schemas.contract import Contract
from ..schemas.events import EvaluationProgress, EvaluationResult, JobProgress, JobResult, StepProgress
from ..schemas.names import JobKey

Status = Literal["running", "completed", "failed", "cancelled", "terminated", "timed out"]
"""What Temporal says of the job's workflow. A stopped job is `completed`."""


class PendingActivity(Contract):
    """An activity that was dispatched and has not ended.

    Attributes:
        workflow: id of the workflow that waits for it.
        running: whether a worker has it now.
        attempt: from 1; of the attempt that runs, or runs next.
        failure: of the attempt before; None in the first.
        groups_done: by a rollout or reward that runs, as of its last heartbeat.
        tokens: sampled by a rollout that runs, likewise.
        tokens_per_second: mean from the start of the attempt to that heartbeat.
    """

    workflow: str
    name: str
    queue: str
    running: bool
    attempt: int
    failure: str | None
    groups_done: int | None
    tokens: int | None
    tokens_per_second: float | None


class OpenStep(Contract):
    """A step that has started and not ended.

    Attributes:
        progress: None when its workflow does not answer.
        groups_sampled: on the stream, those of rollouts that still run included.
    """

    step: int
    progress: StepProgress | None
    groups_sampled: int


class OpenEvaluation(Contract):
    """An evaluation that has started and not ended; fields as for `OpenStep`."""

    version: int
    progress: EvaluationProgress | None
    groups_sampled: int


class Problem(Contract):
    """Something that keeps the job from going on, or from being seen.

    Attributes:
        kind: `stuck`: a workflow task fails again and again; `retrying`: so does an activity;
            `no worker`: nobody polls a task queue; `no answer`: a server or workflow says nothing;
            `paused`, `stalled`: what the job itself says of a step; `refused`: of a signal;
            `not reported`: a tracker lacks metrics, which keeps the job from nothing.
        where: a workflow's id, an activity's place, a queue, a server or a tracker.
        message: the reason, and what to do where that is known.
    """

    kind: Literal[
        "stuck", "retrying", "no worker", "no answer", "paused", "stalled", "refused", "not reported"
    ]
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.message}"


class JobSnapshot(Contract):
    """A job as it is at one moment.

    Attributes:
        steps: that the job is to train; None when its spec is not valid.
        ended: None while it runs.
        progress: what the job's workflow last said; None when it has said nothing, or has ended.
        result: of a job that completed or was stopped.
        committed: newest version of a job that failed or was cancelled, which it left as a memo.
        failure: why a job ended otherwise.
        rewards: mean reward of each of the newest steps, oldest first; None for a step without any.
            Only `Job.watch` fills it in.
    """

    job: JobKey
    status: Status
    steps: int | None
    started: datetime
    ended: datetime | None
    progress: JobProgress | None
    open_steps: tuple[OpenStep, ...]
    open_evaluations: tuple[OpenEvaluation, ...]
    pending: tuple[PendingActivity, ...]
    problems: tuple[Problem, ...]
    result: JobResult | None
    committed: int | None
    failure: str | None
    rewards: tuple[float | None, ...] = ()

    @property
    def is_over(self) -> bool:
        return self.status != "running"

    @computed_field
    @property
    def state(self) -> str:
        """One word for how the job is: `stuck`, what its workflow says, or how it ended."""
        if self.result is not None:
            return self.result.outcome
        if self.is_over:
            return self.status
        if any(problem.kind == "stuck" for problem in self.problems):
            return "stuck"
        return self.progress.state if self.progress else "running"

    @computed_field
    @property
    def version(self) -> int | None:
        """Newest committed version that is known."""
        if self.result is not None:
            return self.result.revision.version
        return self.progress.version if self.progress else self.committed

    @property
    def evaluations(self) -> tuple[EvaluationResult, ...]:
        """The first and the latest that have ended."""
        if self.result is not None:
            return self.result.evaluations
        return self.progress.evaluations if self.progress else ()

    @computed_field
    @property
    def versions_in_flight(self) -> tuple[int, ...]:
        """Policy versions that are being sampled from, or trained on samples of."""
        steps = {one.progress.generating_version for one in self.open_steps if one.progress}
        return tuple(sorted(steps | {one.version for one in self.open_evaluations}))

    @computed_field
    @property
    def tokens_per_second(self) -> float | None:
        """Of all rollouts that run now; None when none has sampled anything yet."""
        rates = [one.tokens_per_second for one in self.pending if one.tokens_per_second is not None]
        return sum(rates) if rates else None
