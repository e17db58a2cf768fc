"""Scores completions in warm child processes, so that whatever a reward does stays its own trouble."""

import asyncio
import logging
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from ..environments.invalid import ChangedReward, InvalidEnvironment
from ..environments.scoring import Score
from ..schemas.contract import Digest
from ..schemas.dataset import Row
from ..schemas.environment import Environment, ReasoningGymEnvironment, RowsEnvironment
from ..schemas.job_spec import RewardLimits
from ..schemas.names import JobKey
from ..schemas.rewards import reward_functions, token_variables
from .child_process import ChildDied, ChildError, ChildProcess
from .child_variables import named_variables, tenant_variables
from .fair_slots import FairSlots
from .reward_child import LOAD_CPU_SECONDS, ScoreAnswer, ScoreCall

_log = logging.getLogger(__name__)
_LOAD_WALL_SECONDS = 600


@dataclass(frozen=True)
class _Owner:
    """Whom a child serves. Of one job only: the next one finds the reward's code as it is then."""

    job: JobKey
    environment: str


@dataclass(eq=False)
class _Child:
    owner: _Owner
    process: ChildProcess
    code: Digest | None
    fresh: bool = True
    retired: bool = False


class _Lost(Exception):
    """A call ended without an answer, for a reason that another attempt may not meet."""


