"""Takes snapshots of a job from what Temporal knows of it and what its workflows answer."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from ..schemas.contract import Contract
from ..schemas.events import EvaluationProgress, JobProgress, JobResult, StepProgress
from ..schemas.job_spec import JobSpec, parse_job_spec
from ..schemas.names import (
    COMMITTED_MEMO,
    CPU_QUEUE,
    REWARD_QUEUE,
    SAMPLE_QUEUE,
    TASK_QUEUE,
    TRAIN_QUEUE,
    JobKey,
)
from ..workflows.activity_calls import ROLLOUT
from .errors import JobNotFound
from .failure_cause import root_cause
from .snapshot import JobSnapshot, OpenEvaluation, OpenStep, PendingActivity, Problem, Status
from .workflow_state import ask, is_polled, pending_activities, stuck_reason

_STATUSES: dict[WorkflowExecutionStatus, Status] = {
    WorkflowExecutionStatus.RUNNING: "running",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "running",
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed out",
}
_ROLES = {
    TASK_QUEUE: "control",
    CPU_QUEUE: "cpu",
    REWARD_QUEUE: "cpu",
    SAMPLE_QUEUE: "gpu",
    TRAIN_QUEUE: "gpu",
}
_ANSWERS: dict[str, type[Contract]] = {
    "TrainJob": JobProgress,
    "TrainStep": StepProgress,
    "Evaluate": EvaluationProgress,
}
"""What each type of workflow answers to the query `progress`."""
_WORKFLOWS = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW
_ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


Progress = TypeVar("Progress", StepProgress, EvaluationProgress)


class JobObserver:
    """Watches one job.

    Args:
        client: made with `temporal_plugin`.
        key: of the job; it need not exist.
    """

    def __init__(self, client: Client, key: JobKey) -> None:
        self._client = client
        self._key = key
        self._specs: dict[str, JobSpec | None] = {}

    async def snapshot(self) -> JobSnapshot:
        """The job now.

        Raises:
            JobNotFound: when Temporal has no such job.
            RPCError: when Temporal does not answer.
        """
        description = await self._describe(self._key.workflow_id)
        if description is None or description.workflow_type != "TrainJob":
            raise JobNotFound(
                f"Temporal knows no job {self._key} in the namespace {self._client.namespace}; "
                "`marlaas list` shows those that it knows"
            )
        assert description.status is not None
        status = _STATUSES[description.status]
        spec = await self._spec(description)
        running = await self._running(description) if status == "running" else {}
        result, failure = (None, None) if status == "running" else await self._outcome(description)
        return JobSnapshot.model_validate(
            {
                "job": self._key,
                "status": status,
                "steps": result.steps if result and result.steps else spec and spec.steps,
                "started": description.start_time,
                "ended": description.close_time,
                "progress": None,
                "open_steps": (),
                "open_evaluations": (),
                "pending": (),
                "problems": (),
                "result": result,
                "committed": await _committed(description),
                "failure": failure,
                **running,
            }
        )

    async def _describe(self, workflow: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(workflow).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def _spec(self, description: WorkflowExecutionDescription) -> JobSpec | None:
        """The spec that the run was started with; None when it is not valid."""
        run = description.run_id
        if run not in self._specs:
            handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(description.id, run_id=run)
            event = await anext(handle.fetch_history_events(page_size=1))
            payloads = event.workflow_execution_started_event_attributes.input.payloads
            try:
                given = await self._client.data_converter.decode(payloads)
                self._specs[run] = parse_job_spec(given[0] if given else None)
            except (ValueError, KeyError, RuntimeError):
                # Anybody may start a workflow with whatever bytes; that must not hide the other jobs.
                self._specs[run] = None
        return self._specs[run]

    async def _outcome(
        self, description: WorkflowExecutionDescription
    ) -> tuple[JobResult | None, str | None]:
        handle: WorkflowHandle[Any, JobResult] = self._client.get_workflow_handle(
            description.id, run_id=description.run_id, result_type=JobResult
        )
        try:
            return await handle.result(follow_runs=False), None
        except WorkflowFailureError as error:
            return None, root_cause(error)

    async def _running(self, job: WorkflowExecutionDescription) -> dict[str, Any]:
        """The fields of a snapshot that only a running job has."""
        ids = [child.workflow_id for child in job.raw_description.pending_children]
        workflows = [job, *await self._children(ids)]
        stuck, unserved = await asyncio.gather(self._stuck(workflows), self._unpolled({TASK_QUEUE}))
        silent = {one.id for one in workflows} if unserved else {problem.where for problem in stuck}
        answers = await self._answers([one for one in workflows if one.id not in silent])
        # What is pending is asked after the answers: a rollout that ends in between would count twice.
        later = [job, *await self._children(ids)]
        pending = [one for each in later for one in await pending_activities(self._client, each)]
        waiting = {one.queue for one in pending if not one.running}
        unpolled = [*unserved, *await self._unpolled(waiting - {TASK_QUEUE})]
        progress = answers.get(job.id)
        own = _own_troubles(job.id, progress)
        unanswered = [_no_answer(job.id)] if progress is None and job.id not in silent else []
        return {
            "progress": progress,
            "open_steps": tuple(
                OpenStep(step=number, progress=answer, groups_sampled=sampled)
                for number, answer, sampled in _open(workflows, StepProgress, answers, pending)
            ),
            "open_evaluations": tuple(
                OpenEvaluation(version=number, progress=answer, groups_sampled=sampled)
                for number, answer, sampled in _open(workflows, EvaluationProgress, answers, pending)
            ),
            "pending": tuple(pending),
            "problems": (*stuck, *own, *unpolled, *unanswered, *_retrying(pending), *_unreported(progress)),
            **({"steps": progress.steps} if isinstance(progress, JobProgress) and progress.steps else {}),
        }

    async def _children(self, ids: Iterable[str]) -> list[WorkflowExecutionDescription]:
        found = await asyncio.gather(*(self._describe(child) for child in ids))
        return [child for child in found if child and child.workflow_type in _ANSWERS]

    async def _answers(self, workflows: Sequence[WorkflowExecutionDescription]) -> dict[str, Contract | None]:
        """What workflows answer to the query `progress`, by their ids."""
        handles = [self._client.get_workflow_handle(one.id) for one in workflows]
        kinds = [_ANSWERS[one.workflow_type] for one in workflows]
        found = await asyncio.gather(*(map(ask, handles, ["progress"] * len(handles), kinds)))
        return {one.id: answer for one, answer in zip(workflows, found, strict=True)}

    async def _stuck(self, workflows: Sequence[WorkflowExecutionDescription]) -> list[Problem]:
        reasons = await asyncio.gather(*(stuck_reason(self._client, one) for one in workflows))
        return [
            Problem(kind="stuck", where=workflow.id, message=reason)
            for workflow, reason in zip(workflows, reasons, strict=True)
            if reason is not None
        ]

    async def _unpolled(self, queues: Iterable[str]) -> list[Problem]:
        names = sorted(queues)
        kinds = [_WORKFLOWS if name == TASK_QUEUE else _ACTIVITIES for name in names]
        polled = await asyncio.gather(*map(partial(is_polled, self._client), names, kinds))
        return [
            Problem(kind="no worker", where=name, message=_call_for(name))
            for name, is_served in zip(names, polled, strict=True)
            if not is_served
        ]


async def _committed(description: WorkflowExecutionDescription) -> int | None:
    """What the job left in its memo; anybody may start one with a memo of their own."""
    memo = await description.memo_value(COMMITTED_MEMO, default=None)
    return memo if type(memo) is int else None


def _call_for(queue: str) -> str:
    role = _ROLES.get(queue)
    if role is None:
        return "no worker is polling it"
    return f"no {role} worker is polling it; start one with `marlaas worker --role {role}`"


def _own_troubles(job: str, progress: Contract | None) -> list[Problem]:
    """What a job says that keeps it from going on."""
    if not isinstance(progress, JobProgress):
        return []
    troubles: list[Problem] = []
    if progress.reason is not None:
        kind = "stalled" if progress.state == "stalled" else "paused"
        troubles.append(Problem(kind=kind, where=job, message=progress.reason))
    if progress.refused is not None:
        troubles.append(Problem(kind="refused", where=job, message=f"`set`: {progress.refused}"))
    return troubles


def _no_answer(job: str) -> Problem:
    return Problem(kind="no answer", where=job, message="its workflow does not say how far it is")


def _open(
    workflows: Sequence[WorkflowExecutionDescription],
    kind: type[Progress],
    answers: Mapping[str, Contract | None],
    pending: Sequence[PendingActivity],
) -> list[tuple[int, Progress | None, int]]:
    """Step or version, progress, and groups sampled, of each open workflow that answers with `kind`."""
    found: list[tuple[int, Progress | None, int]] = []
    for one in sorted(workflows, key=lambda one: one.id):
        if _ANSWERS[one.workflow_type] is not kind:
            continue
        answer = answers.get(one.id)
        progress = answer if isinstance(answer, kind) else None
        sampling = [each for each in pending if each.workflow == one.id and each.name == ROLLOUT.name]
        sampled = sum(each.groups_done or 0 for each in sampling)
        if progress is not None:
            sampled += progress.groups_sampled
        found.append((int(one.id.rpartition("/")[2]), progress, sampled))
    return found


def _retrying(pending: Sequence[PendingActivity]) -> list[Problem]:
    return [
        Problem(
            kind="retrying",
            where=f"{one.workflow}, {one.name}",
            message=f"attempt {one.attempt} {'runs' if one.running else 'waits'}; before: {one.failure}",
        )
        for one in pending
        if one.failure is not None
    ]


def _unreported(progress: Contract | None) -> list[Problem]:
    trackers = progress.trackers if isinstance(progress, JobProgress) else ()
    return [
        Problem(kind="not reported", where=one.kind, message=one.problem)
        for one in trackers
        if one.problem is not None
    ]
