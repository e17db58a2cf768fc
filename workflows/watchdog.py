"""Notices that work has stopped moving, without a timer for every move."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from temporalio import workflow


async def watch(
    limit: timedelta, mark: Callable[[], object], stalled: Callable[[bool], Awaitable[None]]
) -> None:
    """Tells when a mark has not changed for a time between `limit` and twice that, and when it does again.

    Never returns; cancel it.

    Args:
        mark: changes with every move.
        stalled: is told True when the mark stands still, and False when it moves after that.
    """
    while True:
        before = mark()
        await workflow.sleep(limit)
        if mark() == before:
            await stalled(True)
            await workflow.wait_condition(lambda before=before: mark() != before)
            await stalled(False)
