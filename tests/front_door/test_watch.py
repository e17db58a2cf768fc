"""Watching: what is shown of a job that runs, that waits, and that is stuck."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from marlaas.client import Client
from marlaas.job import Job
from marlaas.jobs.snapshot import JobSnapshot
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.events import Candidate
from marlaas.schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TRAIN_QUEUE
from marlaas.tests.front_door.broken_workflows import BrokenJob, BrokenStep
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, StoringActivities, workers
from marlaas.tests.noop_activities import FINGERPRINT
from marlaas.workflows.evaluate import Evaluate
from marlaas.workflows.train_job import TrainJob
from temporalio.exceptions import ApplicationError

Spec = Callable[..., dict[str, Any]]


async def until(job: Job, condition: Callable[[JobSnapshot], bool]) -> JobSnapshot:
    """The first snapshot that fulfils a condition."""
    async with asyncio.timeout(60):
        async for snapshot in job.watch(0.1):
            if condition(snapshot):
                return snapshot
    raise AssertionError("the job ended before")


async def stored_base(client: Client, tenant: str) -> Candidate:
    """Version 0, of blobs that hold nothing of use."""
    bucket = client.job(f"{tenant}/any").key.bucket
    await client.connection.store.ensure_bucket(bucket)
    blob: BlobRef = await client.connection.store.put_blob(bucket, b"tensors")
    return Candidate(
        version=0,
        parent=None,
        adapter=blob,
        optimizer=blob,
        batch=None,
        metrics=None,
        fingerprint=FINGERPRINT,
    )


async def test_a_pipe_gets_a_line_for_each_thing_that_happens(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    activities = StoringActivities(client.connection.revisions, await stored_base(client, tenant))
    activities.gate.clear()
    job = await client.submit(spec(evaluation={"prompts": 2}))
    async with workers(client.connection.temporal, activities):
        evaluating = await until(job, lambda one: bool(one.open_evaluations))
        (evaluation,) = evaluating.open_evaluations
        assert evaluation.progress is not None
        assert (evaluation.version, evaluation.progress.groups, evaluation.progress.groups_scored) == (
            0,
            4,
            0,
        )
        watching = await marlaas.start("watch", str(job.key))
        assert watching.stdout is not None
        first = (await watching.stdout.readline()).decode()
        activities.gate.set()
        out, err = await watching.communicate()
    assert (watching.returncode, err) == (0, b"")
    lines = [first.rstrip("\n"), *out.decode().splitlines()]
    assert "\x1b" not in "".join(lines)
    assert lines[0] == f"{tenant}/sums evaluating, step 0/3"
    for version in (1, 2, 3):
        (line,) = [line for line in lines if line.startswith(f"{tenant}/sums version {version}: ")]
        assert f"reward 0.{version}00" in line
    assert f"{tenant}/sums held-out accuracy of version 0: 0.500 (greedy 0.500)" in lines
    assert lines[-1] == f"{tenant}/sums completed at version 3"


async def test_json_lines_are_snapshots(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    await client.submit(spec())
    async with workers(client.connection.temporal, GatedActivities()):
        ended = await marlaas("watch", f"{tenant}/sums", "--json")
    assert ended.code == 0
    snapshots = [json.loads(line) for line in ended.out.splitlines()]
    assert snapshots[-1]["state"] == "completed"
    assert snapshots[-1]["result"]["revision"]["version"] == 3
    assert {one["job"]["tenant"] for one in snapshots} == {tenant}


async def test_ctrl_c_on_a_terminal_leaves_the_job_running(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    activities = GatedActivities()
    activities.gate.clear()
    job = await client.submit(spec())
    async with workers(client.connection.temporal, activities):
        await until(job, lambda one: bool(one.open_steps))
        ended = await marlaas.on_terminal("watch", str(job.key), interrupt_at="of 4 groups")
        assert ended.code == 130
        assert f"job {tenant}/sums goes on" in ended.out
        assert "Traceback" not in ended.out
        assert "0/3 steps" in ended.out
        activities.gate.set()
        assert (await job.result()).outcome == "completed"


async def test_heartbeats_of_rollouts_show_groups_and_tokens(client: Client, spec: Spec) -> None:
    activities = GatedActivities()
    activities.gate.clear()
    activities.beats = (2, 90)
    job = await client.submit(spec(sampling={"groups_per_step": 8, "samples_per_group": 4, "slots": 16}))
    async with workers(client.connection.temporal, activities):
        # Two rollouts of four groups each.
        snapshot = await until(job, lambda one: any(step.groups_sampled == 4 for step in one.open_steps))
        assert sum(one.tokens or 0 for one in snapshot.pending) == 180
        assert snapshot.tokens_per_second is not None
        assert snapshot.versions_in_flight == (0,)
        progress = snapshot.open_steps[0].progress
        assert progress is not None
        assert (progress.phase, progress.groups, progress.groups_sampled) == ("rollout", 8, 0)
        activities.gate.set()
        await job.result()


async def test_open_steps_show_the_versions_in_flight(client: Client, spec: Spec) -> None:
    activities = GatedActivities()
    job = await client.submit(spec(max_staleness=2, steps=9))
    async with workers(client.connection.temporal, activities):
        await until(job, lambda one: (one.version or 0) >= 3)
        activities.gate.clear()
        snapshot = await until(job, lambda one: len(one.versions_in_flight) == 3)
        steps = [one.step for one in snapshot.open_steps]
        assert steps == list(range(steps[0], steps[0] + 3))
        assert snapshot.versions_in_flight == tuple(step - 2 for step in steps)
        activities.gate.set()
        await job.result()


async def test_queues_that_nobody_polls_are_named(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    job = await client.submit(spec())
    snapshot = await until(job, lambda one: bool(one.problems))
    assert [str(one) for one in snapshot.problems] == [
        "no worker: marlaas: no control worker is polling it; start one with `marlaas worker --role control`"
    ]
    async with workers(client.connection.temporal, GatedActivities(), queues=(CPU_QUEUE, TRAIN_QUEUE)):
        snapshot = await until(job, lambda one: SAMPLE_QUEUE in {problem.where for problem in one.problems})
        assert [str(one) for one in snapshot.problems] == [
            "no worker: marlaas-sample: no gpu worker is polling it; "
            "start one with `marlaas worker --role gpu`"
        ]
        assert snapshot.state == "training"
        listed = await marlaas("list")
        (row,) = [line for line in listed.out.splitlines() if line.startswith(f"{tenant}/sums")]
        assert "no gpu worker is polling it" in row
    async with workers(client.connection.temporal, GatedActivities(), queues=(SAMPLE_QUEUE,)):
        snapshot = await until(job, lambda one: REWARD_QUEUE in {problem.where for problem in one.problems})
        assert [str(one) for one in snapshot.problems] == [
            "no worker: marlaas-reward: no cpu worker is polling it; "
            "start one with `marlaas worker --role cpu`"
        ]


async def test_a_failing_activity_shows_its_attempt_and_its_failure(client: Client, spec: Spec) -> None:
    activities = GatedActivities()
    activities.failures = [ApplicationError("the [cpu] is another one", type="OtherFingerprint")] * 2
    job = await client.submit(spec())
    async with workers(client.connection.temporal, activities):
        snapshot = await until(job, lambda one: any(problem.kind == "retrying" for problem in one.problems))
        (problem,) = snapshot.problems
        assert problem.where == f"{job.key}/step/00000000, train"
        assert "OtherFingerprint: the [cpu] is another one" in problem.message
        assert "attempt 2" in problem.message or "attempt 3" in problem.message
        assert (await job.result()).outcome == "completed"


async def test_a_broken_job_is_stuck_and_its_reason_is_shown_everywhere(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    job = await client.submit(spec())
    async with workers(client.connection.temporal, GatedActivities(), workflows=[BrokenJob]):
        snapshot = await until(job, lambda one: one.state == "stuck")
        (problem,) = snapshot.problems
        assert (problem.kind, problem.where) == ("stuck", f"{tenant}/sums")
        assert problem.message.startswith("RuntimeError: no attribute [frobnicate]")
        assert (snapshot.status, snapshot.steps) == ("running", 3)
        for command in ("list", "status"):
            ended = await marlaas(command)
            (row,) = [line for line in ended.out.splitlines() if line.startswith(f"{tenant}/sums")]
            assert "stuck" in row
            assert "RuntimeError: no attribute [frobnicate]" in row


async def test_a_broken_step_makes_its_job_stuck(client: Client, spec: Spec) -> None:
    job = await client.submit(spec())
    async with workers(
        client.connection.temporal, GatedActivities(), workflows=[TrainJob, BrokenStep, Evaluate]
    ):
        snapshot = await until(job, lambda one: one.state == "stuck")
        (problem,) = snapshot.problems
        assert problem.where == f"{job.key}/step/00000000"
        assert problem.message.startswith("RuntimeError: the step's code is broken")
        assert snapshot.progress is not None
        assert snapshot.progress.state == "training"
        assert snapshot.open_steps[0].progress is None


async def test_list_is_of_one_tenant_when_asked(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    assert "no jobs" in (await marlaas("list")).err
    await client.submit(spec())
    await client.submit(spec(tenant=f"{tenant}-other", job="sums"))
    async with asyncio.timeout(30):
        while len(await client.jobs()) < 2:
            await asyncio.sleep(0.1)
    ended = await marlaas("list", "--tenant", tenant, "--json")
    (only,) = [json.loads(line) for line in ended.out.splitlines()]
    assert only["job"] == {"tenant": tenant, "job": "sums"}
    refused = await marlaas("list", "--tenant", "x' OR 1=1")
    assert refused.code == 2


@pytest.mark.parametrize("command", ["watch", "stop", "cancel"])
async def test_commands_name_a_job_that_is_not_there(marlaas: CommandLine, tenant: str, command: str) -> None:
    ended = await marlaas(command, f"{tenant}/none")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: Temporal knows no job {tenant}/none")
