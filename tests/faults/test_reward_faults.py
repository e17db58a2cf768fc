"""Rewards that hang or change under a running job, with real workers: who has to wait, and who not."""

import dataclasses
from pathlib import Path

import pytest
from marlaas.schemas.names import CPU_QUEUE, TASK_QUEUE
from marlaas.workflows import scored_sets
from marlaas.workflows.plugin import WORKFLOWS
from temporalio.worker import Worker

from .cluster import Cluster, Workers, until
from .conftest import Jobs

BOOKKEEPING_SLOTS = 64


async def test_a_tenant_whose_rewards_hang_holds_up_no_other(
    cluster: Cluster, workers: Workers, jobs: Jobs
) -> None:
    """CASES 14: more hanging reward activities than the bookkeeping has slots, none of which ends here."""
    calm = jobs.spec(0)
    hanging = await cluster.client.submit(
        {
            **calm,
            "tenant": "hanging",
            "environment": {**calm["environment"], "reward": "rewards:hangs"},
            "rewards": {"wall_seconds": 3600},
            "sampling": {
                "groups_per_step": BOOKKEEPING_SLOTS + 6,
                "samples_per_group": 16,
                "max_prompt_tokens": 64,
                "max_tokens": 2,
                "slots": 16,
            },
        }
    )

    async def all_hang() -> bool:
        return await cluster.in_hand(hanging.key, 0, "reward") > BOOKKEEPING_SLOTS

    await until(all_hang)
    await jobs.assert_undisturbed(await jobs.submit(0), 0)
    progress = (await hanging.progress()).progress
    assert progress is not None
    assert (progress.version, progress.open_steps) == (0, (0,))
    assert await cluster.in_hand(hanging.key, 0, "reward") > BOOKKEEPING_SLOTS
    await hanging.cancel()
    workers.ensure("cpu").kill()  # whether it notices the cancellation soon is not this test's matter


async def test_a_job_whose_reward_is_edited_waits_until_it_is_restored(
    cluster: Cluster, workers: Workers, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 83: changed, then broken; the job says why it waits and ends with the bytes of a calm one."""
    file = tmp_path / "edited.py"
    source = (Path(__file__).parent / "rewards.py").read_text()
    file.write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    workers.ensure("cpu").kill()
    worker = workers.ensure("cpu")
    calm = jobs.spec(0)
    job = await cluster.client.submit(
        {**calm, "environment": {**calm["environment"], "reward": "edited:lower_case"}}
    )
    await cluster.committed(job.key, 1)

    async def told(text: str) -> None:
        async def is_told() -> bool:
            return any(text in str(one) for one in (await job.progress()).problems)

        await until(is_told)

    file.write_text(source.replace("islower", "isupper"))
    for child in worker.children("reward_child"):
        child.kill()
    await told("ChangedReward: environment.reward: is 'edited:lower_case'; the file of edited changed")
    file.write_text("import no_such_library")
    await told("UnusableReward: environment.reward: is 'edited:lower_case'; importing it failed")
    file.write_text(source)
    await jobs.assert_undisturbed(job, 0)
    worker.kill()


async def test_rewards_of_the_queue_of_before_survive_the_upgrade(
    cluster: Cluster, workers: Workers, jobs: Jobs
) -> None:
    """A control worker of before put rewards on the queue of the bookkeeping."""
    workers.ensure("control").kill()
    worker = workers.ensure("cpu")
    with pytest.MonkeyPatch.context() as before:
        before.setattr(scored_sets, "REWARD", dataclasses.replace(scored_sets.REWARD, queue=CPU_QUEUE))
        async with Worker(
            cluster.client.connection.temporal, task_queue=TASK_QUEUE, workflows=list(WORKFLOWS)
        ):
            job = await jobs.submit(2)
            await cluster.committed(job.key, 1)
            for child in worker.children("reward_child"):
                child.suspend()
            await cluster.running(job, "reward")
            worker.kill()
            (queue,) = {one.queue for one in (await job.progress()).pending if one.name == "reward"}
            assert queue == CPU_QUEUE
    workers.ensure_all()
    await jobs.assert_undisturbed(job, 2)
