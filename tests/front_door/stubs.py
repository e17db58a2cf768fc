"""Workers whose activities do what a test wants, under the names of the real ones."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

from marlaas.schemas.events import (
    Candidate,
    InitialiseInput,
    RolloutInput,
    RolloutResult,
    SnapshotInput,
    TrainInput,
)
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import AdapterRevision, JobDocument, Manifest
from marlaas.schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TASK_QUEUE, TRAIN_QUEUE
from marlaas.storage.revisions import Revisions
from marlaas.tests.noop_activities import METRICS, NoopActivities
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
    """Commits manifests to the object store; the reward of the step to version t is t / 10."""

    def __init__(self, revisions: Revisions, base: Candidate) -> None:
        super().__init__()
        self._revisions = revisions
        self._base = base

    @activity.defn
    async def initialise(self, data: InitialiseInput) -> Candidate:
        await self._revisions.claim(
            JobDocument(spec=data.spec, spec_digest=data.spec.digest, first_run_id="first")
        )
        return self._base

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        version = data.revision.version + 1
        return self._base.model_copy(
            update={
                "version": version,
                "parent": data.revision.manifest,
                "batch": self._base.adapter,
                "metrics": METRICS.model_copy(update={"reward_mean": version / 10}),
            }
        )

    @activity.defn
    async def snapshot(self, data: SnapshotInput) -> AdapterRevision:
        return (await self._revisions.commit(manifest_of(data.spec, data.candidate)))[0]


def manifest_of(spec: JobSpec, candidate: Candidate) -> Manifest:
    return Manifest(key=spec.key, spec_digest=spec.digest, **dict(candidate))


@asynccontextmanager
async def workers(
    client: Client,
    activities: NoopActivities,
    *,
    workflows: Sequence[type] = WORKFLOWS,
    queues: Sequence[str] = (CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE),
) -> AsyncGenerator[None]:
    """A control worker and one worker of each of these queues; heartbeats arrive at once."""
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
