"""The steps of a job that have been opened and have not ended."""

import asyncio
from collections.abc import Callable

from temporalio import workflow

from ..schemas.events import StepInput, StepResult, Trouble
from ..schemas.manifest import AdapterRevision
from ..schemas.settings import Setting
from .train_step import TrainStep

Turn = tuple[AdapterRevision, tuple[Setting, ...]]
"""The revision that a step trains, and the settings made by then."""


class OpenSteps:
    """Starts the workflows of steps, gives each its turn, and knows which are in trouble."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._handles: dict[int, workflow.ChildWorkflowHandle[TrainStep, StepResult]] = {}
        self._troubles: dict[int, Trouble] = {}
        self._turned = -1

    def open(
        self, data: StepInput, turn: Callable[[], Turn | None], commit: Callable[[StepResult], None]
    ) -> None:
        """Starts a step.

        Args:
            turn: gives None until the revision that the step trains is committed.
            commit: is called with what the step has committed.
        """
        self._tasks[data.step] = asyncio.create_task(self._run(data, turn, commit))

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self._tasks))

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """One for each; it ends when the step has."""
        return tuple(self._tasks.values())

    @property
    def trouble(self) -> Trouble | None:
        """Of the lowest step that has any."""
        return self._troubles[min(self._troubles)] if self._troubles else None

    @property
    def paused(self) -> tuple[int, ...]:
        """Steps that wait because samples failed."""
        return tuple(step for step, one in sorted(self._troubles.items()) if one.kind == "paused")

    def first_untrained(self, version: int) -> int:
        """The first step that has not begun to train, when `version` is the newest committed."""
        return min(self.paused, default=max(self._turned + 1, version))

    def note(self, step: int, trouble: Trouble | None) -> None:
        """Keeps what a step said of itself."""
        self._troubles.pop(step, None)
        if trouble is not None:
            self._troubles[step] = trouble

    async def score_again(self, settings: tuple[Setting, ...]) -> None:
        """Ends the pause of steps that wait because samples failed."""
        for step in self.paused:
            await self._handles[step].signal(TrainStep.score_again, settings)

    def take_ended(self) -> list[asyncio.Task[None]]:
        """Forgets the steps that have ended, and gives their tasks."""
        ended = [step for step, task in self._tasks.items() if task.done()]
        return [self._tasks.pop(step) for step in ended]

    async def _run(
        self, data: StepInput, turn: Callable[[], Turn | None], commit: Callable[[StepResult], None]
    ) -> None:
        step = data.step
        if data.training is not None:
            self._turned = step
        handle = await workflow.start_child_workflow(TrainStep.run, data, id=data.spec.key.step_id(step))
        self._handles[step] = handle
        waiting = asyncio.create_task(self._give_turn(step, turn)) if data.training is None else None
        try:
            commit(await handle)
        finally:
            del self._handles[step]
            self._troubles.pop(step, None)
            if waiting is not None:
                waiting.cancel()

    async def _give_turn(self, step: int, turn: Callable[[], Turn | None]) -> None:
        await workflow.wait_condition(lambda: turn() is not None)
        given = turn()
        assert given is not None
        self._turned = step
        await self._handles[step].signal(TrainStep.turn, args=[*given])
