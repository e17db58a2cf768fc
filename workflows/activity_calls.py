"""The activities as workflows see them: a name, a task queue, and the types of input and result.

Workflow code knows no activity module: those reach for the network, and a workflow must not.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from temporalio import workflow
from temporalio.common import Priority, RetryPolicy

from ..schemas.contract import Contract
from ..schemas.dataset import DatasetRef
from ..schemas.events import (
    Candidate,
    ClaimInput,
    ClosedJob,
    CloseInput,
    EvaluationResult,
    InitialiseInput,
    JobState,
    ReopenInput,
    RewardInput,
    RewardResult,
    RolloutInput,
    RolloutResult,
    SelectedBatch,
    SelectInput,
    SnapshotInput,
    SummariseInput,
    TrainInput,
)
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import AdapterRevision
from ..schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE

Input = TypeVar("Input", bound=Contract)
Result = TypeVar("Result", bound=Contract | None)

# A preempted worker costs an attempt, so attempts are not bounded; the time of the job is.
RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=20),
    maximum_attempts=0,
)


@dataclass(frozen=True)
class ActivityCall(Generic[Input, Result]):
    """One activity: awaiting a call schedules it and returns its result.

    Attributes:
        limit: most time for it, where that is less than `durability.give_up_hours`.
    """

    name: str
    queue: str
    result: type[Result]
    limit: timedelta = timedelta.max

    async def __call__(self, spec: JobSpec, argument: Input, *, lead: int = 0) -> Result:
        """Runs the activity to its end, through lost workers and retries.

        Args:
            lead: steps before the result is needed; among waiting tasks the smallest goes first, and
                among equals the tenants take turns.

        Raises:
            ActivityError: after a failure that no retry can mend, or after its time.
        """
        return await workflow.execute_activity(
            self.name,
            argument,
            task_queue=self.queue,
            result_type=self.result,
            schedule_to_close_timeout=min(self.limit, timedelta(hours=spec.durability.give_up_hours)),
            heartbeat_timeout=timedelta(seconds=spec.durability.heartbeat_seconds),
            retry_policy=RETRY,
            priority=Priority(priority_key=1 + min(lead, 4), fairness_key=spec.tenant),
        )


CHECK_NAME = ActivityCall[ClaimInput, None]("claim_job", CPU_QUEUE, type(None))
REOPEN_JOB = ActivityCall[ReopenInput, JobState]("reopen_job", CPU_QUEUE, JobState)
PREPARE_DATASET = ActivityCall[JobSpec, DatasetRef]("prepare_dataset", CPU_QUEUE, DatasetRef)
INITIALISE = ActivityCall[InitialiseInput, Candidate]("initialise", TRAIN_QUEUE, Candidate)
ROLLOUT = ActivityCall[RolloutInput, RolloutResult]("rollout", SAMPLE_QUEUE, RolloutResult)
REWARD = ActivityCall[RewardInput, RewardResult]("reward", REWARD_QUEUE, RewardResult)
SELECT_BATCH = ActivityCall[SelectInput, SelectedBatch]("select_batch", CPU_QUEUE, SelectedBatch)
TRAIN = ActivityCall[TrainInput, Candidate]("train", TRAIN_QUEUE, Candidate)
SNAPSHOT = ActivityCall[SnapshotInput, AdapterRevision]("snapshot", CPU_QUEUE, AdapterRevision)
SUMMARISE_EVALUATION = ActivityCall[SummariseInput, EvaluationResult](
    "summarise_evaluation", CPU_QUEUE, EvaluationResult
)
CLOSE_JOB = ActivityCall[CloseInput, ClosedJob]("close_job", CPU_QUEUE, ClosedJob, timedelta(minutes=2))
