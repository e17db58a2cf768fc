"""Engines and rewards that do as a test says, behind the protocols of `activities.engines`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from marlaas.activities.engines import EngineFailure
from marlaas.environments.scoring import Score
from marlaas.schemas.contract import Digest
from marlaas.schemas.dataset import Row
from marlaas.schemas.engine_calls import (
    Completion,
    InitialiseCall,
    Initialised,
    SampleCall,
    SampledGroup,
    TrainCall,
    Trained,
)
from marlaas.schemas.environment import Environment
from marlaas.schemas.job_spec import RewardLimits
from marlaas.schemas.names import JobKey
from marlaas.tests.noop_activities import FINGERPRINT, METRICS


class ListedSampler:
    """Says each sample's seed; ends with a lost process after `lives` groups."""

    def __init__(self, lives: int | None = None) -> None:
        self.calls: list[SampleCall] = []
        self.lives = lives
        self.failing: set[int] = set()

    async def sample(self, call: SampleCall) -> AsyncGenerator[SampledGroup]:
        self.calls.append(call)
        for count, group in enumerate(call.groups):
            if self.lives is not None and count >= self.lives:
                raise EngineFailure("EngineProcessDied", "the sampler was killed")
            await asyncio.sleep(0)
            yield SampledGroup(
                group=group.group,
                prompt_ids=(1, 2),
                completions=tuple(self._completion(one.sample, one.seed) for one in group.samples),
            )

    def _completion(self, sample: int, seed: int) -> Completion:
        if sample in self.failing:
            return Completion(
                sample=sample,
                token_ids=(7,),
                logprobs=(-0.5,),
                finish_reason="failed",
                text="",
                failure="the logits are not finite",
            )
        return Completion(
            sample=sample,
            token_ids=(seed % 97, 3),
            logprobs=(-0.25, -0.125),
            finish_reason="stop",
            text=str(seed % 97),
        )


class ListedScorer:
    """Scores with a function of (row, completion)."""

    def __init__(self, score: Callable[[Row, str], Score]) -> None:
        self._score = score
        self.calls = 0

    async def check(self, job: JobKey, environment: Environment) -> Digest | None:
        return None

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
        self.calls += 1
        await asyncio.sleep(0.01)
        return self._score(row, completion)


class HeldScorer(ListedScorer):
    """Scores nothing until it is let go; the fourth call at once may be refused.

    Attributes:
        waiting: calls in hand.
        most: that there were at once.
        codes: that the calls were held to.
    """

    def __init__(self, score: Callable[[Row, str], Score], refusal: Exception | None = None) -> None:
        super().__init__(score)
        self.gate = asyncio.Event()
        self.waiting = self.most = 0
        self.codes: set[str | None] = set()
        self._refusal = refusal

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
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.codes.add(code)
        try:
            if self.waiting == 4 and self._refusal is not None:
                raise self._refusal
            await self.gate.wait()
            return await super().score(job, environment, limits, row, completion, code=code)
        finally:
            self.waiting -= 1


class ListedTrainer:
    """Writes files that say what they were made from.

    Attributes:
        starts: content of the start's adapter in each call of `train`; None where there was none.
    """

    def __init__(self) -> None:
        self.starts: list[str | None] = []

    async def initialise(self, call: InitialiseCall) -> Initialised:
        for name in ("adapter", "optimizer"):
            Path(call.out, f"{name}.safetensors").write_text(f"{name} {call.spec.seed}")
        if call.start_adapter_path is not None:
            start = f"{Path(call.start_adapter_path).read_text()} on {call.start_base}"
            Path(call.out, "adapter.safetensors").write_text(start)
        return Initialised(fingerprint=FINGERPRINT)

    async def train(self, call: TrainCall) -> Trained:
        start = call.start_adapter_path
        self.starts.append(Path(start).read_text() if start is not None else None)
        adapter = Path(call.adapter_path).read_text()
        Path(call.out, "adapter.safetensors").write_text(
            f"{adapter}+{len(Path(call.batch_path).read_bytes())}"
        )
        Path(call.out, "optimizer.safetensors").write_text(f"moments of {call.version}")
        return Trained(fingerprint=FINGERPRINT, metrics=METRICS)
