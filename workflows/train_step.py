"""One step: a set of groups is sampled and scored, its turn comes, it is trained on and committed."""

import asyncio
import contextlib
import math
from datetime import datetime, timedelta

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
    Trouble,
)
from ..schemas.manifest import AdapterRevision, PhaseSeconds, StepMetrics
from ..schemas.names import training_group
from ..schemas.seeds import refill_seed
from ..schemas.settings import Setting, with_settings
from .activity_calls import SELECT_BATCH, SNAPSHOT, TRAIN
from .scored_sets import SetProgress, covered, sample_and_score, score_again
from .watchdog import watch

_REFILL_ROUNDS = 8
"""Refills are dispatched in so many rounds at most, which bounds a step's history."""
_FIRST_WAIT = timedelta(minutes=1)
_LONGEST_WAIT = timedelta(hours=1)
_WAITS = 16
"""Times that a paused step scores failed samples again by itself, in about 11 hours; then it is told to."""


def assignments(data: StepInput) -> tuple[GroupAssignment, ...]:
    """The set of a step: a function of the spec, the dataset's parts and the step's number alone."""
    count = data.spec.sampling.groups_per_step
    return tuple(
        GroupAssignment(
            group=training_group(data.step, index),
            prompt_index=data.started.dataset.prompt(data.spec.seed, data.step * count + index),
        )
        for index in range(count)
    )


def refills(data: StepInput, count: int, most: int) -> tuple[GroupAssignment, ...]:
    """The first `count` of a step's at most `most` refill groups.

    Their prompts come from an order of their own, so that the order of the other steps' prompts does not
    depend on how many are needed.
    """
    seed, first = refill_seed(data.spec.seed), data.spec.sampling.groups_per_step
    return tuple(
        GroupAssignment(
            group=training_group(data.step, first + index),
            prompt_index=data.started.dataset.prompt(seed, data.step * most + index),
        )
        for index in range(count)
    )


