"""What activities need of engines and reward processes. Workers supply them; tests may supply others."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ..environments.scoring import Score
from ..schemas.contract import Digest
from ..schemas.dataset import Row
from ..schemas.engine_calls import (
    InitialiseCall,
    Initialised,
    SampleCall,
    SampledGroup,
    TrainCall,
    Trained,
)
from ..schemas.environment import Environment
from ..schemas.job_spec import RewardLimits
from ..schemas.names import JobKey


class EngineFailure(Exception):
    """A call that an engine process refused or failed.

    Attributes:
        kind: name of the exception in that process; it decides whether a retry makes sense.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Sampler(Protocol):
    """Draws samples; several calls share one batch."""

    def sample(self, call: SampleCall) -> AsyncGenerator[SampledGroup]:
        """Yields each group as soon as its last sample is done, in no set order.

        Raises:
            EngineFailure: when the process fails, is lost, or refuses the call.
        """
        ...


class Trainer(Protocol):
    """Computes policy versions; one call at a time."""

    async def initialise(self, call: InitialiseCall) -> Initialised:
        """Writes version 0. Raises EngineFailure."""
        ...

    async def train(self, call: TrainCall) -> Trained:
        """Writes the next version. Raises EngineFailure."""
        ...


class RewardScorer(Protocol):
    """Runs rewards, which are the user's code, where they can harm nobody."""

    async def check(self, job: JobKey, environment: Environment) -> Digest | None:
        """What the environment's reward is held to; see `environments.scoring.reward_code`.

        Raises:
            InvalidEnvironment: when the reward can't be loaded.
        """
        ...

    async def score(
        self,
        job: JobKey,
        environment: Environment,
        limits: RewardLimits,
        row: Row,
        completion: str,
        *,
        code: Digest | None,
    ) -> Score:
        """The reward of one completion; every fault of the reward becomes a failure.

        Raises:
            InvalidEnvironment: when the reward can't be loaded.
            ChangedReward: when its code isn't `code`; any is right when that is None.
        """
        ...
