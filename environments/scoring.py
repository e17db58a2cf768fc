"""Scorers: what turns a completion into a reward."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from ..schemas.contract import Digest
from ..schemas.dataset import Row
from ..schemas.environment import Environment, ReasoningGymEnvironment, RowsEnvironment
from ..schemas.rewards import (
    ExactPart,
    FormatPart,
    FunctionPart,
    HttpPart,
    JudgePart,
    LengthPart,
    MathVerifyPart,
    NumericPart,
    RewardPart,
    RewardSpec,
    reward_functions,
)
from .math_reward import MathVerify
from .reasoning_gym import TaskScorer
from .remote_rewards import HttpReward, Judge
from .reward import Part, Reward, WeightedReward
from .text_rewards import exact, has_format, length, numeric
from .user_reward import load_user_reward, source_digest

_PATH = "environment.reward"


class Scorer(Protocol):
    """Scores completions of one environment; a function of its inputs, unless a server or a user has it
    otherwise.

    It may raise anything, since it may be a user's.
    """

    def __call__(self, row: Row, completion: str) -> Reward: ...


@dataclass(frozen=True)
class Score:
    """What became of scoring one sample.

    Attributes:
        reward: a finite number; None when there is none.
        failure: why there is none; None otherwise.
        parts: of the reward; see `Reward`.
    """

    reward: float | None
    failure: str | None
    parts: dict[str, float | None] = field(default_factory=dict[str, float | None])


def load_scorer(environment: Environment) -> Scorer:
    """The scorer of an environment. It runs code of the user's or of a task's: only for child processes.

    Raises:
        InvalidEnvironment: when there is no such scorer or it cannot be imported.
    """
    match environment:
        case ReasoningGymEnvironment():
            return WeightedReward([Part(TaskScorer(environment))])
        case RowsEnvironment():
            return WeightedReward(_parts(environment.reward))


def reward_code(environment: Environment) -> Digest | None:
    """What tells whether a loaded scorer's code is still the same; see `source_digest`.

    None for what is part of a package, which does not change while a worker runs.
    """
    match environment:
        case ReasoningGymEnvironment():
            return None
        case RowsEnvironment():
            found = [source_digest(name) for name in reward_functions(environment.reward)]
            if len(found) == 1:
                return found[0]
            return hashlib.sha256(f"{found}".encode()).hexdigest() if found else None


def _parts(reward: RewardSpec) -> list[Part]:
    if isinstance(reward, str):
        return [Part(load_user_reward(reward, _PATH))]
    return [_part(part, f"{_PATH}.{place}") for place, part in enumerate(reward)]


def _part(part: RewardPart, path: str) -> Part:
    weights = part.weights if isinstance(part, FunctionPart | HttpPart) else {}
    return Part(_score(part, path), part.label, part.weight, weights)


def _score(part: RewardPart, path: str) -> Callable[[Row, str], object]:
    match part:
        case ExactPart():
            return partial(exact, part)
        case NumericPart():
            return partial(numeric, part)
        case FormatPart():
            return partial(has_format, part)
        case LengthPart():
            return partial(length, part)
        case MathVerifyPart():
            return MathVerify(part, path)
        case FunctionPart():
            return load_user_reward(part.function, f"{path}.function")
        case HttpPart():
            return HttpReward(part, path)
        case JudgePart():
            return Judge(part, path)
