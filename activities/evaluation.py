"""The figures of a held-out evaluation."""

import asyncio
import time
from itertools import accumulate

from temporalio import activity

from ..schemas.dataset import DatasetRef
from ..schemas.events import EvaluationResult, SummariseInput
from ..schemas.manifest import EvaluationDocument
from ..schemas.names import evaluation_group
from ..schemas.trajectory import ScoredGroup
from ..storage.revisions import Revisions
from ..storage.trajectory_log import TrajectoryLog
from .held_out_scores import held_out_scores
from .reward import MissingTrajectories


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
        by_sampling, by_argmax = await self._scored(data, sampled), await self._scored(data, greedy)
        every = [sample for group in (*by_sampling, *by_argmax) for sample in group.samples]
        return EvaluationDocument(
            key=data.spec.key,
            version=data.revision.version,
            samples=data.spec.evaluation.samples,
            failed_samples=sum(sample.reward is None for sample in every),
            greedy_completions=await self._completions(data, greedy),
            time=time.time(),
            by_environment={
                name: held_out_scores(by_sampling[part], by_argmax[part])
                for name, part in _held_out_parts(data.dataset).items()
            },
            **dict(held_out_scores(by_sampling, by_argmax)),
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
        reward_mean=document.reward_mean,
        failed_samples=document.failed_samples,
    )


def _held_out_parts(dataset: DatasetRef) -> dict[str, slice]:
    """Of a mixture, where the held-out rows of each environment are that has some."""
    ends = accumulate(part.held_out for part in dataset.parts)
    return {
        part.name: slice(end - part.held_out, end)
        for part, end in zip(dataset.parts, ends, strict=True)
        if part.held_out
    }
