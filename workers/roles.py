"""The worker processes: control runs workflows, cpu runs rewards and bookkeeping, gpu runs engines."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from ..activities.close import CloseActivities
from ..activities.datasets import Datasets
from ..activities.evaluation import EvaluationActivities
from ..activities.reopen import ReopenActivities
from ..activities.report import ReportActivities
from ..activities.reward import RewardActivities
from ..activities.rollout import RolloutActivities
from ..activities.select_batch import SelectActivities
from ..activities.snapshot import SnapshotActivities
from ..activities.start import StartActivities
from ..activities.train import TrainActivities
from ..schemas.names import CPU_QUEUE, REWARD_QUEUE, SAMPLE_QUEUE, TASK_QUEUE, TRAIN_QUEUE
from ..storage.blob_cache import BlobCache
from ..storage.object_store import ObjectStore
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog
from ..workflows.plugin import WORKFLOWS, temporal_plugin
from .dataset_child import build_dataset_in_child
from .engine_processes import SamplerProcess, TrainerProcess, engine_environment
from .reward_pool import RewardPool
from .scratch import scratch_folder
from .search_attributes import ensure_search_attributes
from .settings import Addresses
from .tracker_child import TrackerProcesses

Role = Literal["control", "cpu", "gpu"]

_log = logging.getLogger(__name__)

_HAND_BACK = timedelta(seconds=10)
"""Activities hand their work back at once; this bounds one that is stuck in a system call."""
_NEWS = timedelta(seconds=1)
"""How often heartbeats carry what `watch` shows; else it would wait for most of the heartbeat timeout."""
_ROLLOUTS_AT_ONCE = 8
"""Rollouts share one batch, so a few keep its slots full while others end."""
_BOOKKEEPING_AT_ONCE = 64
_REWARDS_AT_ONCE = 1000
"""Far more than the reward pool scores at once: a waiting activity costs little, and the pool shares its
slots fairly only among the tenants whose activities are here. A tenant fills these alone with 1,000 parts
in hand, 7 of the largest sets; Temporal's fairness key shares out what gets free then."""
_CACHED_WORKFLOWS = 200


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker may use of its machine.

    Attributes:
        data: folder for models and cached blobs.
        device: torch device of a gpu worker.
        threads: OpenMP threads of each engine process.
        reward_processes: of a cpu worker.
        cache_bytes: bound of the local blob cache.
    """

    data: Path
    device: str = "cpu"
    threads: int = max(1, os.cpu_count() or 1)
    reward_processes: int = max(1, os.cpu_count() or 1)
    cache_bytes: int = 8 << 30


async def run_worker(role: Role, addresses: Addresses, options: WorkerOptions) -> None:
    """Runs a worker until SIGTERM or SIGINT, then hands its work back and returns."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    async with AsyncExitStack() as stack:
        client = await _connect(role, addresses, ending)
        if client is None:
            return
        workers = await _BUILDERS[role](client, addresses, options, stack)
        for worker in workers:
            await stack.enter_async_context(_running(worker, ending))
        _log.info("%s worker %s is ready", role, os.getpid())
        await ending.wait()
        _log.info("%s worker %s hands its work back", role, os.getpid())


async def _connect(role: Role, addresses: Addresses, ending: asyncio.Event) -> Client | None:
    """Waits for Temporal, which may start after its workers; None when the worker is told to end first."""
    while not ending.is_set():
        try:
            return await Client.connect(
                addresses.temporal_address,
                namespace=addresses.temporal_namespace,
                identity=f"{role}-{os.getpid()}@{socket.gethostname()}",
                plugins=[temporal_plugin()],
            )
        except (RPCError, RuntimeError) as error:
            _log.warning("%s worker waits for Temporal at %s: %s", role, addresses.temporal_address, error)
            await asyncio.sleep(1)
    return None


@asynccontextmanager
async def _running(worker: Worker, ending: asyncio.Event) -> AsyncGenerator[None]:
    """A worker that ends by itself, which it does after a fatal error, ends the process."""
    task = asyncio.create_task(worker.run())
    task.add_done_callback(lambda _: ending.set())
    try:
        yield
    finally:
        await worker.shutdown()
        await task


