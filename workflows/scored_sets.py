"""Sampling and scoring a set of groups, in activities of a bounded number and size."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from temporalio import workflow

from ..schemas.events import GroupAssignment, RewardInput, RewardResult, RolloutInput, Span, Started
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import AdapterRevision
from .activity_calls import REWARD, ROLLOUT

MOST_ROLLOUTS = 128
"""Per set. It bounds a step's history: 2 activities of 6 events for each."""


@dataclass
class SetProgress:
    """How far a set is, and where its time went.

    Attributes:
        groups_sampled: on the stream.
        groups_scored: ended by a scored message.
        groups_varied: whose rewards differ.
        rollouts_ended: time of the end of the last rollout.
        sampling: when samplers worked, by rollout.
        scoring: when rewards were computed, by part.
    """

    groups_sampled: int = 0
    groups_scored: int = 0
    groups_varied: int = 0
    rollouts_ended: datetime = field(default_factory=workflow.now)
    sampling: list[Span] = field(default_factory=list[Span])
    scoring: list[Span] = field(default_factory=list[Span])


def covered(spans: Iterable[Span]) -> float:
    """Seconds in which at least one of the spans lies; spans may overlap."""
    total, end = 0.0, float("-inf")
    for span in sorted(spans, key=lambda one: one.began):
        total += max(0.0, span.ended - max(span.began, end))
        end = max(end, span.ended)
    return total


def parts(groups: Sequence[GroupAssignment], samples: int, slots: int) -> list[tuple[GroupAssignment, ...]]:
    """Cuts a set into at most `MOST_ROLLOUTS` rollouts, each of which fills the sampler's slots."""
    size = max(-(-slots // samples), -(-len(groups) // MOST_ROLLOUTS))
    return [tuple(groups[start : start + size]) for start in range(0, len(groups), size)]


async def sample_and_score(
    spec: JobSpec,
    started: Started,
    revision: AdapterRevision,
    groups: Sequence[GroupAssignment],
    *,
    samples: int,
    temperature: float,
    lead: int,
    progress: SetProgress,
) -> None:
    """Ends every group with a scored message on the stream; each part is scored as soon as it is sampled.

    Args:
        lead: steps before the set is needed; among waiting rollouts the smallest goes first.
    """

    async def one(part: tuple[GroupAssignment, ...]) -> None:
        sampled = await ROLLOUT(
            spec,
            RolloutInput(
                spec=spec,
                started=started,
                revision=revision,
                groups=part,
                samples=samples,
                temperature=temperature,
            ),
            lead=lead,
        )
        progress.groups_sampled += len(part)
        progress.sampling.append(sampled.sampling)
        progress.rollouts_ended = workflow.now()
        scored: RewardResult = await REWARD(
            spec,
            RewardInput(
                spec=spec, dataset=started.dataset, groups=part, samples=samples, epoch=started.epoch
            ),
            lead=lead,
        )
        progress.groups_scored += len(part)
        progress.groups_varied += scored.varied_groups
        progress.scoring.append(scored.scoring)

    await asyncio.gather(*(one(part) for part in parts(groups, samples, spec.sampling.slots)))


async def score_again(
    spec: JobSpec,
    started: Started,
    groups: Sequence[GroupAssignment],
    *,
    samples: int,
    round: int,
    progress: SetProgress,
) -> None:
    """Gives the samples of a set whose scoring failed another chance, in a round of their own."""

    async def one(part: tuple[GroupAssignment, ...]) -> None:
        data = RewardInput(
            spec=spec,
            dataset=started.dataset,
            groups=part,
            samples=samples,
            round=round,
            epoch=started.epoch,
        )
        scored: RewardResult = await REWARD(spec, data)
        progress.scoring.append(scored.scoring)

    await asyncio.gather(*(one(part) for part in parts(groups, samples, spec.sampling.slots)))
