"""The figures of a held-out evaluation."""

import asyncio
import time

from temporalio import activity

from ..schemas.events import EvaluationResult, SummariseInput
from ..schemas.manifest import EvaluationDocument
from ..schemas.names import evaluation_group
from ..schemas.trajectory import ScoredGroup, ScoredSample
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog
from .reward import MissingTrajectories

RIGHT = 1.0
"""The least reward of a right answer."""


class EvaluationActivities:
    """Runs on CPU workers."""

    def __init__(self, revisions: Revisions, log: TrajectoryLog) -> None:
        self._revisions = revisions
        self._log = log

    @activity.defn
    async def summarise_evaluation(self, data: SummariseInput) -> EvaluationResult:
        """Writes the evaluation document of a version once, then drops its groups from the stream.

        Killed after the document was written, or run twice: the document that is there is the answer.

        Raises:
            MissingTrajectories: when a group is not on the stream whole and no document exists.
        """
        key, version = data.key, data.revision.version
        indices = range(data.dataset.held_out)
        sampled = [evaluation_group(version, index, greedy=False) for index in indices]
        greedy = [evaluation_group(version, index, greedy=True) for index in indices]
        document = await self._revisions.evaluation(key, version)
        if document is None:
            document = await self._revisions.put_evaluation(await self._document(data, sampled, greedy))
        await self._log.purge_groups(key, (*sampled, *greedy))
        return result_of(document)

    async def _document(
        self, data: SummariseInput, sampled: list[str], greedy: list[str]
    ) -> EvaluationDocument:
        by_sampling = [s for group in await self._scored(data, sampled) for s in group.samples]
        by_argmax = [s for group in await self._scored(data, greedy) for s in group.samples]
        rewards = [sample.reward for sample in by_sampling if sample.reward is not None]
        return EvaluationDocument(
            key=data.spec.key,
            version=data.revision.version,
            prompts=data.dataset.held_out,
            samples=data.spec.evaluation.samples,
            accuracy=_share_right(by_sampling),
            greedy_accuracy=_share_right(by_argmax),
            reward_mean=sum(rewards) / len(rewards) if rewards else None,
            failed_samples=sum(sample.reward is None for sample in (*by_sampling, *by_argmax)),
            greedy_completions=await self._completions(data, greedy),
            time=time.time(),
        )

    async def _scored(self, data: SummariseInput, groups: list[str]) -> list[ScoredGroup]:
        found = await asyncio.gather(*(self._log.scored(data.key, group) for group in groups))
        missing = [group for group, one in zip(groups, found, strict=True) if one is None]
        if missing:
            raise MissingTrajectories(f"job {data.key}: group {missing[0]} is not on the stream")
        return [one for one in found if one is not None]

    async def _completions(self, data: SummariseInput, groups: list[str]) -> tuple[tuple[int, ...], ...]:
        found = await asyncio.gather(*(self._log.trajectories(data.key, group, 1) for group in groups))
        return tuple(
            tuple(token for token, produced in zip(one.token_ids, one.mask, strict=True) if produced)
            for _, one in (trajectories[0] for trajectories in found)
        )


def result_of(document: EvaluationDocument) -> EvaluationResult:
    """What workflows are told of an evaluation."""
    return EvaluationResult(
        version=document.version,
        accuracy=document.accuracy,
        greedy_accuracy=document.greedy_accuracy,
        failed_samples=document.failed_samples,
    )


def _share_right(samples: list[ScoredSample]) -> float:
    return sum(sample.reward is not None and sample.reward >= RIGHT for sample in samples) / len(samples)
