"""The child's side of `reward_pool`: loads one scorer and calls it within limits."""

import hashlib
import json
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter

from ..environments.fault_text import fault_text
from ..environments.scoring import Scorer, load_scorer, reward_code
from ..schemas.contract import Contract
from ..schemas.dataset import Row
from ..schemas.environment import Environment
from .child_runtime import Channel, serve

LOAD_CPU_SECONDS = 120
"""What importing a scorer may use."""


class ScoreCall(Contract):
    """One call of the scorer and its limits; see `RewardLimits`."""

    row: Row
    completion: str
    cpu_seconds: float
    memory_mb: int


class ScoreAnswer(Contract):
    """What became of a call.

    Attributes:
        reward: a finite number; None when the call failed.
        parts: of the reward.
        failure: why it failed.
        out_of_memory: the memory limit was the reason.
        tainted: why this process is not to be asked again; None when it may be.
    """

    reward: float | None = None
    parts: dict[str, float | None] = Field(default_factory=dict[str, float | None])
    failure: str | None = None
    out_of_memory: bool = False
    tainted: str | None = None


def run(channel: Channel) -> None:
    """Serves `load` of an Environment and `score` of ScoreCalls.

    `load` returns the scorer's `reward_code` and may raise InvalidEnvironment.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    child = _RewardChild()
    serve(channel, {"load": child.load, "score": child.score})


class _RewardChild:
    def load(self, payload: Any) -> str | None:
        environment = TypeAdapter[Any](Environment).validate_json(json.dumps(payload))
        signal.setitimer(signal.ITIMER_PROF, LOAD_CPU_SECONDS)
        self._scorer: Scorer = load_scorer(environment)
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._folder = os.getcwd()
        self._memory = _address_space()
        self._threads = threading.active_count()
        self._processes = _has_child_processes()
        return reward_code(environment)

    def score(self, payload: Any) -> dict[str, Any]:
        call = ScoreCall.model_validate_json(payload["call"])
        _seed(call)
        answer = self._call(call)
        os.chdir(self._folder)
        left = self._left_running()
        if left is not None:
            answer = answer.model_copy(update={"tainted": left})
        return answer.model_dump(mode="json")

    def _call(self, call: ScoreCall) -> ScoreAnswer:
        try:
            with _limits(call.cpu_seconds, self._memory + call.memory_mb * 2**20):
                found = self._scorer(call.row, call.completion)
                return ScoreAnswer(reward=found.value, parts=found.parts)
        except MemoryError as fault:
            text = f"needed more than {call.memory_mb} MB of memory: {fault_text(fault)}"
            return ScoreAnswer(failure=text, out_of_memory=True, tainted="ran out of memory")
        except Exception as fault:
            return ScoreAnswer(failure=fault_text(fault))
        except BaseException as fault:  # sys.exit and its like
            return ScoreAnswer(failure=fault_text(fault), tainted=f"raised {type(fault).__name__}")

    def _left_running(self) -> str | None:
        """What the call left behind that could use the CPU seconds of the next one."""
        if threading.active_count() > self._threads:
            names = ", ".join(repr(thread.name) for thread in threading.enumerate()[self._threads :])
            return f"left threads running: {names}"
        if not self._processes and _has_child_processes():
            return "left a process running or not waited for"
        return None


@contextmanager
def _limits(cpu_seconds: float, address_space: int) -> Generator[None]:
    """Ends the process by SIGPROF after so much CPU time, and bounds its memory.

    The signal's default action needs no interpreter, so that it ends C code too.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    bound = address_space if most == resource.RLIM_INFINITY else min(address_space, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, most))
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _seed(call: ScoreCall) -> None:
    """Makes accidental randomness a function of the inputs."""
    inputs = f"{call.row.model_dump_json()}\n{call.completion}"
    seed = int.from_bytes(hashlib.blake2b(inputs.encode(errors="replace"), digest_size=4).digest(), "big")
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _address_space() -> int:
    """Size of this process's address space in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _has_child_processes() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
