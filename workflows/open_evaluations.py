"""The held-out evaluations of a job that have been started and have not ended."""

import asyncio
from collections.abc import Callable, Sequence

from temporalio import workflow

from ..schemas.events import EvaluateInput, EvaluationResult
from .evaluate import Evaluate


class OpenEvaluations:
    """Starts the workflows of evaluations; training does not wait for them."""

    def __init__(self) -> None:
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running: set[int] = set()

    def open(self, data: EvaluateInput, ended: Callable[[EvaluationResult], None]) -> None:
        """Starts an evaluation, whose result `ended` is called with."""
        version = data.revision.version
        self._running.add(version)
        self._tasks[version] = asyncio.create_task(self._run(data, ended))

    @property
    def tasks(self) -> tuple[asyncio.Task[None], ...]:
        """One for each; it ends when the evaluation has."""
        return tuple(self._tasks.values())

    @property
    def running(self) -> frozenset[int]:
        """The versions whose results are not there yet."""
        return frozenset(self._running)

    def take_ended(self) -> list[asyncio.Task[None]]:
        """Forgets the evaluations that have ended, and gives their tasks."""
        ended = [version for version, task in self._tasks.items() if task.done()]
        return [self._tasks.pop(version) for version in ended]

    async def _run(self, data: EvaluateInput, ended: Callable[[EvaluationResult], None]) -> None:
        version = data.revision.version
        result: EvaluationResult = await workflow.execute_child_workflow(
            Evaluate.run, data, id=data.spec.key.evaluation_id(version)
        )
        self._running.discard(version)
        ended(result)


def first_and_latest(
    known: Sequence[EvaluationResult], result: EvaluationResult
) -> tuple[EvaluationResult, ...]:
    """What a job keeps of its evaluations when one more has ended; the others are in the object store."""
    if not known:
        return (result,)
    return known[0], max((*known[1:], result), key=lambda one: one.version)
