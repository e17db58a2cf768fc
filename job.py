"""One job: how it stands, what can be done with it, and what it learned."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from .jobs.adapter_export import ExportedAdapter, export_adapter, export_merged
from .jobs.committed_version import committed_job, committed_version
from .jobs.connection import Connection
from .jobs.errors import (
    ExportRefused,
    JobExists,
    JobFailed,
    JobNotFound,
    JobOver,
    ServiceUnreachable,
)
from .jobs.failure_cause import ended_as, root_cause
from .jobs.metric_feed import metric_feed
from .jobs.observer import JobObserver
from .jobs.outages import is_outage
from .jobs.recent_rewards import RecentRewards
from .jobs.resuming import resumable_spec
from .jobs.snapshot import JobSnapshot
from .jobs.watching import watch
from .schemas.engine_calls import MergeCall
from .schemas.events import JobResult, StepResult
from .schemas.job_spec import InvalidJobSpec, JobSpec
from .schemas.manifest import EvaluationDocument, StepMetrics
from .schemas.metric_row import MetricRow
from .schemas.names import TASK_QUEUE, JobKey
from .schemas.settings import Setting
from .workers.child_process import ChildDied, ChildError
from .workers.merge_child import merge_in_child
from .workflows.train_job import TrainJob

T = TypeVar("T")

_AT_ONCE = 16
_RETRY_SECONDS = 1.0


class Job:
    """A job by its name. All methods but `export`, `evaluation` and those of metrics ask Temporal, which
    forgets a job some time after its end."""

    def __init__(self, connection: Connection, key: JobKey) -> None:
        self.key = key
        self._connection = connection
        self._observer = JobObserver(connection.temporal, key)
        self._handle: WorkflowHandle[Any, JobResult] = connection.temporal.get_workflow_handle(
            key.workflow_id, result_type=JobResult
        )

    async def progress(self) -> JobSnapshot:
        """The job now.

        Raises:
            JobNotFound: when Temporal has no such job.
        """
        with self._connection.reaching_temporal():
            return await self._observer.snapshot()

    async def watch(self, seconds: float = 1.0) -> AsyncGenerator[JobSnapshot]:
        """The job now and at every interval, through outages, until it has ended.

        Raises:
            JobNotFound: when Temporal has no such job.
        """
        rewards = RecentRewards(self._connection.revisions, self.key)
        with self._connection.reaching_temporal():
            async for snapshot in watch(self._observer, rewards, seconds):
                yield snapshot

    async def result(self) -> JobResult:
        """Waits for the end of the job, through outages.

        Raises:
            JobFailed: when it ended without a result; the message has the cause.
            JobNotFound: when Temporal has no such job.
        """
        await self.progress()
        while True:
            try:
                return await self._handle.result()
            except WorkflowFailureError as error:
                raise JobFailed(self.key, ended_as(error), root_cause(error)) from error
            except RPCError as error:
                if not is_outage(error):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)

    async def stop(self) -> None:
        """Ends the job after the steps that are open, which are trained and committed.

        Raises:
            JobOver: when it has ended.
            JobNotFound: when Temporal has no such job.
        """
        await self._change(self._handle.signal(TrainJob.stop))

    async def pause(self) -> None:
        """Opens no further step until `resume`. Raises as `stop`."""
        await self._change(self._handle.signal(TrainJob.pause))

    async def set(self, changes: Mapping[str, Any]) -> tuple[Setting, ...]:
        """Gives fields of the spec that may change while the job runs other values.

        Args:
            changes: values by path, for example `{"optimizer.learning_rate": 1e-5}`; see
                `schemas.settings.SETTABLE`.

        Returns:
            Each with the first step that it holds for.

        Raises:
            InvalidJobSpec: when a path may not be set, or a value is not allowed; nothing is changed then.
            JobOver: when the job has ended.
            JobNotFound: when Temporal has no such job.
        """
        update = self._handle.execute_update(  # pyright: ignore[reportUnknownMemberType]
            TrainJob.set_now, dict(changes)
        )
        try:
            return await self._change(update)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            raise InvalidJobSpec(
                cause.message if isinstance(cause, ApplicationError) else str(cause)
            ) from error

    async def resume(self, changes: Mapping[str, Any] | None = None) -> bool:
        """Ends a pause; a job that has ended goes on from its newest version.

        Args:
            changes: as for `set`, made before it goes on; `{"steps": n}` lets a finished job train longer.

        Returns:
            Whether the job had ended.

        Raises:
            InvalidJobSpec: when a change is not allowed; nothing is changed then.
            JobError: when all steps are trained, or no version is committed.
        """
        changes = dict(changes or {})
        try:
            over = (await self.progress()).is_over
        except JobNotFound:  # Temporal forgets; the store does not
            over = True
        if not over:
            if changes:
                await self.set(changes)
            await self._change(self._handle.signal(TrainJob.resume))
            return False
        spec = await resumable_spec(self._connection.revisions, self.key, changes)
        with self._connection.reaching_temporal():
            await self._connection.temporal.start_workflow(
                TrainJob.run,
                args=[spec.model_dump(mode="json"), {"resume": changes}],
                id=self.key.workflow_id,
                task_queue=TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            )
        return True

    async def cancel(self) -> None:
        """Ends the job now: what open steps sampled is not trained on. Raises as `stop`."""
        # Temporal takes the request for a job that has ended as well, and does nothing.
        snapshot = await self.progress()
        if snapshot.is_over:
            raise self._over(snapshot)
        await self._change(self._handle.cancel())

    async def spec(self) -> JobSpec:
        """The spec that the job was started with.

        Raises:
            JobNotFound: when the job has no committed version.
            StoreUnavailable: when the object store does not answer.
        """
        return (await committed_job(self._connection.revisions, self.key)).spec

    async def metrics(self, versions: Iterable[int] | None = None) -> dict[int, StepMetrics]:
        """The metrics of the steps that led to these versions, by default to all that are committed.

        Raises:
            StoreUnavailable: when the object store does not answer.
        """
        if versions is None:
            versions = range(1, (await self._connection.revisions.latest_version(self.key) or 0) + 1)
        manifests = await asyncio.gather(
            *(self._connection.revisions.manifest(self.key, one) for one in versions)
        )
        return {one.version: one.metrics for one in manifests if one and one.metrics}

    def metric_rows(self, *, follow: bool = False) -> AsyncGenerator[MetricRow]:
        """Every row of metrics, and with `follow` those to come until the job ends. See `metric_feed`."""
        return metric_feed(self._connection.revisions, self.key, self.progress if follow else None)

    async def evaluation(self, version: int) -> EvaluationDocument | None:
        """The held-out evaluation of a version; None when there is none.

        Raises:
            StoreUnavailable: when the object store does not answer.
        """
        return await self._connection.revisions.evaluation(self.key, version)

    async def step_results(self, steps: Iterable[int]) -> dict[int, StepResult]:
        """What steps that have ended returned, as far as Temporal still knows it."""
        looks = asyncio.Semaphore(_AT_ONCE)

        async def look(step: int) -> StepResult | None:
            handle: WorkflowHandle[Any, StepResult] = self._connection.temporal.get_workflow_handle(
                self.key.step_id(step), result_type=StepResult
            )
            async with looks:
                try:
                    return await handle.result()
                except WorkflowFailureError:
                    return None
                except RPCError as error:
                    if error.status == RPCStatusCode.NOT_FOUND:
                        return None
                    raise

        wanted = list(steps)
        with self._connection.reaching_temporal():
            results = await asyncio.gather(*map(look, wanted))
        return {step: result for step, result in zip(wanted, results, strict=True) if result is not None}

    async def export(self, out: Path | str, version: int | Literal["best"] | None = None) -> ExportedAdapter:
        """Writes a committed adapter as a folder that PEFT loads, also while the job runs.

        Args:
            out: a folder that does not exist, is empty, or holds this very export.
            version: by default the newest; `best` is the first of those with the highest held-out figure
                that the spec names as `evaluation.best`.

        Raises:
            JobNotFound: when the job has no committed version.
            JobError: when the version is not committed, or none was evaluated.
            ExportRefused: when `out` holds something else.
            MissingBlob, CorruptBlob, StoreUnavailable: from the object store.
        """
        found = await committed_version(self._connection.revisions, self.key, version)
        return await export_adapter(self._connection.store, found, Path(out))

    async def export_merged(
        self,
        out: Path | str,
        version: int | Literal["best"] | None = None,
        *,
        models: Path,
        base: Path | None = None,
    ) -> ExportedAdapter:
        """Writes the base model with a committed adapter merged in, float32, as transformers loads it.

        The merging is done in a child process; the base model's folder is left as it is.

        Args:
            out: a folder that does not exist or is empty.
            version: by default the newest.
            models: where this machine keeps base models; one that is not there is put there.
            base: the base model's folder here; by default what the spec names.

        Raises:
            ExportRefused: when `out` holds something, or the base model is another, or can't be had.
            JobNotFound, JobError, MissingBlob, CorruptBlob, StoreUnavailable: as `export`.
        """
        found = await committed_version(self._connection.revisions, self.key, version)

        async def merge(adapter: Path, folder: Path) -> None:
            call = MergeCall(
                model=str(base or found.job.spec.model),
                precision=found.job.spec.precision,
                lora=found.job.spec.lora,
                base=found.manifest.fingerprint.base,
                adapter_path=str(adapter),
                out=str(folder),
            )
            try:
                await merge_in_child(call, models)
            except (ChildError, ChildDied) as error:
                raise ExportRefused(f"version {found.manifest.version} of job {self.key}: {error}") from error

        return await export_merged(self._connection.store, found, Path(out), merge)

    async def require_free_name(self, spec: JobSpec) -> None:
        """Raises JobExists when the job's name is taken, in Temporal or in the object store."""
        document = await self._connection.revisions.job(self.key)
        if document is not None:
            raise await self.existing(same=document.spec_digest == spec.digest)

    async def existing(self, *, same: bool | None = None) -> JobExists:
        """What to tell somebody who wants the name of this job."""
        latest = await self._connection.revisions.latest_version(self.key)
        reached = "no version committed yet" if latest is None else f"version {latest} committed"
        spec = {True: ", with the same spec", False: ", with another spec", None: ""}[same]
        try:
            state = (await self.progress()).state
        except JobNotFound:
            state = "forgotten by Temporal"
        return JobExists(
            f"job {self.key} exists: {state}, {reached}{spec}. A name is used once: choose another "
            f"`job:`, or see this one with `marlaas watch {self.key}`"
        )

    async def _change(self, change: Coroutine[Any, Any, T]) -> T:
        try:
            with self._connection.reaching_temporal():
                return await change
        except ServiceUnreachable as error:
            cause = error.__cause__
            if not isinstance(cause, RPCError) or cause.status != RPCStatusCode.NOT_FOUND:
                raise
            raise self._over(await self.progress()) from None

    def _over(self, snapshot: JobSnapshot) -> JobOver:
        return JobOver(f"job {self.key} has ended already: {snapshot.state}")