class RewardPool:
    """Child processes, each of which scores for one job with one environment.

    A call that uses up its CPU seconds or its memory, raises, or returns no number is a failure at
    once. One that passes the wall limit or loses its process is tried again in a new process, up to
    the limits' attempts. Any of these but a plain exception also costs the process, with everything
    that the reward started in its process group; so does leaving a thread or a process running.

    A reward finds the working directory of the worker, an empty standard input, seeded generators
    (`random`, `numpy.random`: from the row and the completion) and few environment variables: none
    that could hold the worker's credentials, but the tokens that its own spec names.
    """

    def __init__(self, at_once: int, *, processes: int) -> None:
        """A pool for the event loop of the main thread.

        Args:
            at_once: most attempts to score at once, of any one tenant one less unless it is 1; tenants
                that wait share them by time, see `FairSlots`. As many checks may run beside them.
            processes: most processes, those kept warm between calls included; at least as many as are
                at work.
        """
        self._slots = FairSlots(at_once)
        self._checks = FairSlots(at_once)
        self._most = max(at_once, processes)
        self._lent = 0
        self._idle: list[_Child] = []  # the one used last comes last
        self._env = tenant_variables()

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
        """Scores one completion; never raises for what a reward did with it.

        Each attempt waits for a slot of its own, so that one that hangs delays other tenants by its
        wall limit, or by the limit of loading, and not by all its attempts.

        Args:
            code: what `check` returned when the job began; None for whatever is there now.

        Raises:
            InvalidEnvironment: when the scorer cannot be loaded.
            ChangedReward: when that has other code now.
        """
        call = ScoreCall(
            row=row, completion=completion, cpu_seconds=limits.cpu_seconds, memory_mb=limits.memory_mb
        )
        owner = _Owner(job, environment.model_dump_json())
        lost = ""
        for _ in range(limits.attempts):
            try:
                async with self._slots.take(job.tenant):
                    answer = await self._ask(owner, environment, call, limits.wall_seconds, code)
            except _Lost as fault:
                lost = str(fault)
            else:
                return Score(reward=answer.reward, failure=answer.failure, parts=answer.parts)
        return Score(reward=None, failure=f"no answer in {limits.attempts} attempts; in the last it {lost}")

    async def check(self, job: JobKey, environment: Environment) -> Digest | None:
        """Loads an environment's scorer, and keeps it warm; returns its `reward_code`.

        It waits for other checks only: a job starts however many scores are waiting.

        Raises:
            InvalidEnvironment: when that fails.
        """
        owner = _Owner(job, environment.model_dump_json())
        async with self._checks.take(job.tenant), self._child(owner, environment, None) as child:
            return child.code

    async def close(self) -> None:
        """Ends the processes; for when no call is running."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.process.close() for child in idle))

    async def _ask(
        self,
        owner: _Owner,
        environment: Environment,
        call: ScoreCall,
        wall_seconds: float,
        code: Digest | None,
    ) -> ScoreAnswer:
        while True:
            async with self._child(owner, environment, code) as child:
                fresh, child.fresh = child.fresh, False
                answer = await _answer(child.process, call, wall_seconds)
                if answer.tainted is not None:
                    _log.warning("%s: a reward %s; its process is replaced", owner.job, answer.tainted)
                    child.retired = True
            # What earlier calls left in memory is not this one's failure.
            if fresh or not answer.out_of_memory:
                return answer

    @asynccontextmanager
    async def _child(
        self, owner: _Owner, environment: Environment, code: Digest | None
    ) -> AsyncGenerator[_Child]:
        """Lends a child, which is kept warm unless the block raises or retires it."""
        self._lent += 1
        try:
            child = self._take_idle(owner, code) or await self._start(owner, environment, code)
            try:
                yield child
            except BaseException:
                child.process.kill()
                raise
            if child.retired:
                child.process.kill()
            else:
                self._idle.append(child)
        finally:
            self._lent -= 1
            self._drop_surplus()

    def _take_idle(self, owner: _Owner, code: Digest | None) -> _Child | None:
        for child in reversed(self._idle):
            if child.owner == owner and code in (None, child.code):
                self._idle.remove(child)
                if child.process.alive:
                    return child
        return None

    def _drop_surplus(self) -> None:
        while self._idle and self._lent + len(self._idle) > self._most:
            self._idle.pop(0).process.kill()

    async def _start(self, owner: _Owner, environment: Environment, code: Digest | None) -> _Child:
        self._drop_surplus()
        process = ChildProcess.start(
            f"{__package__}.reward_child:run", env={**self._env, **_tokens(environment)}
        )
        try:
            found = await _load(process, environment)
            if code is not None and found != code:
                raise _changed(environment, code, found)
        except BaseException:
            process.kill()
            raise
        return _Child(owner, process, found)


async def _load(process: ChildProcess, environment: Environment) -> Digest | None:
    """Makes a new child load its scorer, and returns its `reward_code`.

    Raises:
        InvalidEnvironment: when that cannot be done.
        _Lost: when the process was lost.
    """
    try:
        async with asyncio.timeout(_LOAD_WALL_SECONDS):
            return await process.call("load", environment)
    except TimeoutError as fault:
        raise _refusal(environment, f"takes longer than {_LOAD_WALL_SECONDS} s") from fault
    except ChildError as fault:
        if fault.type != InvalidEnvironment.__name__:
            raise
        raise InvalidEnvironment.parse(fault.message) from fault
    except ChildDied as death:
        match death.signal:
            case signal.SIGKILL:  # hardly its own doing: the machine ran out of memory
                raise _Lost(f"lost its process, which {death.ending} when it started") from death
            case signal.SIGPROF:
                raise _refusal(environment, f"uses more than {LOAD_CPU_SECONDS} s of CPU time") from death
            case _:
                what = f"ends the process: it {death.ending}{_printed(death)}"
                raise _refusal(environment, what) from death


async def _answer(process: ChildProcess, call: ScoreCall, wall_seconds: float) -> ScoreAnswer:
    try:
        async with asyncio.timeout(wall_seconds):
            return ScoreAnswer.model_validate(await process.call("score", {"call": call.model_dump_json()}))
    except TimeoutError as fault:
        raise _Lost(f"took longer than {wall_seconds:g} s") from fault
    except (ChildError, ValueError) as fault:  # only by meddling with the child's own code or connection
        raise _Lost(f"broke its process: {fault}") from fault
    except ChildDied as death:
        if death.signal == signal.SIGPROF:
            used_up = f"used more than {call.cpu_seconds:g} s of CPU time"
            return ScoreAnswer(failure=used_up, tainted=used_up)
        raise _Lost(f"lost its process, which {death.ending}{_printed(death)}") from death


def _refusal(environment: Environment, what: str) -> InvalidEnvironment:
    match environment:
        case ReasoningGymEnvironment():
            return InvalidEnvironment("environment.task", f"is {environment.task!r}; importing it {what}")
        case RowsEnvironment():
            return InvalidEnvironment("environment.reward", f"is {_named(environment)}; importing it {what}")


def _changed(environment: Environment, began: Digest, now: Digest | None) -> ChangedReward:
    assert isinstance(environment, RowsEnvironment)
    modules = dict.fromkeys(name.partition(":")[0] for name in reward_functions(environment.reward))
    return ChangedReward(
        f"environment.reward: is {_named(environment)}; the file of {' or '.join(modules)} changed since the "
        f"job began (sha256 {began[:12]} then, {now[:12] if now else 'no readable file'} now): restore it "
        "and the job goes on, or start another job with the new one"
    )


def _named(environment: RowsEnvironment[Any]) -> str:
    reward = environment.reward
    return repr(reward) if isinstance(reward, str) else ", ".join(part.label for part in reward)


def _tokens(environment: Environment) -> dict[str, str]:
    match environment:
        case ReasoningGymEnvironment():
            return {}
        case RowsEnvironment():
            return named_variables(token_variables(environment.reward))


def _printed(death: ChildDied) -> str:
    return f"; it printed last:\n{death.output[-2000:]}" if death.output else ""
