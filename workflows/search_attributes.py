"""What Temporal can list and count jobs by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

TENANT: Final = SearchAttributeKey.for_keyword("MarlaasTenant")
BASE_MODEL: Final = SearchAttributeKey.for_keyword("MarlaasBaseModel")
STATE: Final = SearchAttributeKey.for_keyword("MarlaasState")
STEP: Final = SearchAttributeKey.for_int("MarlaasStep")
REWARD: Final = SearchAttributeKey.for_float("MarlaasReward")

SEARCH_ATTRIBUTES: Final = (TENANT, BASE_MODEL, STATE, STEP, REWARD)

_LONGEST = 255
"""Characters that Temporal's stores keep of a keyword; of a long path the end says more."""


@dataclass(frozen=True)
class Labels:
    """The values of a job's search attributes.

    Attributes:
        state: as `progress` gives it. Of a job that has ended, the last one: its status says how it ended.
        version: newest committed; None before version 0.
        reward: mean reward of the step that was committed last; None when there is none.
    """

    tenant: str
    model: str
    state: str
    version: int | None
    reward: float | None


async def keep_labelled(labels: Callable[[], Labels]) -> None:
    """Sets the search attributes whenever they change. Never returns; cancel it."""
    shown = None
    while True:
        await workflow.wait_condition(lambda shown=shown: labels() != shown)
        shown = labels()
        workflow.upsert_search_attributes(_updates(shown))  # pyright: ignore[reportUnknownMemberType]


def _updates(labels: Labels) -> list[SearchAttributeUpdate[Any]]:
    updates: list[SearchAttributeUpdate[Any]] = [
        TENANT.value_set(labels.tenant),
        BASE_MODEL.value_set(labels.model[-_LONGEST:]),
        STATE.value_set(labels.state),
    ]
    if labels.version is not None:
        updates.append(STEP.value_set(labels.version))
    if labels.reward is not None:
        updates.append(REWARD.value_set(labels.reward))
    return updates
