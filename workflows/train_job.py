"""A training job: opens its steps in order, keeps what they commit, and goes on for as long as it has to."""

import asyncio
from typing import Any, Literal

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError, is_cancelled_exception

from ..schemas.events import (
    Candidate,
    ClaimInput,
    CloseInput,
    EvaluateInput,
    EvaluationResult,
    InitialiseInput,
    JobProgress,
    JobResult,
    JobState,
    SnapshotInput,
    Started,
    StepInput,
    StepResult,
)
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import AdapterRevision
from ..schemas.names import COMMITTED_MEMO
from .activity_calls import CHECK_NAME, CLOSE_JOB, INITIALISE, PREPARE_DATASET, SNAPSHOT
from .evaluate import Evaluate
from .job_input import job_input
from .reporting import FINAL_TRIES, Reporter
from .train_step import TrainStep

_CLOSES = "close-job"
"""Patch: jobs that ended before it left their streams."""
_REPORTS = "metric-reports"
"""Patch: jobs that began before it report from their next continue-as-new on."""


@workflow.defn(name="TrainJob")
class TrainJob:
    """One job, from the claim of its name to the end of its stream.

    Step t opens when version max(0, t-K) is committed, so at most K+1 steps are open at once.
    """

    def __init__(self) -> None:
        self._spec: JobSpec | None = None
        self._state: JobState | None = None
        self._paused = False
        self._stopping = False
        self._finished = False
        self._steps: dict[int, asyncio.Task[None]] = {}
        self._evaluations: list[asyncio.Task[None]] = []
        self._evaluating: set[int] = set()
        self._reporter: Reporter | None = None

    @workflow.signal
    def pause(self) -> None:
        """Opens no further step until `resume`; open steps end as usual."""
        self._paused = True

    @workflow.signal
    def resume(self) -> None:
        """Ends a pause."""
        self._paused = False

    @workflow.signal
    def stop(self) -> None:
        """Ends the job after the steps that are open: what was sampled is trained on and committed."""
        self._stopping = True

    @workflow.query
    def progress(self) -> JobProgress:
        """Where the job is."""
        state = self._state
        return JobProgress(
            state=self._phase(),
            steps=self._spec.steps if self._spec else 0,
            version=state.recent[-1].version if state else None,
            open_steps=tuple(sorted(self._steps)),
            evaluations=state.evaluations if state else (),
            last=state.last if state else None,
            trackers=self._reporter.trackers if self._reporter else (),
        )

    @workflow.run
    async def run(self, *inputs: Any) -> JobResult:
        """Trains a job spec, which is checked here: a typed argument that fails would be retried for ever.

        Args:
            inputs: the spec as JSON; from continue-as-new also a `JobState`.
        """
        self._spec, state = job_input(inputs)
        spec = self._spec
        if state is not None:
            self._state = state
            self._paused |= state.paused
            self._stopping |= state.stopping
        try:
            if self._state is None:
                self._state = await self._start(spec)
            if workflow.patched(_REPORTS):
                self._reporter = Reporter(spec, self._state.reported, self._reportable)
            await self._train(spec)
            await self._evaluate_last(spec)
            await self._end_reports(final=True, tries=FINAL_TRIES)
            if workflow.patched(_CLOSES):
                await self._close(spec)
        except asyncio.CancelledError:
            await self._end_early(spec, cancelled=True)
            raise
        except FailureError:
            await self._end_early(spec, cancelled=False)
            raise
        finally:
            await self._end_reports(final=True)
        self._finished = True
        return JobResult(
            outcome="completed" if self._version == spec.steps else "stopped",
            revision=self._committed.recent[-1],
            evaluations=self._committed.evaluations,
        )

    @property
    def _committed(self) -> JobState:
        assert self._state is not None
        return self._state

    @property
    def _version(self) -> int:
        return self._committed.recent[-1].version

    def _reportable(self) -> tuple[int, int]:
        """The newest version, and the version up to which every evaluation has ended."""
        return self._version, min((self._version, *(one - 1 for one in self._evaluating)))

    def _phase(self) -> Literal["starting", "evaluating", "training", "paused", "stopping", "done"]:
        if self._finished:
            return "done"
        if self._state is None:
            return "starting"
        if self._stopping:
            return "stopping"
        if self._evaluations and not self._steps:
            return "evaluating"
        return "paused" if self._paused else "training"

    async def _start(self, spec: JobSpec) -> JobState:
        """Fixes the dataset and commits version 0, which claims the name."""
        run = workflow.info().first_execution_run_id
        await CHECK_NAME(spec, ClaimInput(spec=spec, first_run_id=run))
        dataset = await PREPARE_DATASET(spec, spec)
        candidate: Candidate = await INITIALISE(spec, InitialiseInput(spec=spec, dataset=dataset))
        base = await SNAPSHOT(
            spec, SnapshotInput(spec=spec, candidate=candidate, groups=(), first_run_id=run)
        )
        return JobState(
            started=Started(dataset=dataset, fingerprint=candidate.fingerprint, adapter=base.adapter),
            recent=(base,),
            next_step=0,
            paused=False,
            stopping=False,
            evaluations=(),
            last=None,
        )

    async def _train(self, spec: JobSpec) -> None:
        """Opens steps until all are done, the job is stopped, or its history is long enough."""
        if self._version == 0 and not self._committed.evaluations:
            self._evaluate(spec, self._committed.recent[-1])
            await self._settled()
        while True:
            await workflow.wait_condition(
                lambda: self._may_open(spec) or self._ended() or self._drained(spec)
            )
            self._raise_failures()
            if self._may_open(spec):
                self._open_step(spec)
            elif self._drained(spec):
                if self._stopping or self._committed.next_step == spec.steps:
                    return
                await self._end_reports(final=False)
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(args=[spec.model_dump(mode="json"), self._carried()])

    def _opens_no_more(self, spec: JobSpec) -> bool:
        return (
            self._stopping
            or self._committed.next_step >= spec.steps
            or workflow.info().is_continue_as_new_suggested()
        )

    def _may_open(self, spec: JobSpec) -> bool:
        ahead = self._committed.next_step - self._version
        return not self._opens_no_more(spec) and not self._paused and ahead <= spec.max_staleness

    def _drained(self, spec: JobSpec) -> bool:
        """Nothing is open, and nothing will be: children left open would not survive continue-as-new."""
        return self._opens_no_more(spec) and not self._steps and not self._evaluations

    def _ended(self) -> bool:
        return any(task.done() for task in (*self._steps.values(), *self._evaluations))

    def _raise_failures(self) -> None:
        """Forgets children that have ended, and raises the failure of one that failed."""
        steps = [step for step, task in self._steps.items() if task.done()]
        tasks = [self._steps.pop(step) for step in steps]
        tasks += [task for task in self._evaluations if task.done()]
        self._evaluations = [task for task in self._evaluations if not task.done()]
        for task in tasks:
            task.result()

    async def _settled(self) -> None:
        while self._steps or self._evaluations:
            await workflow.wait_condition(self._ended)
            self._raise_failures()

    def _open_step(self, spec: JobSpec) -> None:
        step = self._committed.next_step
        self._state = self._committed.model_copy(update={"next_step": step + 1})
        self._steps[step] = asyncio.create_task(self._run_step(spec, step))

    async def _run_step(self, spec: JobSpec, step: int) -> None:
        trained = self._revision(step)
        generating = self._revision(max(0, step - spec.max_staleness))
        assert generating is not None
        handle = await workflow.start_child_workflow(
            TrainStep.run,
            StepInput(
                spec=spec,
                started=self._committed.started,
                step=step,
                lead=step - self._version,
                generating=generating,
                training=trained,
            ),
            id=spec.key.step_id(step),
        )
        turn = asyncio.create_task(self._give_turn(handle, step)) if trained is None else None
        try:
            self._commit(spec, await handle)
        finally:
            if turn is not None:
                turn.cancel()

    async def _give_turn(
        self, handle: workflow.ChildWorkflowHandle[TrainStep, StepResult], step: int
    ) -> None:
        await workflow.wait_condition(lambda: self._version >= step)
        revision = self._revision(step)
        assert revision is not None
        await handle.signal(TrainStep.turn, revision)

    def _revision(self, version: int) -> AdapterRevision | None:
        """A committed revision that an open step may need; None when it is not committed yet."""
        return next((one for one in self._committed.recent if one.version == version), None)

    def _commit(self, spec: JobSpec, result: StepResult) -> None:
        recent = (*self._committed.recent, result.revision)[-(spec.max_staleness + 1) :]
        self._state = self._committed.model_copy(update={"recent": recent, "last": result})
        every, version = spec.evaluation.every, result.revision.version
        if every and version % every == 0 and version < spec.steps:
            self._evaluate(spec, result.revision)

    def _evaluate(self, spec: JobSpec, revision: AdapterRevision) -> None:
        """Begins the evaluation of a revision; training does not wait for it."""
        if spec.evaluation.prompts:
            self._evaluating.add(revision.version)
            self._evaluations.append(asyncio.create_task(self._run_evaluation(spec, revision)))

    async def _run_evaluation(self, spec: JobSpec, revision: AdapterRevision) -> None:
        result: EvaluationResult = await workflow.execute_child_workflow(
            Evaluate.run,
            EvaluateInput(spec=spec, started=self._committed.started, revision=revision),
            id=spec.key.evaluation_id(revision.version),
        )
        self._evaluating.discard(revision.version)
        evaluations = self._committed.evaluations
        later = [one for one in (*evaluations[1:], result) if evaluations]
        kept = (*(evaluations[:1] or (result,)), *sorted(later, key=lambda one: one.version)[-1:])
        self._state = self._committed.model_copy(update={"evaluations": kept})

    async def _evaluate_last(self, spec: JobSpec) -> None:
        evaluations = self._committed.evaluations
        if not evaluations or evaluations[-1].version < self._version:
            self._evaluate(spec, self._committed.recent[-1])
            await self._settled()

    async def _end_early(self, spec: JobSpec, *, cancelled: bool) -> None:
        """Cancels what is open and closes the job; `list` reads in the memo how far it came.

        Temporal asks a run to cancel once, so nothing cancels what is awaited here.
        """
        closes = workflow.patched(_CLOSES)
        if cancelled or closes:
            await self._cancel_children()
        if not closes:
            return
        committed = await self._close(spec)
        if committed is None and self._state is not None:
            committed = self._version
        if committed is not None:
            workflow.upsert_memo({COMMITTED_MEMO: committed})

    async def _close(self, spec: JobSpec) -> int | None:
        """Has the job's stream deleted. A failure to do so is logged, and changes no job's end.

        Returns:
            The newest committed version, as far as the store has told.
        """
        run = workflow.info().first_execution_run_id
        try:
            closed = await CLOSE_JOB(spec, CloseInput(key=spec.key, first_run_id=run))
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            workflow.logger.warning("the stream %s is left behind: %s", spec.key.stream, error.cause)
            return None
        return closed.version

    async def _end_reports(self, *, final: bool, tries: int = 1) -> None:
        if self._reporter is not None:
            await self._reporter.close(final=final, tries=tries)

    async def _cancel_children(self) -> None:
        tasks = (*self._steps.values(), *self._evaluations)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _carried(self) -> JobState:
        update: dict[str, object] = {"paused": self._paused, "stopping": self._stopping}
        if self._reporter is not None:
            update["reported"] = self._reporter.reported
        return self._committed.model_copy(update=update)
