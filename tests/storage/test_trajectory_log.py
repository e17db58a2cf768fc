"""The trajectory log against a real nats-server: every message once, whatever dies in between."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from marlaas.schemas.names import JobKey
from marlaas.schemas.trajectory import ScoredGroup, ScoredSample, Trajectory
from marlaas.storage.documents import UnreadableDocument
from marlaas.storage.jetstream import LogUnavailable, StreamFull, StreamMissing
from marlaas.storage.object_store import ObjectStore
from marlaas.storage.trajectory_log import TrajectoryLog
from marlaas.tests.servers import NatsServer
from nats.aio.client import Client
from nats.js.client import JetStreamContext

GROUP = "train-00000000-00000"


def trajectory(group: str = GROUP, sample: int = 0, tokens: int = 4, text: str = "") -> Trajectory:
    logprobs = -np.random.default_rng(sample).random(tokens, np.float32)
    return Trajectory(
        group=group,
        sample=sample,
        prompt_index=0,
        version=0,
        adapter="0" * 64,
        token_ids=list(range(tokens)),
        mask=[1] * tokens,
        logprobs=logprobs.tolist(),
        finish_reason="stop",
        text=text,
    )


def scored_group(group: str = GROUP, reward: float = 1.0) -> ScoredGroup:
    sample = ScoredSample(sample=0, stream_sequence=1, reward=reward)
    return ScoredGroup(group=group, prompt_index=0, status="ok", samples=(sample,))


@asynccontextmanager
async def raw_jetstream(server: NatsServer) -> AsyncGenerator[JetStreamContext]:
    client = Client()
    await client.connect(server.url)
    yield client.jetstream()  # pyright: ignore[reportUnknownMemberType]
    await client.close()


@pytest_asyncio.fixture
async def private(tmp_path: Path) -> AsyncGenerator[NatsServer]:
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.kill()


async def test_what_is_published_comes_back(log: TrajectoryLog, key: JobKey) -> None:
    await log.ensure_stream(key)
    sent = [trajectory(sample=sample, text="3 + 4 = 7 🙂") for sample in (0, 1, 3)]
    sequences = [await log.publish(key, message) for message in sent]
    assert await log.trajectories(key, GROUP, 4) == {
        sample: (sequence, message)
        for sample, sequence, message in zip((0, 1, 3), sequences, sent, strict=True)
    }
    assert list(await log.trajectories(key, GROUP, 2)) == [0, 1]
    assert await log.present_samples(key, GROUP) == {0, 1, 3}
    assert await log.scored(key, GROUP) is None
    await log.publish(key, scored_group())
    assert await log.scored(key, GROUP) == scored_group()
    assert await log.count(key) == 4
    assert await log.present_samples(key, "train-00000000-00001") == set()
    assert await log.trajectories(key, "train-00000000-00001", 4) == {}


async def test_float32_logprobs_come_back_to_the_bit(log: TrajectoryLog, key: JobKey) -> None:
    await log.ensure_stream(key)
    patterns = np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32).view(np.float32)
    edges = np.array([0.0, -0.0, 1e-45, -1e-45, -3.4028235e38, -0.1], np.float32)
    values = np.concatenate([patterns[np.isfinite(patterns)], edges])
    message = trajectory(tokens=len(values)).model_copy(update={"logprobs": values.tolist()})
    await log.publish(key, message)
    (_, back), *_ = (await log.trajectories(key, GROUP, 1)).values()
    assert np.array(back.logprobs, np.float32).tobytes() == values.tobytes()


async def test_twenty_publishers_of_one_subject_store_one_message(
    log: TrajectoryLog, nats_server: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    """CASES 113: By subject, not by the broker's window of message ids."""
    await log.ensure_stream(key)
    other = await TrajectoryLog.connect(nats_server.url, store)
    messages = [trajectory(text=f"writer {number}") for number in range(20)]
    logs = (log, other)
    sequences = await asyncio.gather(
        *(logs[number % 2].publish(key, message) for number, message in enumerate(messages))
    )
    assert sequences == [1] * 20
    assert await log.count(key) == 1
    assert (await log.trajectories(key, GROUP, 1))[0][1] in messages
    await other.close()


