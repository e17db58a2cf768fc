"""Watching through the death of servers."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marlaas.client import connect
from marlaas.jobs.observer import JobObserver
from marlaas.jobs.recent_rewards import RecentRewards
from marlaas.jobs.snapshot import JobSnapshot, OpenEvaluation, OpenStep
from marlaas.jobs.watching import watch
from marlaas.storage.object_store import ObjectStore
from marlaas.storage.revisions import Revisions
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import GatedActivities, StoringActivities, workers
from marlaas.tests.front_door.test_rendering import snapshot
from marlaas.tests.front_door.test_watch import stored_base, until
from marlaas.workers.settings import Settings
from marlaas.workers.supervisor import Supervisor
from temporalio.service import RPCError, RPCStatusCode

Spec = Callable[..., dict[str, Any]]


async def test_a_watch_goes_on_when_servers_were_killed(tmp_path: Path, spec: Spec, tenant: str) -> None:
    supervisor = Supervisor(Settings(data=tmp_path / "stack"))
    async with supervisor.running() as addresses, await connect(addresses) as client:
        activities = StoringActivities(client.connection.revisions, await stored_base(client, tenant))
        activities.gate.clear()
        job = await client.submit(spec(steps=2))
        seen: list[JobSnapshot] = []

        async def look() -> None:
            async for one in job.watch(0.1):
                seen.append(one)

        async with workers(client.connection.temporal, activities):
            await until(job, lambda one: bool(one.open_steps))
            looking, waiting = asyncio.create_task(look()), asyncio.create_task(job.result())
            await until(job, lambda _: len(seen) > 0)
            for server in ("temporal", "s3"):
                supervisor.kill(server)
                await supervisor.ready(server)
            activities.gate.set()
            assert (await waiting).outcome == "completed"
            await looking
        assert seen[-1].state == "completed"
        assert seen[-1].rewards == (0.1, 0.2)


async def test_a_watch_waits_for_a_server_that_is_down_when_it_begins(
    tmp_path: Path, spec: Spec, tenant: str
) -> None:
    """And nothing that Temporal's client logs of its retries gets into its output."""
    settings = Settings(data=tmp_path / "stack")
    async with Supervisor(settings).running() as addresses, await connect(addresses) as client:
        job = await client.submit(spec(steps=1))
    marlaas = CommandLine(tmp_path, addresses.environment())
    assert "Connection refused" in (await marlaas("list")).err
    watching = await marlaas.start("watch", str(job.key))
    assert watching.stderr is not None
    assert watching.stdout is not None
    assert b"Waiting for it; ctrl-C ends that" in await watching.stderr.readline()
    async with Supervisor(settings).running():
        assert await watching.stdout.readline() == f"{job.key} running, step –/1\n".encode()
    said = b""
    while b"no answer: Temporal" not in said:
        said += await watching.stdout.readline()
    async with Supervisor(settings).running(), await connect(addresses) as client:
        await client.job(job.key).cancel()
        async with workers(client.connection.temporal, GatedActivities()):
            out, err = await watching.communicate()
    assert (watching.returncode, err) == (1, b"")
    lines = (said + out).decode().splitlines()
    assert all(line.startswith(f"{job.key} ") for line in lines), lines
    assert lines[-1] == f"{job.key} cancelled"


async def test_a_watch_does_not_wait_for_a_namespace_that_is_not_there(
    marlaas: CommandLine, tenant: str
) -> None:
    ended = await marlaas("watch", f"{tenant}/sums", "--temporal-namespace", "nowhere")
    assert ended.code == 1
    assert "nowhere" in ended.err
    assert "Waiting" not in ended.err


class Told(JobObserver):
    """Gives what it is told: a snapshot, or an outage of Temporal."""

    def __init__(self, *looks: JobSnapshot | None) -> None:
        self._looks = list(looks)

    async def snapshot(self) -> JobSnapshot:
        look = self._looks.pop(0)
        if look is None:
            raise RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")
        return look


def no_store() -> RecentRewards:
    store = ObjectStore("127.0.0.1:9", "a", "b", secure=False)
    return RecentRewards(Revisions(store), snapshot().job)


async def test_an_outage_is_a_snapshot_with_what_was_seen_last() -> None:
    looks = (snapshot(), None, snapshot(progress=None), snapshot(progress=None, status="cancelled"))
    found = [one async for one in watch(Told(*looks), no_store(), 0.0)]
    assert [[str(problem) for problem in one.problems] for one in found] == [
        [],
        ["no answer: Temporal: connection refused"],
        [],
        [],
    ]
    assert [one.state for one in found] == ["training", "training", "training", "cancelled"]


async def test_an_outage_at_the_beginning_is_an_error() -> None:
    with pytest.raises(RPCError, match="connection refused"):
        _ = [one async for one in watch(Told(None), no_store(), 0.0)]


async def test_what_was_sampled_stays_sampled_whatever_a_retry_says() -> None:
    def look(step: int, sampled: int) -> JobSnapshot:
        open_step = OpenStep(step=step, progress=None, groups_sampled=sampled)
        evaluation = OpenEvaluation(version=step, progress=None, groups_sampled=sampled + 1)
        return snapshot(open_steps=(open_step,), open_evaluations=(evaluation,))

    looks = (look(1, 4), look(1, 0), None, look(1, 6), look(2, 0), snapshot(status="cancelled"))
    found = [one async for one in watch(Told(*looks), no_store(), 0.0)][:-1]
    assert [one.open_steps[0].groups_sampled for one in found] == [4, 4, 4, 6, 0]
    assert [one.open_evaluations[0].groups_sampled for one in found] == [5, 5, 5, 7, 1]


async def test_a_store_that_does_not_answer_is_a_problem_and_no_end() -> None:
    found = [one async for one in watch(Told(snapshot(3), snapshot(3, status="terminated")), no_store(), 0.0)]
    for one in found:
        (problem,) = one.problems
        assert (problem.kind, problem.where) == ("no answer", "object store")
        assert "127.0.0.1:9" in problem.message
