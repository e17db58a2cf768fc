"""Sampler and trainer as activities see them: calls to child processes that are replaced when they die."""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import TypeVar

from ..activities.engines import EngineFailure
from ..schemas.contract import Contract
from ..schemas.engine_calls import (
    InitialiseCall,
    Initialised,
    SampleCall,
    SampledGroup,
    TrainCall,
    Trained,
)
from .child_process import ChildDied, ChildError, ChildProcess

C = TypeVar("C", bound=Contract)

_SILENCE_SECONDS = 60.0
"""Longer than loading torch from a slow disk holds the interpreter."""


def engine_environment(threads: int, models: Path, device: str) -> dict[str, str]:
    """Environment of an engine process.

    Args:
        threads: OpenMP threads. Waiting threads sleep: spinning ones starve their neighbours.
        models: folder in which base models are kept.
        device: torch device of model and adapters.
    """
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "MARLAAS_MODELS": str(models),
        "MARLAAS_DEVICE": device,
    }


class EngineProcess:
    """A child process that is started by the first call and again by the first after its death."""

    def __init__(self, target: str, environment: Mapping[str, str]) -> None:
        self._target = target
        self._environment = environment
        self._child: ChildProcess | None = None

    async def call(self, method: str, payload: Contract, result: type[C]) -> C:
        """One request and its one reply.

        Raises:
            EngineFailure: when the process fails, is lost, or refuses the request.
        """
        child = self._running()
        with _as_engine_failures():
            return _decode(result, await child.call(method, payload))

    async def stream(self, method: str, payload: Contract, result: type[C]) -> AsyncGenerator[C]:
        """One request and its replies; an iteration that is given up cancels the request.

        Raises:
            EngineFailure: as for `call`.
        """
        child = self._running()
        with _as_engine_failures():
            async with contextlib.aclosing(child.stream(method, payload)) as replies:
                async for reply in replies:
                    yield _decode(result, reply)

    async def close(self) -> None:
        """Kills the process."""
        if self._child is not None:
            await self._child.close()

    def _running(self) -> ChildProcess:
        if self._child is None or not self._child.alive:
            self._child = ChildProcess.start(
                self._target, env=self._environment, silence_seconds=_SILENCE_SECONDS
            )
        return self._child


class SamplerProcess:
    """`activities.engines.Sampler` in a process of its own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = EngineProcess(f"{__package__}.sampler_child:main", environment)

    async def sample(self, call: SampleCall) -> AsyncGenerator[SampledGroup]:
        async with contextlib.aclosing(self._process.stream("sample", call, SampledGroup)) as groups:
            async for group in groups:
                yield group

    async def close(self) -> None:
        await self._process.close()


class TrainerProcess:
    """`activities.engines.Trainer` in a process of its own.

    A call that is given up half-way (its activity was cancelled) ends the process: torch can't be
    interrupted, and the next call must not wait for a result that nobody wants.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = EngineProcess(f"{__package__}.trainer_child:main", environment)

    async def initialise(self, call: InitialiseCall) -> Initialised:
        return await self._whole("initialise", call, Initialised)

    async def train(self, call: TrainCall) -> Trained:
        return await self._whole("train", call, Trained)

    async def close(self) -> None:
        await self._process.close()

    async def _whole(self, method: str, call: Contract, result: type[C]) -> C:
        try:
            return await self._process.call(method, call, result)
        except asyncio.CancelledError:
            await asyncio.shield(self._process.close())
            raise


def _decode(result: type[C], reply: object) -> C:
    """The reply as a contract. JSON has no tuples, so types are taken loosely here."""
    return result.model_validate(reply, strict=False)


@contextlib.contextmanager
def _as_engine_failures() -> Generator[None]:
    try:
        yield
    except ChildError as error:
        raise EngineFailure(error.type, error.message) from error
    except ChildDied as error:
        raise EngineFailure("EngineProcessDied", str(error)) from error
