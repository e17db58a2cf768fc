"""Activities that do nothing, under the names of the real ones: the control plane alone."""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from marlaas.schemas import names
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.dataset import DatasetRef
from marlaas.schemas.events import (
    Candidate,
    ClaimInput,
    ClosedJob,
    CloseInput,
    EvaluationResult,
    InitialiseInput,
    ReportInput,
    ReportResult,
    RewardInput,
    RewardResult,
    RolloutInput,
    RolloutResult,
    SelectedBatch,
    SelectInput,
    SnapshotInput,
    Span,
    SummariseInput,
    TrainInput,
)
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import AdapterRevision, Fingerprint, StepMetrics
from marlaas.schemas.tracker_calls import TrackerState
from marlaas.workflows.plugin import WORKFLOWS
from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

FINGERPRINT = Fingerprint(device="none", torch="none", transformers="none", dtype="none", base="0" * 64)


def blob(name: str) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(name.encode()).hexdigest(), size=len(name))


METRICS = StepMetrics(
    reward_mean=0.5,
    reward_std=0.5,
    loss=0.0,
    grad_norm=1.0,
    ratio_mean=1.0,
    clipped_share=0.0,
    logprob_gap_mean=0.0,
    logprob_gap_max=0.0,
    zero_variance_share=0.0,
    groups=1,
    failed_groups=0,
    failed_samples=0,
    samples=2,
    prompt_tokens=1,
    completion_tokens=1,
    truncated_share=0.0,
    staleness_max=0,
    skipped=False,
    train_seconds=0.0,
)


class NoopActivities:
    """Records what it is asked, in order: `rollouts` as (group, generating version), `trained` likewise.

    Attributes:
        failed_samples: of 10, in the first `failing_rounds` rounds of scoring.
        equal: tells of a group's number in its set whether its rewards are all equal.
    """

    def __init__(self) -> None:
        self.rollouts: list[tuple[str, int]] = []
        self.trained: list[tuple[str, int]] = []
        self.evaluated: list[int] = []
        self.closed: list[str] = []
        self.inputs: list[TrainInput] = []
        self.snapshots: list[SnapshotInput] = []
        self.rollout_inputs: list[RolloutInput] = []
        self.reports: list[ReportInput] = []
        self.trackers: tuple[TrackerState, ...] = ()
        self.failed_samples = 0
        self.reward_parts: dict[str, float] = {}
        self.failing_rounds = 1
        self.scored_rounds: list[int] = []
        self.equal: Callable[[int], bool] = lambda _: False
        self.on_trained: Callable[[], object] = lambda: None

    @activity.defn
    async def claim_job(self, data: ClaimInput) -> None:
        return None

    @activity.defn
    async def prepare_dataset(self, spec: JobSpec) -> DatasetRef:
        return DatasetRef(blob=blob("dataset"), train=100, held_out=spec.evaluation.prompts)

    @activity.defn
    async def initialise(self, data: InitialiseInput) -> Candidate:
        return self._candidate(0, None)

    @activity.defn
    async def rollout(self, data: RolloutInput) -> RolloutResult:
        self.rollout_inputs.append(data)
        self.rollouts += [(one.group, data.revision.version) for one in data.groups]
        return RolloutResult(
            groups=len(data.groups), completion_tokens=0, sampling=Span(began=0.0, ended=0.0)
        )

    @activity.defn
    async def reward(self, data: RewardInput) -> RewardResult:
        self.scored_rounds.append(data.round)
        return RewardResult(
            groups=len(data.groups),
            varied_groups=sum(not self.equal(int(one.group.rpartition("-")[2])) for one in data.groups),
            failed_groups=0,
            failed_samples=0,
            failure=None,
            scoring=Span(began=0.0, ended=0.0),
        )

    @activity.defn
    async def select_batch(self, data: SelectInput) -> SelectedBatch:
        failed = self.failed_samples if data.round < self.failing_rounds else 0
        return SelectedBatch(
            blob=blob(f"batch {data.step}"),
            groups=len(data.groups),
            samples=10,
            failed_samples=failed,
            failure="ValueError: no" if failed else None,
            reward_parts=self.reward_parts,
        )

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        self.inputs.append(data)
        self.trained.append((data.batch.digest, data.revision.version))
        self.on_trained()
        return self._candidate(data.revision.version + 1, data.revision.manifest)

    @activity.defn
    async def snapshot(self, data: SnapshotInput) -> AdapterRevision:
        self.snapshots.append(data)
        candidate = data.candidate
        return AdapterRevision(
            version=candidate.version,
            manifest=blob(f"manifest {candidate.version}").digest,
            adapter=candidate.adapter,
            optimizer=candidate.optimizer,
        )

    @activity.defn
    async def summarise_evaluation(self, data: SummariseInput) -> EvaluationResult:
        self.evaluated.append(data.revision.version)
        return EvaluationResult(
            version=data.revision.version, accuracy=0.5, greedy_accuracy=0.5, failed_samples=0
        )

    @activity.defn
    async def close_job(self, data: CloseInput) -> ClosedJob:
        self.closed.append(str(data.key))
        return ClosedJob(version=len(self.trained))

    @activity.defn
    async def report(self, data: ReportInput) -> ReportResult:
        self.reports.append(data)
        return ReportResult(trackers=self.trackers)

    @property
    def all(self) -> list[Callable[..., Any]]:
        return [
            self.claim_job,
            self.prepare_dataset,
            self.initialise,
            self.rollout,
            self.reward,
            self.select_batch,
            self.train,
            self.snapshot,
            self.summarise_evaluation,
            self.close_job,
            self.report,
        ]

    def _candidate(self, version: int, parent: str | None) -> Candidate:
        return Candidate(
            version=version,
            parent=parent,
            adapter=blob(f"adapter {version}"),
            optimizer=blob(f"optimizer {version}"),
            batch=None if parent is None else blob("batch"),
            metrics=None if parent is None else METRICS,
            fingerprint=FINGERPRINT,
        )


@asynccontextmanager
async def noop_workers(client: Client, activities: NoopActivities) -> AsyncGenerator[None]:
    """A control worker and one no-op worker for each queue of activities."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            Worker(client, task_queue=names.TASK_QUEUE, workflows=list(WORKFLOWS), max_cached_workflows=50)
        )
        for queue in (names.CPU_QUEUE, names.REWARD_QUEUE, names.SAMPLE_QUEUE, names.TRAIN_QUEUE):
            await stack.enter_async_context(Worker(client, task_queue=queue, activities=activities.all))
        yield


def job(name: str, **changes: Any) -> dict[str, Any]:
    """A small valid spec as JSON."""
    return {
        "tenant": "acme",
        "job": name,
        "model": "none",
        "steps": 6,
        "environment": {"kind": "jsonl", "path": "rows.jsonl", "reward": "rewards:exact"},
        "sampling": {"groups_per_step": 2, "samples_per_group": 4, "slots": 16},
        **changes,
    }


async def start(client: Client, spec: Any, workflow_id: str) -> WorkflowHandle[Any, Any]:
    """Starts a job as the Temporal CLI does: by type name, with plain JSON."""
    return await client.start_workflow("TrainJob", spec, id=workflow_id, task_queue=names.TASK_QUEUE)


async def set_values(handle: WorkflowHandle[Any, Any], changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Sets values of a running job by its update, and returns the settings that came of it."""
    return await handle.execute_update("set", changes)  # pyright: ignore[reportUnknownMemberType]
