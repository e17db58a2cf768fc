"""Rewards that users write: `def reward(completion: str, *, messages: list[dict], **fields) -> float`.

They may return None where they do not apply, or a dictionary of named parts.
"""

import asyncio
import hashlib
import inspect
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..schemas.contract import Digest
from ..schemas.dataset import Row
from .fault_text import fault_text
from .invalid import InvalidEnvironment


class UserReward:
    """Calls a user's function, sync or async, with a row's messages and fields.

    An async function runs in one event loop for all calls, so that it may keep a client open; what a
    call leaves running is cancelled at its end.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._runner = asyncio.Runner()

    def __call__(self, row: Row, completion: str) -> object:
        messages = [message.model_dump() for message in row.messages]
        value = self._function(completion, messages=messages, **row.fields)
        if inspect.isawaitable(value):
            return self._runner.run(_finish(value))
        return value


def load_user_reward(name: str, path: str) -> UserReward:
    """The reward function `module:function`, which stands at `path` in the spec.

    Raises:
        InvalidEnvironment: when it cannot be imported, or not be called as rewards are.
    """
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except BaseException as fault:
        raise InvalidEnvironment(path, f"is {name!r}; importing it failed: {fault_text(fault)}") from fault
    function = getattr(module, function_name, None)
    if not callable(function):
        found = "nothing of that name" if function is None else f"a {type(function).__name__}"
        raise InvalidEnvironment(path, f"is {name!r}; {module.__file__} has {found}, not a function")
    try:
        inspect.signature(function).bind_partial("completion", messages=[])
    except TypeError as fault:
        raise InvalidEnvironment(
            path, f"is {name!r}; it cannot be called as reward(completion, messages=…, **fields): {fault}"
        ) from fault
    except ValueError:
        pass  # written in C, without a signature
    return UserReward(function)


def source_digest(name: str) -> Digest | None:
    """sha256 of the file that the module of a loaded reward `module:function` was imported from.

    Of a package it is `__init__.py` alone. None when the module has no file that can be read.
    """
    file: str | None = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file is not None else None
    except OSError:
        return None


async def _finish(value: Awaitable[Any]) -> Any:
    try:
        return await value
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
