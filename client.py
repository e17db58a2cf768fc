"""The SDK: submits jobs, watches them, changes them while they run, and exports what they learned.

import asyncio
import marlaas

async def main():
    async with await marlaas.connect() as client:
        job = await client.submit("job.yaml")
        async for snapshot in job.watch():
            print(snapshot.state, snapshot.version, snapshot.rewards[-1:])
        print(await job.result())
        await job.export("adapters/sums")

asyncio.run(main())
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowFailureError, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from .jobs.adapter_export import ExportedAdapter, export_adapter
from .jobs.errors import (
    InvalidJobName,
    JobError,
    JobExists,
    JobFailed,
    JobNotFound,
    JobOver,
    ServiceUnreachable,
)
from .jobs.failure_cause import ended_as, root_cause
from .jobs.job_file import read_job_file
from .jobs.metric_feed import metric_feed
from .jobs.observer import JobObserver
from .jobs.outages import is_outage, unreachable
from .jobs.recent_rewards import RecentRewards
from .jobs.resuming import resumable_spec
from .jobs.snapshot import JobSnapshot
from .jobs.watching import watch
from .schemas.events import JobResult, StepResult
from .schemas.job_spec import InvalidJobSpec, JobSpec, parse_job_spec
from .schemas.manifest import EvaluationDocument, StepMetrics
from .schemas.metric_row import MetricRow
from .schemas.names import TASK_QUEUE, JobKey
from .schemas.settings import Setting
from .storage.object_store import ObjectStore
from .storage.revisions import Revisions
from .workers.settings import Addresses, Settings, load_settings
from .workflows.plugin import temporal_plugin
from .workflows.train_job import TrainJob

T = TypeVar("T")

_AT_ONCE = 16
_RETRY_SECONDS = 1.0
_ANSWER_TIME = timedelta(seconds=5)


async def connect(where: Settings | Addresses | None = None) -> "Client":
    """Connects to the servers.

    Args:
        where: by default `load_settings()`: MARLAAS_ variables, then `marlaas.toml`, then the embedded
            stack in `.marlaas`.

    Raises:
        StackError: when nothing says where the servers are, or the settings are wrong.
        ServiceUnreachable: when Temporal does not answer.
    """
    addresses = where if isinstance(where, Addresses) else (where or load_settings()).addresses()
    address, namespace = addresses.temporal_address, addresses.temporal_namespace
    try:
        temporal = await TemporalClient.connect(
            address, namespace=namespace, plugins=[temporal_plugin()], connect_timeout=_ANSWER_TIME
        )
        await temporal.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=namespace), timeout=_ANSWER_TIME
        )
    except (RuntimeError, RPCError) as error:
        raise unreachable(f"{address}, namespace {namespace}", error) from error
    store = ObjectStore(
        addresses.s3_endpoint, addresses.s3_access_key, addresses.s3_secret_key, secure=addresses.s3_secure
    )
    return Client(temporal, store, address)


class Client:
    """A connection to Temporal and to the object store; made by `connect`.

    Every method raises `ServiceUnreachable` when Temporal does not answer.
    """

    def __init__(self, temporal: TemporalClient, store: ObjectStore, address: str) -> None:
        self.temporal = temporal
        self.store = store
        self.revisions = Revisions(store)
        self._address = address

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops the connections to the object store; those to Temporal go with the object."""
        self.store.close()

    def job(self, name: str | JobKey) -> "Job":
        """A job by its name, `tenant/job`; whether it exists shows when it is used.

        Raises:
            InvalidJobName: when the name is not of this form.
        """
        return Job(self, name if isinstance(name, JobKey) else job_key(name))

    async def submit(self, spec: JobSpec | Mapping[str, Any] | Path | str) -> "Job":
        """Starts a job. Nothing is created when the spec is not valid or the name is taken.

        A model, task, dataset or reward that cannot be used is found by the workers: the job fails, and
        its name is free again, as is that of any job which ended without a version 0.

        Args:
            spec: the spec, or the path of its file; see `read_job_file` for relative paths.

        Raises:
            InvalidJobFile, InvalidJobSpec: naming the line or the fields.
            JobExists: saying what has the name.
            StoreUnavailable: when the object store does not answer.
        """
        checked = _checked(spec)
        job = self.job(checked.key)
        await job.require_free_name(checked)
        try:
            with self.reaching_temporal():
                await self.temporal.start_workflow(
                    TrainJob.run,
                    args=[checked.model_dump(mode="json")],
                    id=checked.key.workflow_id,
                    task_queue=TASK_QUEUE,
                    id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                    id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
                )
        except WorkflowAlreadyStartedError:
            raise await job.existing() from None
        return job

    async def jobs(self, tenant: str | None = None) -> list[JobSnapshot]:
        """All jobs that Temporal still knows, the newest first.

        Raises:
            InvalidJobName: when the tenant is not a DNS label.
        """
        query = "WorkflowType = 'TrainJob' AND ExecutionStatus != 'ContinuedAsNew'"
        if tenant is not None:
            query += f" AND WorkflowId STARTS_WITH '{job_key(f'{tenant}/any').tenant}/'"
        keys: dict[JobKey, None] = {}
        with self.reaching_temporal():
            async for execution in self.temporal.list_workflows(query):
                try:
                    keys[job_key(execution.id)] = None
                except InvalidJobName:
                    continue  # started by hand under a wrong id, and failed for that
            looks = asyncio.Semaphore(_AT_ONCE)

            async def look(key: JobKey) -> JobSnapshot | None:
                async with looks:
                    try:
                        return await JobObserver(self.temporal, key).snapshot()
                    except JobNotFound:
                        return None

            found = await asyncio.gather(*map(look, keys))
        return [snapshot for snapshot in found if snapshot is not None]

    @contextmanager
    def reaching_temporal(self) -> Generator[None]:
        """Turns Temporal's own errors into `ServiceUnreachable`."""
        try:
            yield
        except RPCError as error:
            raise unreachable(self._address, error) from error