async def test_nothing_is_lost_or_doubled_when_the_server_is_killed_in_between(
    private: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    """CASES 112: what is sent again is there once."""
    logs = [await TrajectoryLog.connect(private.url, store) for _ in range(2)]
    await logs[0].ensure_stream(key)
    groups = [f"train-00000000-{index:05d}" for index in range(150)]
    started = 0

    async def publish(log: TrajectoryLog, group: str) -> list[int]:
        nonlocal started
        started += 1
        return [await log.publish(key, trajectory(group, sample, tokens=500)) for sample in range(4)]

    async def publish_all(log: TrajectoryLog, seed: int) -> dict[str, list[int]]:
        slots = asyncio.Semaphore(8)

        async def one(group: str) -> list[int]:
            async with slots:
                return await publish(log, group)

        order = random.Random(seed).sample(groups, len(groups))
        return dict(zip(order, await asyncio.gather(*(one(group) for group in order)), strict=True))

    async def disturb() -> None:
        for moment in (60, 160):
            while started < moment:
                await asyncio.sleep(0.001)
            private.kill()
            await asyncio.sleep(0.3)
            private.start()

    disturbance = asyncio.create_task(disturb())
    first, second = await asyncio.gather(*(publish_all(log, seed) for seed, log in enumerate(logs)))
    await disturbance
    assert first == second
    assert await logs[0].count(key) == 600
    assert sorted(sequence for sequences in first.values() for sequence in sequences) == list(range(1, 601))
    for group in groups:
        back = await logs[1].trajectories(key, group, 4)
        assert [sequence for sequence, _ in back.values()] == first[group]
        assert [message for _, message in back.values()] == [
            trajectory(group, sample, tokens=500) for sample in range(4)
        ]
    for log in logs:
        await log.close()


async def test_a_server_that_stays_away_is_an_error_after_a_bounded_time(
    private: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    log = await TrajectoryLog.connect(private.url, store, patience=1.0)
    await log.ensure_stream(key)
    private.kill()
    with pytest.raises(LogUnavailable, match=f"127.0.0.1:{private.port}"):
        await log.publish(key, trajectory())
    private.start()
    assert await log.publish(key, trajectory()) == 1
    await log.close()


async def test_nobody_there_is_an_error_that_keeps_the_password(store: ObjectStore) -> None:
    with pytest.raises(LogUnavailable, match=r"127\.0\.0\.1:9\b") as caught:
        await TrajectoryLog.connect("nats://user:secret@127.0.0.1:9", store, patience=0.5)
    assert "secret" not in str(caught.value)


async def test_a_client_that_the_server_threw_out_comes_back(
    private: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    log = await TrajectoryLog.connect(private.url, store)
    await log.ensure_stream(key)
    private.configure('authorization { user: "other", password: "other" }\n')
    waiting = asyncio.create_task(log.publish(key, trajectory()))
    done, _ = await asyncio.wait([waiting], timeout=1)
    assert not done
    private.configure("")
    assert await waiting == 1
    await log.close()


async def test_a_trajectory_above_the_message_limit_goes_by_the_object_store(
    log: TrajectoryLog, nats_server: NatsServer, key: JobKey
) -> None:
    """CASES 118: The stream has a reference."""
    await log.ensure_stream(key)
    large = trajectory(sample=1, tokens=60_000)
    assert len(large.model_dump_json()) > 1_500_000
    assert [await log.publish(key, large) for _ in range(2)] == [1, 1]
    await log.publish(key, trajectory(sample=0))
    assert list((await log.trajectories(key, GROUP, 2)).values()) == [(2, trajectory(sample=0)), (1, large)]
    async with raw_jetstream(nats_server) as js:
        assert (await js.stream_info(key.stream)).state.bytes < 2000


async def test_a_full_stream_is_back_pressure(
    nats_server: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    log = await TrajectoryLog.connect(nats_server.url, store, max_stream_bytes=100_000, patience=1.0)
    await log.ensure_stream(key)
    filler = [trajectory("train-00000000-00000", sample, text="x" * 30_000) for sample in range(3)]
    sequences = [await log.publish(key, message) for message in filler]
    late = trajectory("train-00000001-00000", text="x" * 30_000)
    with pytest.raises(StreamFull, match=f"{key.stream}.*maximum bytes exceeded"):
        await log.publish(key, late)
    assert await log.publish(key, filler[1]) == sequences[1]
    waiting = asyncio.create_task(log.publish(key, late))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    await log.purge_groups(key, ["train-00000000-00000"])
    await waiting
    assert await log.present_samples(key, "train-00000001-00000") == {0}
    await log.close()


async def test_purging_takes_whole_groups_and_may_be_repeated(log: TrajectoryLog, key: JobKey) -> None:
    await log.ensure_stream(key)
    groups = [f"train-00000000-0000{index}" for index in range(3)]
    for group in groups:
        for sample in range(3):
            await log.publish(key, trajectory(group, sample))
        await log.publish(key, scored_group(group))
    for _ in range(2):
        await log.purge_groups(key, groups[:2])
        assert await log.count(key) == 4
    assert await log.trajectories(key, groups[0], 3) == {}
    assert await log.scored(key, groups[1]) is None
    assert len(await log.trajectories(key, groups[2], 3)) == 3


async def test_a_late_message_of_a_purged_group_can_be_purged_again(log: TrajectoryLog, key: JobKey) -> None:
    await log.ensure_stream(key)
    first = await log.publish(key, trajectory())
    await log.purge_groups(key, [GROUP])
    assert await log.publish(key, trajectory()) > first
    await log.purge_groups(key, [GROUP])
    assert await log.count(key) == 0


async def test_sequences_are_not_used_again_after_a_purge_and_a_crash(
    private: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    log = await TrajectoryLog.connect(private.url, store)
    await log.ensure_stream(key)
    first = await log.publish(key, trajectory())
    await log.purge_groups(key, [GROUP])
    private.restart()
    assert await log.publish(key, trajectory()) > first
    await log.close()


async def test_a_job_without_a_stream_is_said_at_once(log: TrajectoryLog, key: JobKey) -> None:
    for call in (
        log.publish(key, trajectory()),
        log.trajectories(key, GROUP, 1),
        log.scored(key, GROUP),
        log.present_samples(key, GROUP),
        log.count(key),
    ):
        with pytest.raises(StreamMissing, match=key.stream):
            await call
    await log.purge_groups(key, [GROUP])
    await log.delete_stream(key)


async def test_a_stream_is_made_once_and_kept_as_it_is(
    log: TrajectoryLog, nats_server: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    await asyncio.gather(*(log.ensure_stream(key) for _ in range(4)))
    await log.publish(key, trajectory())
    other = await TrajectoryLog.connect(nats_server.url, store, max_stream_bytes=5_000_000)
    await other.ensure_stream(key)
    assert await log.count(key) == 1
    await other.close()
    await log.delete_stream(key)
    await log.ensure_stream(key)
    assert await log.count(key) == 0


async def test_a_server_without_storage_to_promise_says_so(
    nats_server: NatsServer, store: ObjectStore, key: JobKey
) -> None:
    log = await TrajectoryLog.connect(nats_server.url, store, max_stream_bytes=1 << 42, patience=0.2)
    with pytest.raises(StreamFull, match=f"{key.stream}.*insufficient storage.* jobs have a stream there"):
        await log.ensure_stream(key)
    await log.close()


async def test_jobs_with_alike_names_do_not_meet(log: TrajectoryLog, key: JobKey) -> None:
    one = JobKey(tenant="a-b", job=f"c-{key.job[:8]}")
    two = JobKey(tenant="a", job=f"b-c-{key.job[:8]}")
    assert one.stream != two.stream
    for job in (one, two):
        await log.ensure_stream(job)
        await log.publish(job, trajectory(text=str(job)))
    for job in (one, two):
        assert await log.count(job) == 1
        assert (await log.trajectories(job, GROUP, 1))[0][1].text == str(job)
    await log.purge_groups(one, [GROUP])
    await log.delete_stream(one)
    assert await log.count(two) == 1


async def test_a_newer_format_is_refused_by_name(
    log: TrajectoryLog, nats_server: NatsServer, key: JobKey
) -> None:
    await log.ensure_stream(key)
    newer = trajectory().model_dump_json().replace('"format":1', '"format":3,"images":[]')
    async with raw_jetstream(nats_server) as js:
        await js.publish(key.trajectory_subject(GROUP, 0), newer.encode())
        await js.publish(key.scored_subject(GROUP, 0), b"not json")
    with pytest.raises(UnreadableDocument, match=f"{GROUP}.0: Trajectory has format 3; .* format 1"):
        await log.trajectories(key, GROUP, 1)
    with pytest.raises(UnreadableDocument, match=f"scored.{GROUP}: not a ScoredGroup"):
        await log.scored(key, GROUP)


async def test_a_step_of_1024_trajectories_goes_through(log: TrajectoryLog, key: JobKey) -> None:
    await log.ensure_stream(key)
    groups = [f"train-00000000-{index:05d}" for index in range(128)]
    await asyncio.gather(
        *(log.publish(key, trajectory(group, sample, 32)) for group in groups for sample in range(8))
    )
    read = await asyncio.gather(*(log.trajectories(key, group, 8) for group in groups))
    assert all(list(found) == list(range(8)) for found in read)
    await log.purge_groups(key, groups)
    assert await log.count(key) == 0
