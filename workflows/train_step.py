"""One step: a set of groups is sampled and scored, its turn comes, it is trained on and committed."""

from datetime import datetime

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from ..schemas.events import (
    GroupAssignment,
    SelectedBatch,
    SelectInput,
    SnapshotInput,
    StepInput,
    StepProgress,
    StepResult,
    StepSeconds,
    TrainInput,
)
from ..schemas.manifest import AdapterRevision, PhaseSeconds, StepMetrics
from ..schemas.names import training_group
from ..schemas.seeds import prompt_at
from .activity_calls import SELECT_BATCH, SNAPSHOT, TRAIN
from .scored_sets import SetProgress, covered, sample_and_score


def assignments(data: StepInput) -> tuple[GroupAssignment, ...]:
    """The set of a step: a function of the spec, the dataset's size and the step's number alone."""
    count = data.spec.sampling.groups_per_step
    return tuple(
        GroupAssignment(
            group=training_group(data.step, index),
            prompt_index=prompt_at(data.spec.seed, data.step * count + index, data.started.dataset.train),
        )
        for index in range(count)
    )


@workflow.defn(name="TrainStep")
class TrainStep:
    """Takes version t to version t+1, training on a set that version max(0, t-K) generated."""

    @workflow.init
    def __init__(self, data: StepInput) -> None:
        self._data = data
        self._training = data.training
        self._phase: str = "rollout"
        self._set = SetProgress()

    @workflow.signal
    def turn(self, revision: AdapterRevision) -> None:
        """The version that this step trains has been committed. Repeats change nothing."""
        self._training = revision

    @workflow.query
    def progress(self) -> StepProgress:
        """How far the step is."""
        groups = self._data.spec.sampling.groups_per_step
        phase = self._phase
        if phase == "rollout" and self._set.groups_sampled == groups:
            phase = "reward"
        return StepProgress.model_validate(
            {
                "step": self._data.step,
                "generating_version": self._data.generating.version,
                "phase": phase,
                "groups": groups,
                "groups_sampled": self._set.groups_sampled,
                "groups_scored": self._set.groups_scored,
            }
        )

    @workflow.run
    async def run(self, data: StepInput) -> StepResult:
        """Runs the step once, whatever is lost on the way."""
        spec, started = data.spec, data.started
        begun = workflow.now()
        groups = assignments(data)
        await sample_and_score(
            spec,
            started,
            data.generating,
            groups,
            samples=spec.sampling.samples_per_group,
            temperature=spec.sampling.temperature,
            lead=data.lead,
            progress=self._set,
        )
        scored = workflow.now()
        self._phase = "turn"
        await workflow.wait_condition(lambda: self._training is not None)
        revision = self._training
        assert revision is not None
        turned = workflow.now()

        self._phase = "select"
        names = tuple(assignment.group for assignment in groups)
        batch = await SELECT_BATCH(spec, SelectInput(spec=spec, step=data.step, groups=names))
        self._refuse_failures(batch)
        selected = workflow.now()

        self._phase = "train"
        candidate = await TRAIN(
            spec, TrainInput(spec=spec, started=started, revision=revision, batch=batch.blob)
        )
        trained = workflow.now()

        self._phase = "snapshot"
        assert candidate.metrics is not None
        phases = self._phases(candidate.metrics, [begun, scored, turned, selected, trained])
        committed = await SNAPSHOT(
            spec, SnapshotInput(spec=spec, candidate=candidate, groups=names, phases=phases)
        )
        self._phase = "done"
        ended = workflow.now()
        return StepResult(
            step=data.step,
            revision=committed,
            metrics=candidate.metrics,
            seconds=StepSeconds(
                **dict(phases),
                total=(ended - begun).total_seconds(),
                snapshot=(ended - trained).total_seconds(),
            ),
        )

    def _refuse_failures(self, batch: SelectedBatch) -> None:
        limit = self._data.spec.rewards.max_failed_share
        if batch.failed_samples > limit * batch.samples:
            raise ApplicationError(
                f"step {self._data.step}: {batch.failed_samples} of {batch.samples} samples failed, more "
                f"than rewards.max_failed_share {limit} allows; for example: {batch.failure}",
                type="TooManyFailedSamples",
                non_retryable=True,
            )

    def _phases(self, metrics: StepMetrics, times: list[datetime]) -> PhaseSeconds:
        begun, scored, turned, selected, trained = times
        rollouts_ended = self._set.rollouts_ended
        sampling = covered(self._set.sampling)
        return PhaseSeconds(
            rollout=(rollouts_ended - begun).total_seconds(),
            reward=(scored - rollouts_ended).total_seconds(),
            turn=(turned - scored).total_seconds(),
            select=(selected - turned).total_seconds(),
            train=(trained - selected).total_seconds(),
            sampling=sampling,
            scoring=covered([*self._set.sampling, *self._set.scoring]) - sampling,
            training=metrics.train_seconds,
        )
