"""How jobs end, and what is said of it."""

from collections.abc import Callable
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.jobs.errors import JobFailed, JobOver
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, workers
from marlaas.tests.front_door.test_watch import until
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

Spec = Callable[..., dict[str, Any]]


async def test_a_failed_job_shows_the_failure_at_the_root(
    marlaas: CommandLine, client: Client, spec: Spec
) -> None:
    activities = GatedActivities()
    activities.failures = [
        ApplicationError("no layer q_proj in [x]", type="UnusableModel", non_retryable=True)
    ]
    job = await client.submit(spec())
    cause = f"{job.key}/step/00000000, activity train: UnusableModel: no layer q_proj in [x]"
    async with workers(client.connection.temporal, activities):
        with pytest.raises(JobFailed) as caught:
            await job.result()
        assert (caught.value.status, caught.value.cause) == ("failed", cause)
        ended = await marlaas("watch", str(job.key))
    assert (ended.code, ended.err) == (1, "")
    assert ended.out.splitlines()[-1] == f"{job.key} failed: {cause}"
    assert cause in (await marlaas("list")).out


async def test_a_spec_that_only_temporal_saw_fails_with_its_fields(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    await client.connection.temporal.start_workflow(
        "TrainJob", spec(steps=0), id=f"{tenant}/sums", task_queue="marlaas"
    )
    async with workers(client.connection.temporal, GatedActivities()):
        with pytest.raises(JobFailed, match="steps is 0: should be greater than or equal to 1"):
            await client.job(f"{tenant}/sums").result()
    ended = await marlaas("list")
    (row,) = [line for line in ended.out.splitlines() if line.startswith(f"{tenant}/sums")]
    assert "failed" in row
    assert "InvalidJobSpec: the job spec is not valid: steps is 0" in row


@pytest.mark.parametrize("data", [b'{"steps": ' + b"9" * 5000 + b"}", b"{", b"\xff"])
async def test_a_start_with_unreadable_input_hides_no_other_job(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str, data: bytes
) -> None:
    payload = Payload(metadata={"encoding": b"json/plain"}, data=data)
    await client.connection.temporal.start_workflow(
        "TrainJob", RawValue(payload), id=f"{tenant}/other", task_queue="marlaas"
    )
    job = await client.submit(spec())
    shown = await marlaas("list")
    assert (shown.code, shown.err) == (0, "")
    assert {f"{tenant}/other", str(job.key)} <= {line.split(" ")[0] for line in shown.out.splitlines()}


async def test_a_cancelled_job_says_so(marlaas: CommandLine, client: Client, spec: Spec) -> None:
    activities = GatedActivities()
    activities.gate.clear()
    job = await client.submit(spec())
    async with workers(client.connection.temporal, activities):
        await until(job, lambda one: bool(one.open_steps))
        assert (await marlaas("cancel", str(job.key))).code == 0
        ended = await marlaas("watch", str(job.key))
        assert ended.code == 1
        assert ended.out.splitlines()[-1] == f"{job.key} cancelled"
        with pytest.raises(JobFailed, match=f"^job {job.key} cancelled$"):
            await job.result()
        assert (await job.progress()).state == "cancelled"


async def test_a_terminated_job_gives_the_reason_once(
    marlaas: CommandLine, client: Client, spec: Spec
) -> None:
    job = await client.submit(spec())
    await client.connection.temporal.get_workflow_handle(job.key.workflow_id).terminate(
        reason="out of budget"
    )
    with pytest.raises(JobFailed, match=f"^job {job.key} terminated: out of budget$"):
        await job.result()
    ended = await marlaas("watch", str(job.key))
    assert ended.out.splitlines() == [f"{job.key} terminated: out of budget"]


async def test_pause_resume_and_stop(marlaas: CommandLine, client: Client, spec: Spec) -> None:
    job = await client.submit(spec(steps=100_000))
    async with workers(client.connection.temporal, GatedActivities()):
        await until(job, lambda one: (one.version or 0) >= 1)
        assert (await marlaas("pause", str(job.key))).code == 0
        paused = await until(job, lambda one: one.state == "paused" and not one.open_steps)
        assert (await marlaas("resume", str(job.key))).code == 0
        await until(job, lambda one: (one.version or 0) > (paused.version or 0))
        assert (await marlaas("stop", str(job.key))).code == 0
        result = await job.result()
        assert result.outcome == "stopped"
        ended = await marlaas("watch", str(job.key))
        assert ended.code == 0
        assert ended.out.splitlines()[-1] == f"{job.key} stopped at version {result.revision.version}"
        with pytest.raises(JobOver, match="has ended already: stopped"):
            await job.pause()
        with pytest.raises(JobOver, match="has ended already: stopped"):
            await job.cancel()