@workflow.defn(name="TrainStep")
class TrainStep:
    """Takes version t to version t+1, training on a set that version max(0, t-K) generated."""

    @workflow.init
    def __init__(self, data: StepInput) -> None:
        self._data = data
        self._spec = with_settings(data.spec, data.settings, data.step)
        self._settings = data.settings
        self._training = data.training
        self._phase: str = "rollout"
        self._groups = assignments(data)
        self._set = SetProgress()
        self._round = 0
        self._asked_again = False

    @workflow.signal
    def turn(self, revision: AdapterRevision, settings: tuple[Setting, ...] = ()) -> None:
        """The version that this step trains has been committed. Repeats change nothing."""
        if self._training is None:
            self._hold(settings)
        self._training = revision

    @workflow.signal
    def score_again(self, settings: tuple[Setting, ...]) -> None:
        """Ends a pause that too many failed samples have led to: they are scored again.

        Args:
            settings: made by now.
        """
        self._asked_again = True
        self._hold(settings)

    @workflow.query
    def progress(self) -> StepProgress:
        """How far the step is."""
        phase = self._phase
        if phase == "rollout" and self._set.groups_sampled == len(self._groups):
            phase = "reward"
        return StepProgress.model_validate(
            {
                "step": self._data.step,
                "generating_version": self._data.generating.version,
                "phase": phase,
                "groups": len(self._groups),
                "groups_sampled": self._set.groups_sampled,
                "groups_scored": self._set.groups_scored,
            }
        )

    @workflow.run
    async def run(self, data: StepInput) -> StepResult:
        """Runs the step once, whatever is lost on the way."""
        limit = timedelta(minutes=self._spec.durability.stalled_after_minutes)
        watchdog = (
            asyncio.create_task(watch(limit, self._mark, self._tell_stalled)) if data.protocol else None
        )
        try:
            return await self._run(data)
        finally:
            if watchdog is not None:
                watchdog.cancel()

    async def _run(self, data: StepInput) -> StepResult:
        begun = workflow.now()
        await self._sample(self._groups)
        if data.protocol and self._spec.objective.refill_limit:
            await self._refill()
        scored = workflow.now()
        self._phase = "turn"
        await workflow.wait_condition(lambda: self._training is not None)
        revision = self._training
        assert revision is not None
        turned = workflow.now()

        self._phase = "select"
        batch = await self._select()
        selected = workflow.now()

        self._phase = "train"
        candidate = await TRAIN(
            self._spec,
            TrainInput(spec=self._spec, started=data.started, revision=revision, batch=batch.blob),
        )
        trained = workflow.now()

        self._phase = "snapshot"
        assert candidate.metrics is not None
        metrics = candidate.metrics.model_copy(update={"reward_parts": batch.reward_parts})
        phases = self._phases(metrics, [begun, scored, turned, selected, trained])
        committed = await SNAPSHOT(
            self._spec,
            SnapshotInput(
                spec=data.spec,
                candidate=candidate.model_copy(update={"metrics": metrics}),
                groups=self._names,
                phases=phases,
                settings=tuple(one for one in self._settings if one.from_step <= data.step),
                rounds=self._round + 1,
                epoch=data.started.epoch,
            ),
        )
        self._phase = "done"
        ended = workflow.now()
        return StepResult(
            step=data.step,
            revision=committed,
            metrics=metrics,
            seconds=StepSeconds(
                **dict(phases),
                total=(ended - begun).total_seconds(),
                snapshot=(ended - trained).total_seconds(),
            ),
        )

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(one.group for one in self._groups)

    def _hold(self, settings: tuple[Setting, ...]) -> None:
        self._settings = settings
        self._spec = with_settings(self._data.spec, settings, self._data.step)

    async def _sample(self, groups: tuple[GroupAssignment, ...]) -> None:
        await sample_and_score(
            self._spec,
            self._data.started,
            self._data.generating,
            groups,
            samples=self._spec.sampling.samples_per_group,
            temperature=self._spec.sampling.temperature,
            lead=self._data.lead,
            progress=self._set,
        )

    async def _refill(self) -> None:
        """Samples a further group for each whose rewards are equal, up to the objective's limit."""
        wanted = self._spec.sampling.groups_per_step
        most = math.ceil(self._spec.objective.refill_limit * wanted)
        for _ in range(_REFILL_ROUNDS):
            sampled = len(self._groups) - wanted
            count = min(wanted - self._set.groups_varied, most - sampled)
            if count <= 0:
                return
            extra = refills(self._data, sampled + count, most)[sampled:]
            self._groups += extra
            await self._sample(extra)

    async def _select(self) -> SelectedBatch:
        """The batch, once few enough of its samples have failed."""
        while True:
            batch: SelectedBatch = await SELECT_BATCH(
                self._spec,
                SelectInput(
                    spec=self._spec,
                    step=self._data.step,
                    groups=self._names,
                    round=self._round,
                    epoch=self._data.started.epoch,
                ),
            )
            limit = self._spec.rewards.max_failed_share
            if batch.failed_samples <= limit * batch.samples:
                return batch
            reason = (
                f"step {self._data.step}: {batch.failed_samples} of {batch.samples} samples failed, more "
                f"than rewards.max_failed_share {limit} allows; for example: {batch.failure}"
            )
            if not self._data.protocol:
                raise ApplicationError(reason, type="TooManyFailedSamples", non_retryable=True)
            await self._pause(reason)
            self._round += 1
            await score_again(
                self._spec,
                self._data.started,
                self._groups,
                samples=self._spec.sampling.samples_per_group,
                round=self._round,
                progress=self._set,
            )

    async def _pause(self, reason: str) -> None:
        """Waits until failed samples are to be scored again: because of `resume`, or by itself."""
        self._phase = "paused"
        wait = min(_FIRST_WAIT * 2**self._round, _LONGEST_WAIT) if self._round < _WAITS else None
        again = "they are scored again at `resume`" + (f" or after {wait}" if wait else "")
        self._asked_again = False
        await self._tell(Trouble(kind="paused", reason=f"{reason}; {again}"))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(lambda: self._asked_again, timeout=wait)
        await self._tell(None)
        self._phase = "select"

    def _mark(self) -> object:
        """Differs after every move. A step that waits for another, or for a person, does not stand still."""
        waits = workflow.now() if self._phase in ("turn", "paused") else None
        return self._phase, self._set.groups_sampled, self._set.groups_scored, self._round, waits

    async def _tell_stalled(self, stalled: bool) -> None:
        if not stalled:
            await self._tell(None)
            return
        progress, minutes = self.progress(), self._spec.durability.stalled_after_minutes
        reason = (
            f"step {progress.step}: nothing has moved in phase {progress.phase} for {minutes:g} minutes: "
            f"{progress.groups_sampled} of {progress.groups} groups are sampled and "
            f"{progress.groups_scored} scored"
        )
        await self._tell(Trouble(kind="stalled", reason=reason))

    async def _tell(self, trouble: Trouble | None) -> None:
        parent = workflow.info().parent
        assert parent is not None
        job = workflow.get_external_workflow_handle(parent.workflow_id)
        await job.signal("step_trouble", args=[self._data.step, trouble])

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
