"""Whatever is killed, every adapter revision has the bytes of the undisturbed run."""

import asyncio
import signal

import pytest
from marlaas.workers.supervisor import Supervisor

from .cluster import Cluster, Workers
from .conftest import Jobs

pytestmark = pytest.mark.parametrize("staleness", [0, 2])


async def test_gpu_worker_killed_during_rollout(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    """CASES 1: Nothing is lost or trained twice."""
    worker = workers.ensure("gpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    worker.child("sampler_child").send_signal(signal.SIGSTOP)
    step = await cluster.running(job, "rollout")
    worker.kill()
    workers.ensure("gpu")
    await jobs.assert_undisturbed(job, staleness)
    assert max(await cluster.attempts(job.key, step, "rollout")) > 1


async def test_gpu_worker_killed_during_train(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    worker = workers.ensure("gpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    worker.child("trainer_child").send_signal(signal.SIGSTOP)
    step = await cluster.running(job, "train")
    worker.kill()
    workers.ensure("gpu")
    await jobs.assert_undisturbed(job, staleness)
    assert await cluster.attempts(job.key, step, "train") == [2]


async def test_gpu_worker_killed_between_train_and_snapshot(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    """CASES 2: No batch is trained twice."""
    worker, cpu = workers.ensure("gpu"), workers.ensure("cpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    trainer = worker.child("trainer_child")
    trainer.send_signal(signal.SIGSTOP)
    step = await cluster.running(job, "train")
    cpu.send(signal.SIGSTOP)
    trainer.send_signal(signal.SIGCONT)
    await cluster.pending(job.key, step, "snapshot")
    worker.kill()
    workers.ensure("gpu")
    cpu.send(signal.SIGCONT)
    await jobs.assert_undisturbed(job, staleness)
    assert await cluster.attempts(job.key, step, "train") == [1]


async def test_cpu_worker_killed_during_reward(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    worker = workers.ensure("cpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    for child in worker.children("reward_child"):
        child.send_signal(signal.SIGSTOP)
    await cluster.running(job, "reward")
    worker.kill()
    workers.ensure("cpu")
    await jobs.assert_undisturbed(job, staleness)


async def test_control_worker_killed(cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int) -> None:
    job = await jobs.submit(staleness)
    for version in (1, 4):
        await cluster.committed(job.key, version)
        workers.ensure("control").kill()
        workers.ensure("control")
    await jobs.assert_undisturbed(job, staleness)


async def test_one_of_two_gpu_workers_killed(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    """CASES 107: However a worker is lost, another goes on."""
    first = workers.ensure("gpu")
    second = workers.start("gpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    await cluster.running(job, "rollout")
    first.kill()
    await jobs.assert_undisturbed(job, staleness)
    assert second.running


@pytest.mark.parametrize("server", ["nats", "temporal", "s3"])
async def test_server_killed(
    cluster: Cluster, workers: Workers, jobs: Jobs, supervisor: Supervisor, staleness: int, server: str
) -> None:
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    supervisor.kill(server)
    await supervisor.ready(server)
    await jobs.assert_undisturbed(job, staleness)


async def test_stalled_trainer_that_wakes_after_its_replacement_has_committed(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    worker = workers.ensure("gpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    worker.child("trainer_child").send_signal(signal.SIGSTOP)
    step = await cluster.running(job, "train")
    worker.send(signal.SIGSTOP, tree=True)
    workers.start("gpu")
    await cluster.committed(job.key, step + 2)
    worker.send(signal.SIGCONT, tree=True)
    await jobs.assert_undisturbed(job, staleness)
    assert await cluster.attempts(job.key, step, "train") == [2]


async def test_stalled_sampler_that_wakes_after_its_set_was_committed(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    worker = workers.ensure("gpu")
    job = await jobs.submit(staleness)
    await cluster.committed(job.key, 1)
    worker.child("sampler_child").send_signal(signal.SIGSTOP)
    step = await cluster.running(job, "rollout")
    worker.send(signal.SIGSTOP, tree=True)
    workers.start("gpu")
    await cluster.committed(job.key, step + 1)
    worker.send(signal.SIGCONT, tree=True)
    await jobs.assert_undisturbed(job, staleness)


async def test_sigterm_hands_work_back_without_a_heartbeat_timeout(
    cluster: Cluster, workers: Workers, jobs: Jobs, staleness: int
) -> None:
    """CASES 92: With heartbeats of an hour, only the worker's own word can free its work within the test."""
    worker = workers.ensure("gpu")
    job = await jobs.submit(staleness, heartbeat_seconds=3600)
    await cluster.committed(job.key, 1)
    worker.child("sampler_child").send_signal(signal.SIGSTOP)
    await cluster.running(job, "rollout")
    worker.send(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait) == 0
    workers.ensure("gpu")
    await jobs.assert_undisturbed(job, staleness)
