"""Held-out evaluation of one committed revision."""

import asyncio

from temporalio import workflow

from ..schemas.events import (
    EvaluateInput,
    EvaluationProgress,
    EvaluationResult,
    GroupAssignment,
    SummariseInput,
)
from ..schemas.names import evaluation_group
from .activity_calls import SUMMARISE_EVALUATION
from .scored_sets import SetProgress, sample_and_score

EVALUATION_LEAD = 2
"""Behind rollouts that a step is waiting for, before those that are dispatched far ahead."""


@workflow.defn(name="Evaluate")
class Evaluate:
    """Samples every held-out prompt from one revision, at the training temperature and greedily."""

    @workflow.init
    def __init__(self, data: EvaluateInput) -> None:
        self._data = data
        self._sets = SetProgress()

    @workflow.query
    def progress(self) -> EvaluationProgress:
        """How far the evaluation is."""
        return EvaluationProgress(
            version=self._data.revision.version,
            groups=2 * self._data.started.dataset.held_out,
            groups_sampled=self._sets.groups_sampled,
            groups_scored=self._sets.groups_scored,
        )

    @workflow.run
    async def run(self, data: EvaluateInput) -> EvaluationResult:
        """Writes the evaluation document and returns its figures."""
        await asyncio.gather(
            self._set(data, data.spec.evaluation.samples, data.spec.sampling.temperature),
            self._set(data, 1, 0.0),
        )
        return await SUMMARISE_EVALUATION(
            data.spec,
            SummariseInput(
                spec=data.spec,
                dataset=data.started.dataset,
                revision=data.revision,
                epoch=data.started.epoch,
            ),
        )

    async def _set(self, data: EvaluateInput, samples: int, temperature: float) -> None:
        dataset = data.started.dataset
        groups = [
            GroupAssignment(
                group=evaluation_group(data.revision.version, index, greedy=temperature == 0),
                prompt_index=dataset.train + index,
            )
            for index in range(dataset.held_out)
        ]
        await sample_and_score(
            data.spec,
            data.started,
            data.revision,
            groups,
            samples=samples,
            temperature=temperature,
            lead=EVALUATION_LEAD,
            progress=self._sets,
        )