class Job:
    """A job by its name. All methods but `export`, `evaluation` and those of metrics ask Temporal, which
    forgets a job some time after its end."""

    def __init__(self, client: Client, key: JobKey) -> None:
        self.key = key
        self._client = client
        self._observer = JobObserver(client.temporal, key)
        self._handle: WorkflowHandle[Any, JobResult] = client.temporal.get_workflow_handle(
            key.workflow_id, result_type=JobResult
        )

    async def progress(self) -> JobSnapshot:
        """The job now.

        Raises:
            JobNotFound: when Temporal has no such job.
        """
        with self._client.reaching_temporal():
            return await self._observer.snapshot()

    async def watch(self, seconds: float = 1.0) -> AsyncGenerator[JobSnapshot]:
        """The job now and at every interval, through outages, until it has ended.

        Raises:
            JobNotFound: when Temporal has no such job.
        """
        rewards = RecentRewards(self._client.revisions, self.key)
        with self._client.reaching_temporal():
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
        spec = await resumable_spec(self._client.revisions, self.key, changes)
        with self._client.reaching_temporal():
            await self._client.temporal.start_workflow(
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

    async def metrics(self, versions: Iterable[int] | None = None) -> dict[int, StepMetrics]:
        """The metrics of the steps that led to these versions, by default to all that are committed.

        Raises:
            StoreUnavailable: when the object store does not answer.
        """
        if versions is None:
            versions = range(1, (await self._client.revisions.latest_version(self.key) or 0) + 1)
        manifests = await asyncio.gather(
            *(self._client.revisions.manifest(self.key, one) for one in versions)
        )
        return {one.version: one.metrics for one in manifests if one and one.metrics}

    def metric_rows(self, *, follow: bool = False) -> AsyncGenerator[MetricRow]:
        """Every row of metrics, and with `follow` those to come until the job ends. See `metric_feed`."""
        return metric_feed(self._client.revisions, self.key, self.progress if follow else None)

    async def evaluation(self, version: int) -> EvaluationDocument | None:
        """The held-out evaluation of a version; None when there is none.

        Raises:
            StoreUnavailable: when the object store does not answer.
        """
        return await self._client.revisions.evaluation(self.key, version)

    async def step_results(self, steps: Iterable[int]) -> dict[int, StepResult]:
        """What steps that have ended returned, as far as Temporal still knows it."""
        looks = asyncio.Semaphore(_AT_ONCE)

        async def look(step: int) -> StepResult | None:
            handle: WorkflowHandle[Any, StepResult] = self._client.temporal.get_workflow_handle(
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
        with self._client.reaching_temporal():
            results = await asyncio.gather(*map(look, wanted))
        return {step: result for step, result in zip(wanted, results, strict=True) if result is not None}

    async def export(self, out: Path | str, version: int | None = None) -> ExportedAdapter:
        """Writes a committed adapter as a folder that PEFT loads, also while the job runs.

        Args:
            out: a folder that does not exist, is empty, or holds this very export.
            version: by default the newest.

        Raises:
            JobNotFound: when the job has no committed version.
            JobError: when the version is not committed.
            ExportRefused: when `out` holds something else.
            MissingBlob, CorruptBlob, StoreUnavailable: from the object store.
        """
        revisions = self._client.revisions
        document, latest = await asyncio.gather(revisions.job(self.key), revisions.latest_version(self.key))
        if document is None or latest is None:
            raise JobNotFound(
                f"the object store has no version of job {self.key}: it was never started, failed at its "
                "start, or is there still"
            )
        wanted = latest if version is None else version
        revision, manifest = await asyncio.gather(
            revisions.revision(self.key, wanted), revisions.manifest(self.key, wanted)
        )
        if revision is None or manifest is None:
            raise JobError(f"version {wanted} of job {self.key} is not committed; the newest is {latest}")
        return await export_adapter(self._client.store, document.spec, revision, manifest, Path(out))

    async def require_free_name(self, spec: JobSpec) -> None:
        """Raises JobExists when the job's name is taken, in Temporal or in the object store."""
        document = await self._client.revisions.job(self.key)
        if document is not None:
            raise await self.existing(same=document.spec_digest == spec.digest)

    async def existing(self, *, same: bool | None = None) -> JobExists:
        """What to tell somebody who wants the name of this job."""
        latest = await self._client.revisions.latest_version(self.key)
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
            with self._client.reaching_temporal():
                return await change
        except ServiceUnreachable as error:
            cause = error.__cause__
            if not isinstance(cause, RPCError) or cause.status != RPCStatusCode.NOT_FOUND:
                raise
            raise self._over(await self.progress()) from None

    def _over(self, snapshot: JobSnapshot) -> JobOver:
        return JobOver(f"job {self.key} has ended already: {snapshot.state}")


def job_key(name: str) -> JobKey:
    """The key in a name of the form `tenant/job`.

    Raises:
        InvalidJobName: when it has another form.
    """
    tenant, _, job = name.partition("/")
    try:
        return JobKey(tenant=tenant, job=job)
    except ValidationError:
        raise InvalidJobName(
            f"{name!r} is not the name of a job: write tenant/job, for example acme/sums, each part 1 to 63 "
            "of a-z, 0-9 and '-', with no '-' at either end"
        ) from None


def _checked(spec: JobSpec | Mapping[str, Any] | Path | str) -> JobSpec:
    if isinstance(spec, JobSpec):
        return spec
    if isinstance(spec, Mapping):
        return parse_job_spec(dict(spec))
    path = Path(spec)
    try:
        return parse_job_spec(read_job_file(path))
    except InvalidJobSpec as error:
        raise InvalidJobSpec(f"{path}: {error}") from None
