"""Rewards that do what rewards do to people."""

import asyncio
import ctypes
import fractions
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_HOARD: list[bytes] = []
_KEPT: list[object] = []


def reward(completion: str, *, messages: list[dict[str, Any]], **fields: Any) -> Any:
    """Runs what the completion names, so that one process sees them all."""
    return _BEHAVIOURS[completion](messages, fields)


async def later(completion: str, *, messages: list[dict[str, Any]], **fields: Any) -> Any:
    loop = asyncio.get_running_loop()
    _KEPT.append(loop)
    _KEPT.append(asyncio.create_task(asyncio.sleep(600)))
    await asyncio.sleep(0.001)
    if completion == "raise":
        raise ValueError("later")
    return float(all(kept is loop for kept in _KEPT if not isinstance(kept, asyncio.Task)))


def tokens(completion: str, *, messages: list[dict[str, Any]], **fields: Any) -> dict[str, int | None]:
    """How many tokens of rewards this process was given."""
    return {"seen": sum(name.startswith("MARLAAS_REWARD_") for name in os.environ), "unseen": None}


def pid(completion: str, *, messages: list[dict[str, Any]], **fields: Any) -> float:
    return float(os.getpid())


def _burn(seconds: float) -> float:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass
    return 1.0


def _spin() -> float:
    while True:
        pass


def _hold() -> float:
    """Uses up CPU in C, with the interpreter lock held, and never returns to Python."""
    return float(len(str(7 ** (7**10))))


def _allocate(megabytes: int) -> float:
    return float(len(bytearray(megabytes * 2**20)) > 0)


def _hoard() -> float:
    _HOARD.append(b"x" * (150 * 2**20))
    return float(len(_HOARD))


def _thread(seconds: float) -> float:
    threading.Thread(target=time.sleep, args=(seconds,), name="left over", daemon=True).start()
    return 1.0


def _threads_joined() -> float:
    total: list[int] = []
    threads = [threading.Thread(target=total.append, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(sum(total))


def _grandchild(folder: str) -> float:
    process = subprocess.Popen(["sleep", "600"])
    with open(os.path.join(folder, "grandchild"), "w") as file:
        file.write(str(process.pid))
    return 1.0


def _slow_grandchild(folder: str) -> float:
    _grandchild(folder)
    time.sleep(600)
    return 1.0


def _fails_until(folder: str, times: int) -> float:
    """Dies in its first attempts, then answers."""
    path = os.path.join(folder, "attempts")
    with open(path, "a") as file:
        file.write("x")
    if os.path.getsize(path) <= times:
        os._exit(9)
    return 1.0


def _chdir() -> float:
    here = os.getcwd()
    os.chdir("/")
    return float(here != "/")


def _unblockable() -> float:
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    return 1.0


def _catches_everything() -> float:
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def _raise_surrogate() -> float:
    raise ValueError("half \ud83d a pair")


def _raise_escapes() -> float:
    raise ValueError("\x1b[31m red \x00")


class _Liar:
    def __float__(self) -> float:
        raise ZeroDivisionError("in __float__")

    def __repr__(self) -> str:
        raise RuntimeError("in __repr__")


_BEHAVIOURS: dict[str, Callable[[list[dict[str, Any]], dict[str, Any]], Any]] = {
    "one": lambda messages, fields: 1,
    "half": lambda messages, fields: 0.5,
    "true": lambda messages, fields: True,
    "false": lambda messages, fields: False,
    "numpy": lambda messages, fields: np.float32(0.25),
    "numpy bool": lambda messages, fields: np.bool_(True),
    "fraction": lambda messages, fields: fractions.Fraction(1, 8),
    "none": lambda messages, fields: None,
    "nan": lambda messages, fields: float("nan"),
    "inf": lambda messages, fields: -float("inf"),
    "text": lambda messages, fields: "1.0",
    "complex": lambda messages, fields: 1j,
    "huge": lambda messages, fields: 10**400,
    "array": lambda messages, fields: np.zeros(2),
    "liar": lambda messages, fields: _Liar(),
    "messages": lambda messages, fields: float(messages == [{"role": "user", "content": "?"}]),
    "fields": lambda messages, fields: float(fields["tool"] == {"args": {"b": None, "c": [1, 2.5]}}),
    "raise": lambda messages, fields: json.loads("{"),
    "raise escapes": lambda messages, fields: _raise_escapes(),
    "raise surrogate": lambda messages, fields: _raise_surrogate(),
    "exit": lambda messages, fields: sys.exit(3),
    "os exit": lambda messages, fields: os._exit(3),
    "kill": lambda messages, fields: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda messages, fields: ctypes.string_at(0),
    "spin": lambda messages, fields: _spin(),
    "hold": lambda messages, fields: _hold(),
    "catch": lambda messages, fields: _catches_everything(),
    "burn": lambda messages, fields: _burn(0.1),
    "nap": lambda messages, fields: time.sleep(0.5) or 1.0,
    "sleep": lambda messages, fields: time.sleep(600),
    "stop": lambda messages, fields: os.kill(os.getpid(), signal.SIGSTOP),
    "allocate": lambda messages, fields: _allocate(4096),
    "allocate some": lambda messages, fields: _allocate(200),
    "hoard": lambda messages, fields: _hoard(),
    "thread": lambda messages, fields: _thread(600),
    "threads": lambda messages, fields: _threads_joined(),
    "grandchild": lambda messages, fields: _grandchild(fields["folder"]),
    "slow grandchild": lambda messages, fields: _slow_grandchild(fields["folder"]),
    "run": lambda messages, fields: float(subprocess.run(["true"]).returncode == 0),
    "fails once": lambda messages, fields: _fails_until(fields["folder"], 1),
    "fails thrice": lambda messages, fields: _fails_until(fields["folder"], 3),
    "chdir": lambda messages, fields: _chdir(),
    "block": lambda messages, fields: _unblockable(),
    "print": lambda messages, fields: print("printed " * 10_000) or 1.0,  # noqa: T201
    "stdin": lambda messages, fields: float(sys.stdin.read() == ""),
    "random": lambda messages, fields: random.random() + np.random.random(),
    "hash": lambda messages, fields: float(hash("text") % 1000),
    "pid": lambda messages, fields: float(os.getpid()),
    "secret": lambda messages, fields: float("SECRET" in os.environ),
    "close": lambda messages, fields: os.closerange(3, 256),
    "fork": lambda messages, fields: float(os.fork() == 0),
    "recurse": lambda messages, fields: _BEHAVIOURS["recurse"](messages, fields),
}
