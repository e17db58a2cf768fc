"""Scorers: what turns a completion into a reward."""

from dataclasses import dataclass
from typing import Protocol

from ..schemas.contract import Digest
from ..schemas.dataset import Row
from ..schemas.job_spec import JsonlEnvironment, ReasoningGymEnvironment
from .reasoning_gym import TaskScorer
from .user_reward import load_user_reward, source_digest


class Scorer(Protocol):
    """Scores completions of one environment; a function of its inputs.

    It may raise anything, since it may be a user's.
    """

    def __call__(self, row: Row, completion: str) -> float: ...


@dataclass(frozen=True)
class Score:
    """What became of scoring one sample.

    Attributes:
        reward: a finite number; None when there is none.
        failure: why there is none; None otherwise.
    """

    reward: float | None
    failure: str | None


def load_scorer(environment: ReasoningGymEnvironment | JsonlEnvironment) -> Scorer:
    """The scorer of an environment. It runs code of the user's or of a task's: only for child processes.

    Raises:
        InvalidEnvironment: when there is no such scorer or it cannot be imported.
    """
    match environment:
        case ReasoningGymEnvironment():
            return TaskScorer(environment)
        case JsonlEnvironment():
            return load_user_reward(environment.reward)


def reward_code(environment: ReasoningGymEnvironment | JsonlEnvironment) -> Digest | None:
    """What tells whether a loaded scorer's code is still the same; see `source_digest`.

    None for a task of a package, which does not change while a worker runs.
    """
    match environment:
        case ReasoningGymEnvironment():
            return None
        case JsonlEnvironment():
            return source_digest(environment.reward)
