"""Workers whose activities do what a test wants, under the names of the real ones."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from marlaas.job import Job
from marlaas.jobs.connection import Connection
from marlaas.schemas.dataset import DatasetRef
from marlaas.schemas.events import (
    Candidate,
    ClosedJob,
    CloseInput,
    InitialiseInput,
    RolloutInput,
    RolloutResult,
    SnapshotInput,
    TrainInput,
)
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import AdapterRevision, Fingerprint, JobDocument, Manifest
from marlaas.schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TASK_QUEUE, TRAIN_QUEUE
from marlaas.storage.revisions import Revisions
from marlaas.tests.noop_activities import FINGERPRINT, METRICS, NoopActivities
from marlaas.workers.search_attributes import ensure_search_attributes
from marlaas.workflows.plugin import WORKFLOWS
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker


class GatedActivities(NoopActivities):
    """Rollouts report `beats`, then wait for the gate; training raises `failures`, one at each try."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.beats: tuple[int, int] = (0, 0)
        self.failures: list[ApplicationError] = []

    @activity.defn
    async def rollout(self, data: RolloutInput) -> RolloutResult:
        while not self.gate.is_set():
            activity.heartbeat(*self.beats)
            await asyncio.sleep(0.1)
        return await super().rollout(data)

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        if self.failures:
            raise self.failures.pop(0)
        return await super().train(data)


class StoringActivities(GatedActivities):
    """Commits manifests to the object store; the reward of the step to version t is t / 10.

    Attributes:
        base: version 0.
        dataset_failures: raised by `prepare_dataset`, one at each try.
        fails_at: version whose training fails for good.
    """

    def __init__(self, revisions: Revisions, base: Candidate) -> None:
        super().__init__()
        self._revisions = revisions
        self.base = base
        self.dataset_failures: list[ApplicationError] = []
        self.fails_at: int | None = None

    @activity.defn
    async def prepare_dataset(self, spec: JobSpec) -> DatasetRef:
        if self.dataset_failures:
            raise self.dataset_failures.pop(0)
        return await super().prepare_dataset(spec)

    @activity.defn
    async def initialise(self, data: InitialiseInput) -> Candidate:
        return self.base

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        if data.revision.version == self.fails_at:
            raise ApplicationError("no", type="UnusableModel", non_retryable=True)
        version = data.revision.version + 1
        return self.base.model_copy(
            update={
                "version": version,
                "parent": data.revision.manifest,
                "batch": self.base.adapter,
                "metrics": METRICS.model_copy(update={"reward_mean": version / 10}),
            }
        )

    @activity.defn
    async def snapshot(self, data: SnapshotInput) -> AdapterRevision:
        return (await self._revisions.commit(manifest_of(data.spec, data.candidate)))[0]

    @activity.defn
    async def close_job(self, data: CloseInput) -> ClosedJob:
        return ClosedJob(version=await self._revisions.latest_version(data.key))


def manifest_of(spec: JobSpec, candidate: Candidate) -> Manifest:
    claim = JobDocument(spec=spec, spec_digest=spec.digest, first_run_id="first")
    return Manifest(
        key=spec.key,
        spec_digest=spec.digest,
        claim=None if candidate.version else claim,
        **dict(candidate),
    )


async def stored_job(
    connection: Connection,
    spec: JobSpec,
    adapters: Sequence[bytes],
    fingerprint: Fingerprint = FINGERPRINT,
    times: Sequence[float] | None = None,
) -> Job:
    """A job with these versions in the object store, which Temporal has never heard of.

    Args:
        times: of the commits; None for jobs that do not keep them.
    """
    await connection.store.ensure_bucket(spec.key.bucket)
    parent = None
    for version, adapter in enumerate(adapters):
        blob = await connection.store.put_blob(spec.key.bucket, adapter)
        candidate = Candidate(
            version=version,
            parent=parent,
            adapter=blob,
            optimizer=blob,
            batch=blob if version else None,
            metrics=METRICS if version else None,
            fingerprint=fingerprint,
        )
        manifest = manifest_of(spec, candidate)
        if times is not None:
            manifest = manifest.model_copy(update={"time": times[version]})
        parent = (await connection.revisions.commit(manifest))[0].manifest
    return Job(connection, spec.key)


@asynccontextmanager
async def workers(
    client: Client,
    activities: NoopActivities,
    *,
    workflows: Sequence[type] = WORKFLOWS,
    queues: Sequence[str] = (CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE),
) -> AsyncGenerator[None]:
    """A control worker and one worker of each of these queues; heartbeats arrive at once."""
    await ensure_search_attributes(client)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Worker(client, task_queue=TASK_QUEUE, workflows=workflows))
        for queue in queues:
            await stack.enter_async_context(
                Worker(
                    client,
                    task_queue=queue,
                    activities=activities.all,
                    max_heartbeat_throttle_interval=timedelta(milliseconds=10),
                )
            )
        yield