async def _control(
    client: Client, addresses: Addresses, options: WorkerOptions, stack: AsyncExitStack
) -> list[Worker]:
    await ensure_search_attributes(client)
    return [
        Worker(
            client,
            task_queue=TASK_QUEUE,
            workflows=list(WORKFLOWS),
            max_cached_workflows=_CACHED_WORKFLOWS,
        )
    ]


async def _cpu(
    client: Client, addresses: Addresses, options: WorkerOptions, stack: AsyncExitStack
) -> list[Worker]:
    store, log = await _stores(addresses, stack)
    revisions, datasets = Revisions(store), Datasets(store)
    # One more than asked for, since a tenant that is alone is denied one.
    at_once = options.reward_processes + 1
    pool = RewardPool(at_once, processes=2 * at_once)
    stack.push_async_callback(pool.close)
    start = StartActivities(store, revisions, pool, build_dataset_in_child)
    rewards = RewardActivities(datasets, log, pool, groups_at_once=2 * at_once)
    evaluation = EvaluationActivities(revisions, log)
    return [
        Worker(
            client,
            task_queue=CPU_QUEUE,
            activities=[
                start.check_name,
                ReopenActivities(revisions, log).reopen_job,
                start.prepare_dataset,
                SelectActivities(store, log).select_batch,
                SnapshotActivities(revisions, log).snapshot,
                evaluation.summarise_evaluation,
                ReportActivities(store, revisions, TrackerProcesses(options.data / "tracking")).report,
                CloseActivities(revisions, log).close_job,
                # Jobs that ran when rewards got their own queue have tasks here, with all their retries.
                # Replay does not compare queues, so those jobs' later rewards go to the new one.
                rewards.reward,
            ],
            max_concurrent_activities=_BOOKKEEPING_AT_ONCE,
            graceful_shutdown_timeout=_HAND_BACK,
            max_heartbeat_throttle_interval=_NEWS,
        ),
        Worker(
            client,
            task_queue=REWARD_QUEUE,
            activities=[rewards.reward],
            max_concurrent_activities=_REWARDS_AT_ONCE,
            graceful_shutdown_timeout=_HAND_BACK,
            max_heartbeat_throttle_interval=_NEWS,
        ),
    ]


async def _gpu(
    client: Client, addresses: Addresses, options: WorkerOptions, stack: AsyncExitStack
) -> list[Worker]:
    store, log = await _stores(addresses, stack)
    cache = BlobCache(store, options.data / "cache", options.cache_bytes)
    environment = engine_environment(options.threads, options.data / "models", options.device)
    sampler, trainer = SamplerProcess(environment), TrainerProcess(environment)
    stack.push_async_callback(sampler.close)
    stack.push_async_callback(trainer.close)
    scratch = stack.enter_context(scratch_folder(options.data / "scratch"))
    rollouts = RolloutActivities(cache, Datasets(store), log, sampler)
    train = TrainActivities(cache, Revisions(store), trainer, scratch)
    return [
        Worker(
            client,
            task_queue=SAMPLE_QUEUE,
            activities=[rollouts.rollout],
            max_concurrent_activities=_ROLLOUTS_AT_ONCE,
            graceful_shutdown_timeout=_HAND_BACK,
            max_heartbeat_throttle_interval=_NEWS,
        ),
        Worker(
            client,
            task_queue=TRAIN_QUEUE,
            activities=[train.initialise, train.train],
            max_concurrent_activities=1,
            graceful_shutdown_timeout=_HAND_BACK,
            max_heartbeat_throttle_interval=_NEWS,
        ),
    ]


async def _stores(addresses: Addresses, stack: AsyncExitStack) -> tuple[ObjectStore, TrajectoryLog]:
    store = ObjectStore(
        addresses.s3_endpoint, addresses.s3_access_key, addresses.s3_secret_key, secure=addresses.s3_secure
    )
    stack.callback(store.close)
    log = await TrajectoryLog.connect(addresses.nats_url, store)
    stack.push_async_callback(log.close)
    return store, log


_BUILDERS = {"control": _control, "cpu": _cpu, "gpu": _gpu}
