"""Scoring groups that are on the stream."""

import asyncio
import time

from temporalio import activity

from ..schemas.dataset import Row
from ..schemas.events import GroupAssignment, RewardInput, RewardResult, Span
from ..schemas.trajectory import ScoredGroup, ScoredSample, Trajectory
from ..storage.trajectory_log import TrajectoryLog
from .datasets import Datasets
from .engines import RewardScorer


class MissingTrajectories(Exception):
    """The stream does not hold what a rollout said it published."""


class RewardActivities:
    """Runs on CPU workers."""

    def __init__(self, datasets: Datasets, log: TrajectoryLog, scorer: RewardScorer) -> None:
        self._datasets = datasets
        self._log = log
        self._scorer = scorer

    @activity.defn
    async def reward(self, data: RewardInput) -> RewardResult:
        """Ends every group with one scored message, whatever its rewards do.

        Killed anywhere: scored groups stay, the retry scores the others. Run twice at once: the
        stream keeps the first scored message of a group, and both attempts return that one.

        Raises:
            MissingTrajectories: when a sample of a group is not on the stream.
        """
        dataset = await self._datasets.get(data.spec.key.bucket, data.dataset)
        begun = time.time()
        done = 0

        async def one(assignment: GroupAssignment) -> ScoredGroup:
            nonlocal done
            scored = await self._score(data, assignment, dataset.row(assignment.prompt_index))
            done += 1
            activity.heartbeat(done)
            return scored

        groups = await asyncio.gather(*(one(assignment) for assignment in data.groups))
        failures = [s.failure for group in groups for s in group.samples if s.failure is not None]
        return RewardResult(
            groups=len(groups),
            failed_groups=sum(group.status == "failed" for group in groups),
            failed_samples=len(failures),
            failure=failures[0] if failures else None,
            scoring=Span(began=begun, ended=time.time()),
        )

    async def _score(self, data: RewardInput, assignment: GroupAssignment, row: Row) -> ScoredGroup:
        key = data.spec.key
        found = await self._log.scored(key, assignment.group)
        if found is not None:
            return found[1]
        trajectories = await self._log.trajectories(key, assignment.group, data.samples)
        if len(trajectories) < data.samples:
            raise MissingTrajectories(
                f"job {key}, group {assignment.group}: {data.samples - len(trajectories)} of {data.samples} "
                "samples are not on the stream"
            )
        samples = await asyncio.gather(
            *(self._sample(data, row, *trajectories[sample]) for sample in range(data.samples))
        )
        await self._log.publish(key, _group(assignment, tuple(samples)))
        stored = await self._log.scored(key, assignment.group)
        if stored is None:
            raise MissingTrajectories(f"job {key}, group {assignment.group}: the scored message was purged")
        return stored[1]

    async def _sample(
        self, data: RewardInput, row: Row, sequence: int, trajectory: Trajectory
    ) -> ScoredSample:
        if trajectory.failure is not None:
            return ScoredSample(
                sample=trajectory.sample,
                stream_sequence=sequence,
                reward=None,
                failure=f"sampling: {trajectory.failure}",
            )
        spec = data.spec
        score = await self._scorer.score(spec.key, spec.environment, spec.rewards, row, trajectory.text)
        return ScoredSample(
            sample=trajectory.sample, stream_sequence=sequence, reward=score.reward, failure=score.failure
        )


def _group(assignment: GroupAssignment, samples: tuple[ScoredSample, ...]) -> ScoredGroup:
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
    )
