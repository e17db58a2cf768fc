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
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client as TemporalClient
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from .job import Job
from .jobs.connection import Connection
from .jobs.errors import InvalidJobName, JobNotFound
from .jobs.job_file import checked_job_file
from .jobs.job_name import job_key
from .jobs.observer import JobObserver
from .jobs.outages import unreachable
from .jobs.snapshot import JobSnapshot
from .schemas.job_spec import JobSpec, parse_job_spec
from .schemas.names import TASK_QUEUE, JobKey
from .storage.object_store import ObjectStore
from .storage.revisions import Revisions
from .workers.settings import Addresses, Settings, load_settings
from .workflows.plugin import temporal_plugin
from .workflows.train_job import TrainJob

_AT_ONCE = 16
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
    return Client(Connection(temporal, store, Revisions(store), address))


class Client:
    """A connection to Temporal and to the object store; made by `connect`.

    Every method raises `ServiceUnreachable` when Temporal does not answer.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drops the connections to the object store; those to Temporal go with the object."""
        self.connection.store.close()

    def job(self, name: str | JobKey) -> Job:
        """A job by its name, `tenant/job`; whether it exists shows when it is used.

        Raises:
            InvalidJobName: when the name is not of this form.
        """
        return Job(self.connection, name if isinstance(name, JobKey) else job_key(name))

    async def submit(self, spec: JobSpec | Mapping[str, Any] | Path | str) -> Job:
        """Starts a job. Nothing is created when the spec is not valid or the name is taken.

        A model, task, dataset or reward that cannot be used is found by the workers: the job fails, and
        its name is free again, as is that of any job which ended without a version 0.

        Args:
            spec: the spec, or the path of its file; see `jobs.job_file.read_job_file` for relative paths.

        Raises:
            InvalidJobFile, InvalidJobSpec: naming the line or the fields.
            JobExists: saying what has the name.
            StoreUnavailable: when the object store does not answer.
        """
        checked = _checked(spec)
        job = self.job(checked.key)
        await job.require_free_name(checked)
        try:
            with self.connection.reaching_temporal():
                await self.connection.temporal.start_workflow(
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
        with self.connection.reaching_temporal():
            async for execution in self.connection.temporal.list_workflows(query):
                try:
                    keys[job_key(execution.id)] = None
                except InvalidJobName:
                    continue  # started by hand under a wrong id, and failed for that
            looks = asyncio.Semaphore(_AT_ONCE)

            async def look(key: JobKey) -> JobSnapshot | None:
                async with looks:
                    try:
                        return await JobObserver(self.connection.temporal, key).snapshot()
                    except JobNotFound:
                        return None

            found = await asyncio.gather(*map(look, keys))
        return [snapshot for snapshot in found if snapshot is not None]


def _checked(spec: JobSpec | Mapping[str, Any] | Path | str) -> JobSpec:
    if isinstance(spec, JobSpec):
        return spec
    if isinstance(spec, Mapping):
        return parse_job_spec(dict(spec))
    return checked_job_file(Path(spec))
