"""A training job: opens its steps in order, keeps what they commit, and goes on for as long as it has to."""

import asyncio
from collections.abc import Iterable
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

from ..schemas.events import (
    EvaluateInput,
    EvaluationResult,
    JobProgress,
    JobResult,
    JobState,
    StepInput,
    StepResult,
    Trouble,
)
from ..schemas.job_spec import InvalidJobSpec, JobSpec
from ..schemas.manifest import AdapterRevision
from ..schemas.names import COMMITTED_MEMO
from ..schemas.settings import Setting, settle, with_settings
from .job_end import close_job
from .job_input import job_input
from .job_start import reopen_job, start_job
from .open_evaluations import OpenEvaluations, first_and_latest
from .open_steps import OpenSteps, Turn
from .reporting import FINAL_TRIES, Reporter
from .search_attributes import Labels, keep_labelled

_CLOSES = "close-job"
"""Patch: jobs that ended before it left their streams."""
_REPORTS = "metric-reports"
"""Patch: jobs that began before it report from their next continue-as-new on."""
Phase = Literal["starting", "evaluating", "training", "paused", "stalled", "stopping", "done"]


@workflow.defn(name="TrainJob")
class TrainJob:
    """One job, from the claim of its name to the end of its stream.

    Step t opens when version max(0, t-K) is committed, so at most K+1 steps are open at once.
    """

    def __init__(self) -> None:
        self._given: JobSpec | None = None
        self._current: JobSpec | None = None
        self._state: JobState | None = None
        self._paused = False
        self._stopping = False
        self._finished = False
        self._protocol = 0
        self._steps = OpenSteps()
        self._untrained: str | None = None
        self._refused: str | None = None
        self._evaluations = OpenEvaluations()
        self._reporter: Reporter | None = None

    @workflow.signal
    def pause(self) -> None:
        """Opens no further step until `resume`; open steps end as usual."""
        self._paused = True

    @workflow.signal
    async def resume(self) -> None:
        """Ends a pause, also one that failed samples have led to: those are scored again."""
        self._paused = False
        if self._steps.paused:
            await self._steps.score_again(self._committed.settings)

    @workflow.signal
    def stop(self) -> None:
        """Ends the job after the steps that are open: what was sampled is trained on and committed.

        A step that is paused because samples failed, and those after it, are given up.
        """
        self._stopping = True

    @workflow.signal
    def step_trouble(self, step: int, trouble: Trouble | None) -> None:
        """A step says why it does not go on, or that it does."""
        self._steps.note(step, trouble)

    @workflow.update(name="set")
    def set_now(self, changes: dict[str, Any]) -> tuple[Setting, ...]:
        """Gives fields of the spec that may change while the job runs other values.

        Args:
            changes: values by path, for example `{"optimizer.learning_rate": 1e-5}`.

        Returns:
            Each with the first step that it holds for.
        """
        return self._set(changes)

    @set_now.validator
    def refuse_changes(self, changes: dict[str, Any]) -> None:
        """Refuses what can't be set, and leaves no trace of it in the job's history."""
        try:
            self._settings_of(changes)
        except InvalidJobSpec as error:
            raise ApplicationError(str(error), type="InvalidJobSpec") from None

    @workflow.signal(name="set")
    def set_later(self, changes: Any) -> None:
        """The same without an answer: `progress` shows what was set, or why it was refused."""
        try:
            self._set(changes)
        except InvalidJobSpec as error:
            self._refused = str(error)

    @workflow.query
    def progress(self) -> JobProgress:
        """Where the job is."""
        state = self._state
        return JobProgress(
            state=self._phase(),
            steps=self._current.steps if self._current else 0,
            version=state.recent[-1].version if state else None,
            open_steps=self._steps.numbers,
            evaluations=state.evaluations if state else (),
            last=state.last if state else None,
            reason=self._steps.trouble.reason if self._steps.trouble else None,
            settings=state.settings if state else (),
            refused=self._refused,
            trackers=self._reporter.trackers if self._reporter else (),
        )

    @workflow.run
    async def run(self, *inputs: Any) -> JobResult:
        """Trains a job spec, which is checked here: a typed argument that fails would be retried for ever.

        Args:
            inputs: the spec as JSON; from continue-as-new also a `JobState`.
        """
        given = job_input(inputs)
        self._given = self._current = given.spec
        self._protocol = int(workflow.patched("steps-tell-their-trouble"))
        if given.state is not None:
            self._take_up(given.state)
        labels = asyncio.create_task(keep_labelled(self._labels)) if self._protocol else None
        try:
            if given.resumed is not None:
                await self._reopen(given.resumed)
            elif self._state is None:
                self._state = await start_job(self._given)
            if workflow.patched(_REPORTS):
                self._reporter = Reporter(self._given, self._committed.reported, self._reportable)
            await self._train()
            await self._evaluate_last()
            await self._end_reports(final=True, tries=FINAL_TRIES)
            if workflow.patched(_CLOSES):
                await close_job(self._given, self._committed.started.epoch)
        except asyncio.CancelledError:
            await self._end_early(self._given, cancelled=True)
            raise
        except FailureError:
            await self._end_early(self._given, cancelled=False)
            raise
        finally:
            if labels is not None:
                labels.cancel()
            await self._end_reports(final=True)
        self._finished = True
        return JobResult(
            outcome="completed" if self._version == self._spec.steps else "stopped",
            revision=self._committed.recent[-1],
            evaluations=self._committed.evaluations,
            steps=self._spec.steps,
            untrained=self._untrained,
        )

    @property
    def _spec(self) -> JobSpec:
        """With the settings that were made while the job ran."""
        assert self._current is not None
        return self._current

    @property
    def _committed(self) -> JobState:
        assert self._state is not None
        return self._state

    @property
    def _version(self) -> int:
        return self._committed.recent[-1].version

    def _labels(self) -> Labels:
        last = self._state.last if self._state else None
        return Labels(
            tenant=self._spec.tenant,
            model=self._spec.model,
            state=self._phase(),
            version=self._version if self._state else None,
            reward=last.metrics.reward_mean if last else None,
        )

    def _reportable(self) -> tuple[int, int]:
        """The newest version, and the version up to which every evaluation has ended."""
        return self._version, min((self._version, *(one - 1 for one in self._evaluations.running)))

    def _phase(self) -> Phase:
        if self._finished:
            return "done"
        if self._state is None:
            return "starting"
        if self._stopping:
            return "stopping"
        if self._steps.trouble:
            return self._steps.trouble.kind
        if self._evaluations.tasks and not self._steps.tasks:
            return "evaluating"
        return "paused" if self._paused else "training"

    def _take_up(self, state: JobState) -> None:
        assert self._given is not None
        self._state = state
        self._current = with_settings(self._given, state.settings, state.next_step)
        self._paused |= state.paused
        self._stopping |= state.stopping

    async def _reopen(self, changes: dict[str, Any]) -> None:
        """Goes on from the newest version of a job that has ended."""
        assert self._given is not None
        self._take_up(await reopen_job(self._given))
        if changes:
            try:
                self._set(changes)
            except InvalidJobSpec as error:
                raise ApplicationError(str(error), type="InvalidJobSpec", non_retryable=True) from None

    async def _train(self) -> None:
        """Opens steps until all are done, the job is stopped, or its history is long enough."""
        if self._version == 0 and not self._committed.evaluations:
            self._evaluate(self._committed.recent[-1])
            await self._settled()
        while True:
            await workflow.wait_condition(
                lambda: self._may_open() or self._ended() or self._drained() or self._blocks_the_end()
            )
            self._raise_failures()
            if self._may_open():
                self._open_step()
            elif self._blocks_the_end():
                await self._give_up_steps()
            elif self._drained():
                if self._stopping or self._committed.next_step == self._spec.steps:
                    return
                await self._end_reports(final=False)
                await workflow.wait_condition(workflow.all_handlers_finished)
                assert self._given is not None
                workflow.continue_as_new(args=[self._given.model_dump(mode="json"), self._carried()])

    def _opens_no_more(self) -> bool:
        return (
            self._stopping
            or self._committed.next_step >= self._spec.steps
            or workflow.info().is_continue_as_new_suggested()
        )

    def _may_open(self) -> bool:
        ahead = self._committed.next_step - self._version
        return not self._opens_no_more() and not self._paused and ahead <= self._spec.max_staleness

    def _drained(self) -> bool:
        """Nothing is open, and nothing will be: children left open would not survive continue-as-new."""
        return self._opens_no_more() and not self._steps.tasks and not self._evaluations.tasks

    def _blocks_the_end(self) -> bool:
        return self._stopping and bool(self._steps.paused)

    async def _give_up_steps(self) -> None:
        """Ends the open steps untrained: the first is paused, and the others wait for it."""
        assert self._steps.trouble is not None
        self._untrained = (
            f"{self._steps.trouble.reason}; given up by `stop`: steps {list(self._steps.numbers)}"
        )
        await self._cancel(self._steps.tasks)
        self._steps.take_ended()

    def _ended(self) -> bool:
        return any(task.done() for task in (*self._steps.tasks, *self._evaluations.tasks))

    def _raise_failures(self) -> None:
        """Forgets children that have ended, and raises the failure of one that failed."""
        for task in (*self._steps.take_ended(), *self._evaluations.take_ended()):
            task.result()

    async def _settled(self) -> None:
        while self._steps.tasks or self._evaluations.tasks:
            await workflow.wait_condition(self._ended)
            self._raise_failures()

    def _open_step(self) -> None:
        step, state = self._committed.next_step, self._committed
        self._state = state.model_copy(update={"next_step": step + 1})
        generating = self._revision(max(0, step - self._spec.max_staleness))
        assert generating is not None
        assert self._given is not None
        data = StepInput(
            spec=self._given,
            started=state.started,
            step=step,
            lead=step - self._version,
            generating=generating,
            training=self._revision(step),
            settings=state.settings,
            protocol=self._protocol,
        )
        self._steps.open(data, lambda: self._turn(step), self._commit)

    def _turn(self, step: int) -> Turn | None:
        revision = self._revision(step)
        return (revision, self._committed.settings) if revision else None

    def _revision(self, version: int) -> AdapterRevision | None:
        """A committed revision that an open step may need; None when it is not committed yet."""
        return next((one for one in self._committed.recent if one.version == version), None)

    def _commit(self, result: StepResult) -> None:
        recent = (*self._committed.recent, result.revision)[-(self._spec.max_staleness + 1) :]
        self._state = self._committed.model_copy(update={"recent": recent, "last": result})
        every, version = self._spec.evaluation.every, result.revision.version
        if every and version % every == 0 and version < self._spec.steps:
            self._evaluate(result.revision)

    def _evaluate(self, revision: AdapterRevision) -> None:
        """Begins the evaluation of a revision; training does not wait for it."""
        if self._spec.evaluation.prompts:
            spec = with_settings(self._spec, self._committed.settings, revision.version)
            data = EvaluateInput(spec=spec, started=self._committed.started, revision=revision)
            self._evaluations.open(data, self._keep_evaluation)

    def _keep_evaluation(self, result: EvaluationResult) -> None:
        evaluations = first_and_latest(self._committed.evaluations, result)
        self._state = self._committed.model_copy(update={"evaluations": evaluations})

    async def _evaluate_last(self) -> None:
        evaluations = self._committed.evaluations
        if not evaluations or evaluations[-1].version < self._version:
            self._evaluate(self._committed.recent[-1])
            await self._settled()

    async def _end_early(self, spec: JobSpec, *, cancelled: bool) -> None:
        """Cancels what is open and closes the job; `list` reads in the memo how far it came.

        Temporal asks a run to cancel once, so nothing cancels what is awaited here.
        """
        closes = workflow.patched(_CLOSES)
        if cancelled or closes:
            await self._cancel((*self._steps.tasks, *self._evaluations.tasks))
        if not closes:
            return
        committed = await close_job(spec, self._state.started.epoch if self._state else 0)
        if committed is None and self._state is not None:
            committed = self._version
        if committed is not None:
            workflow.upsert_memo({COMMITTED_MEMO: committed})

    async def _end_reports(self, *, final: bool, tries: int = 1) -> None:
        if self._reporter is not None:
            await self._reporter.close(final=final, tries=tries)

    async def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def _set(self, changes: Any) -> tuple[Setting, ...]:
        settings = self._settings_of(changes)
        state = self._committed
        self._state = state.model_copy(update={"settings": (*state.settings, *settings)})
        self._current = with_settings(self._spec, settings, state.next_step)
        self._refused = None
        return settings

    def _settings_of(self, changes: Any) -> tuple[Setting, ...]:
        """What changes would be from the step on that they would act from.

        Raises:
            InvalidJobSpec: when they can't be made.
        """
        if self._state is None:
            raise InvalidJobSpec("the job has not started yet; set values in its spec, or wait for version 0")
        return settle(
            self._spec,
            changes,
            untrained=self._steps.first_untrained(self._version),
            undispatched=self._state.next_step,
        )

    def _carried(self) -> JobState:
        update: dict[str, object] = {"paused": self._paused, "stopping": self._stopping}
        if self._reporter is not None:
            update["reported"] = self._reporter.reported
        return self._committed.model_copy(update=update)
