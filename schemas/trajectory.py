"""Trajectories and scored groups: the messages of a job's trajectory stream."""

import math
import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from .contract import Contract, Digest, Document
from .variance import differ

NOT_SAMPLED = "sampling: "
"""Begins the failure of a sample that the sampler could not produce, so that no score can mend it."""

MOST_PARTS = 64
"""Of which a step reports means; they pass through Temporal, and each is a metric."""


class Trajectory(Document):
    """One sample of one group: what the policy was shown, what it produced, and how likely that was.

    Attributes:
        group: id of the group.
        sample: index within the group, from 0.
        prompt_index: row of the job's dataset.
        version: policy version that produced every token of the mask.
        adapter: digest of that version's adapter blob.
        token_ids: prompt and completion, exactly as the model was given and produced them.
        mask: 1 where the policy produced the token, else 0; as long as `token_ids`.
        logprobs: log-probability of each token under the distribution that it was drawn from
            (natural logarithm, after the temperature); 0.0 where the mask is 0.
        finish_reason: `stop` when a stop token or a stop string ended the completion, whose tokens are kept,
            `length` when the token limit did, `failed` when the sampler could not produce it.
        text: the completion decoded for the reward, without special tokens and up to a stop string; never
            tokenised again.
        failure: why it failed; only with finish reason `failed`, whose mask is 0 everywhere.
    """

    group: str
    sample: Annotated[int, Field(ge=0)]
    prompt_index: Annotated[int, Field(ge=0)]
    version: Annotated[int, Field(ge=0)]
    adapter: Digest
    token_ids: list[int]
    mask: list[Literal[0, 1]]
    logprobs: list[float]
    finish_reason: Literal["stop", "length", "failed"]
    text: str
    failure: str | None = None

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if not len(self.token_ids) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"token_ids, mask and logprobs have lengths {len(self.token_ids)}, {len(self.mask)} and "
                f"{len(self.logprobs)}; they must be equal"
            )
        if (self.finish_reason == "failed") != (self.failure is not None):
            raise ValueError("failure is given exactly when finish_reason is 'failed'")
        if self.finish_reason == "failed" and any(self.mask):
            raise ValueError("a failed trajectory has mask 0 everywhere")
        return self


class ScoredSample(Contract):
    """The reward of one sample, or why there is none.

    Attributes:
        stream_sequence: of the trajectory, in the job's stream.
        reward: None when the sample failed; such a sample has weight 0 and is no part of its
            group's statistics.
        failure: why there is no reward; None otherwise.
        parts: of the reward by name, before weighting; None where one does not apply. Empty for a reward
            without named parts.
    """

    sample: Annotated[int, Field(ge=0)]
    stream_sequence: Annotated[int, Field(ge=1)]
    reward: float | None
    failure: str | None = None
    parts: dict[str, float | None] = Field(default_factory=dict[str, float | None], exclude_if=operator.not_)

    @model_validator(mode="after")
    def _reward_or_failure(self) -> Self:
        if (self.reward is None) == (self.failure is None):
            raise ValueError("a scored sample has either a reward or a failure")
        return self


class ScoredGroup(Document):
    """The one message that ends every dispatched group.

    Attributes:
        status: `failed` when fewer than two samples have a reward (one, for groups of one sample).
        reason: why the group failed; None when it is ok.
        samples: in order of their index.
        round: of scoring; a later one takes the place of an earlier one.
    """

    group: str
    prompt_index: Annotated[int, Field(ge=0)]
    status: Literal["ok", "failed"]
    reason: str | None = None
    samples: tuple[ScoredSample, ...]
    round: Annotated[int, Field(ge=0)] = 0

    @property
    def failed_scores(self) -> int:
        """Samples that were sampled and could not be scored."""
        return sum(
            sample.failure is not None and not sample.failure.startswith(NOT_SAMPLED)
            for sample in self.samples
        )

    @property
    def varied(self) -> bool:
        """Whether the group's rewards differ, so that it has something to teach."""
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        return self.status == "ok" and differ(np.array(rewards))


def part_means(groups: Iterable[ScoredGroup]) -> dict[str, float]:
    """The means of the named parts of rewards, each over the samples that it applies to.

    Samples without a reward and those of failed groups do not count, as in the mean reward. Names are what
    users return: of more than `MOST_PARTS` the first by the alphabet are kept.
    """
    values = defaultdict[str, list[float]](list)
    for sample in (sample for group in groups if group.status == "ok" for sample in group.samples):
        for name, value in sample.parts.items():
            if value is not None:
                values[name].append(value)
    return {name: math.fsum(values[name]) / len(values[name]) for name in sorted(values)[:MOST_PARTS]}
