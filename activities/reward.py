"""Scoring groups that are on the stream."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from temporalio import activity

from ..environments.invalid import InvalidEnvironment
from ..schemas.dataset import Row
from ..schemas.events import GroupAssignment, RewardInput, RewardResult, Span
from ..schemas.trajectory import NOT_SAMPLED, ScoredGroup, ScoredSample, Trajectory
from ..storage.trajectory_log import TrajectoryLog
from .datasets import Datasets
from .engines import RewardScorer

T = TypeVar("T")


class MissingTrajectories(Exception):
    """The stream does not hold what a rollout said it published."""


class UnusableReward(Exception):
    """The reward cannot be loaded now. It could when the job began, so it may again: the job waits."""


class RewardActivities:
    """Runs on CPU workers.

    Args:
        groups_at_once: of one tenant that are in memory here, however many of its activities are.
    """

    def __init__(
        self, datasets: Datasets, log: TrajectoryLog, scorer: RewardScorer, *, groups_at_once: int
    ) -> None:
        self._datasets = datasets
        self._log = log
        self._scorer = scorer
        self._room = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(groups_at_once))

    @activity.defn
    async def reward(self, data: RewardInput) -> RewardResult:
        """Ends every group with one scored message, whatever its rewards do.

        Killed anywhere: scored groups stay, the retry scores the others. Run twice at once: the
        stream keeps the first scored message of a group and round, and both attempts return that one.
        A later round leaves groups without a failed score alone.

        Raises:
            MissingTrajectories: when a sample of a group is not on the stream.
            UnusableReward: when the reward cannot be loaded; it could when the job started.
            ChangedReward: when the reward's code is not what the job started with.
        """
        dataset = await self._datasets.get(data.key.bucket, data.dataset)
        begun = time.time()
        done = 0

        async def one(assignment: GroupAssignment) -> ScoredGroup:
            nonlocal done
            async with self._room[data.spec.tenant]:
                scored = await self._score(data, assignment, dataset.row(assignment.prompt_index))
            done += 1
            activity.heartbeat(done)
            return scored

        groups = await _all(one(assignment) for assignment in data.groups)
        failures = [s.failure for group in groups for s in group.samples if s.failure is not None]
        return RewardResult(
            groups=len(groups),
            varied_groups=sum(group.varied for group in groups),
            failed_groups=sum(group.status == "failed" for group in groups),
            failed_samples=len(failures),
            failure=failures[0] if failures else None,
            scoring=Span(began=begun, ended=time.time()),
        )

    async def _score(self, data: RewardInput, assignment: GroupAssignment, row: Row) -> ScoredGroup:
        key = data.key
        before = await self._log.last_scored(key, assignment.group, data.round)
        if before is not None and (before.round == data.round or not before.failed_scores):
            return before
        kept = {sample.sample: sample for sample in before.samples} if before else {}
        trajectories = await self._log.trajectories(key, assignment.group, data.samples)
        if len(trajectories) < data.samples:
            raise MissingTrajectories(
                f"job {key}, group {assignment.group}: {data.samples - len(trajectories)} of {data.samples} "
                "samples are not on the stream"
            )
        samples = await _all(
            self._sample(data, row, *trajectories[sample], kept.get(sample)) for sample in range(data.samples)
        )
        await self._log.publish(key, _group(assignment, tuple(samples), data.round))
        stored = await self._log.scored(key, assignment.group, data.round)
        if stored is None:
            raise MissingTrajectories(f"job {key}, group {assignment.group}: the scored message was purged")
        return stored

    async def _sample(
        self, data: RewardInput, row: Row, sequence: int, trajectory: Trajectory, before: ScoredSample | None
    ) -> ScoredSample:
        if before is not None and before.reward is not None:
            return before
        if trajectory.failure is not None:
            return ScoredSample(
                sample=trajectory.sample,
                stream_sequence=sequence,
                reward=None,
                failure=f"{NOT_SAMPLED}{trajectory.failure}",
            )
        spec = data.spec
        try:
            score = await self._scorer.score(
                spec.key,
                spec.environments[row.environment],
                spec.rewards,
                row,
                trajectory.text,
                code=data.dataset.code_of(row.environment),
            )
        except InvalidEnvironment as fault:
            raise UnusableReward(
                f"{fault}; it was fine when the job began: mend it and the job goes on"
            ) from fault
        return ScoredSample(
            sample=trajectory.sample,
            stream_sequence=sequence,
            reward=score.reward,
            failure=score.failure,
            parts=score.parts,
        )


async def _all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results; after a failure nothing goes on, so that the retry finds no rival."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _group(assignment: GroupAssignment, samples: tuple[ScoredSample, ...], round: int) -> ScoredGroup:
    """A group needs two rewards to have an advantage at all, or one when it has one sample."""
    rewarded = sum(sample.reward is not None for sample in samples)
    failed = rewarded < min(2, len(samples))
    first = next((sample.failure for sample in samples if sample.failure is not None), None)
    return ScoredGroup(
        group=assignment.group,
        prompt_index=assignment.prompt_index,
        status="failed" if failed else "ok",
        reason=f"{rewarded} of {len(samples)} samples have a reward; for example: {first}"
        if failed
        else None,
        samples=samples,
        round=round,
    )
