"""Reward functions as users write them, called in this process; their faults are in the pool's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.fault_text import fault_text
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.environments.reward import checked_number
from marlaas.environments.scoring import load_scorer
from marlaas.environments.user_reward import UserReward
from marlaas.schemas.dataset import Message, Row
from marlaas.schemas.environment import JsonlEnvironment

ROW = Row(source="line 1", messages=(Message(role="user", content="?"),), fields={"answer": "42"})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that can be imported as `written_reward`."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path / "written_reward.py"
    sys.modules.pop("written_reward", None)


def load(name: str = "written_reward:reward") -> Any:
    return load_scorer(JsonlEnvironment(kind="jsonl", path="unused", reward=name))


def test_a_reward_gets_completion_messages_and_fields(module: Path) -> None:
    module.write_text(
        "def reward(completion, *, messages, **fields):\n"
        "    assert messages == [{'role': 'user', 'content': '?'}] and fields == {'answer': '42'}\n"
        "    messages.clear()\n"
        "    return completion == fields['answer']\n"
    )
    scorer = load()
    assert [scorer(ROW, "42").value, scorer(ROW, "41").value] == [1.0, 0.0]


def test_async_rewards_keep_one_loop_and_no_task(module: Path) -> None:
    module.write_text(
        "import asyncio\n"
        "loops, tasks = set(), []\n"
        "async def reward(completion, *, messages, **fields):\n"
        "    loops.add(asyncio.get_running_loop())\n"
        "    tasks.append(asyncio.create_task(asyncio.sleep(600)))\n"
        "    await asyncio.sleep(0)\n"
        "    return len(loops) + sum(not task.done() for task in tasks[:-1])\n"
    )
    scorer = load()
    assert [scorer(ROW, "").value for _ in range(3)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("source", "name", "problem"),
    [
        (
            "def reward(",
            "written_reward:reward",
            r"failed: SyntaxError: .*written_reward.py, line 1",
        ),
        (
            "x = 1\nraise KeyError('k')",
            "written_reward:reward",
            r"KeyError: 'k' \(written_reward.py, line 2: ",
        ),
        ("import sys; sys.exit(2)", "written_reward:reward", "importing it failed: SystemExit: 2"),
        ("import no_such_library", "written_reward:reward", "No module named 'no_such_library'"),
        ("", "no_such_module_here:reward", "No module named 'no_such_module_here'"),
        (
            "def rewart(): 0",
            "written_reward:reward",
            r"written_reward.py has nothing of that name, not",
        ),
        ("reward = 3", "written_reward:reward", "has a int, not a function"),
        (
            "def reward(text): return 0",
            "written_reward:reward",
            r"cannot be called as reward\(completion, messages=…, \*\*fields\): got an unexpected keyword",
        ),
        ("def reward(*, messages): return 0", "written_reward:reward", "too many positional arguments"),
    ],
)
def test_what_cannot_be_loaded_is_refused(module: Path, source: str, name: str, problem: str) -> None:
    module.write_text(source)
    with pytest.raises(InvalidEnvironment, match=problem) as caught:
        load(name)
    assert caught.value.path == "environment.reward"
    assert repr(name) in caught.value.problem


@pytest.mark.parametrize(("value", "reward"), [(True, 1.0), (False, 0.0), (3, 3.0), (-0.5, -0.5)])
def test_numbers_are_rewards(value: object, reward: float) -> None:
    assert checked_number(value) == reward
    assert type(checked_number(value)) is float


@pytest.mark.parametrize("value", [None, "1", float("nan"), float("inf"), 1j, [1.0], {}, 10**400])
def test_nothing_else_is(value: object) -> None:
    with pytest.raises(ValueError, match="the reward function returned"):
        checked_number(value)


def test_a_fault_is_told_with_the_users_line(module: Path) -> None:
    module.write_text(
        "import json\n"
        "def parse(text):\n"
        "    return json.loads(text)\n"
        "def reward(completion, *, messages, **fields):\n"
        "    return parse(completion)\n"
    )
    with pytest.raises(ValueError, match="Expecting property name") as caught:
        load()(ROW, "{")
    text = fault_text(caught.value)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert text.endswith("(written_reward.py, line 3: return json.loads(text))")


def test_a_fault_text_is_bounded_and_always_text() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert fault_text(Unprintable()) == "Unprintable: <its str() raised RuntimeError>"
    assert fault_text(ValueError()) == "ValueError"
    assert len(fault_text(ValueError("x" * 10**6))) < 1100
    fault_text(ValueError("\ud800")).encode()


def test_missing_fields_are_the_samples_failure() -> None:
    def reward(completion: str, *, messages: list[dict[str, str]], solution: str) -> float:
        return float(completion == solution)

    with pytest.raises(TypeError, match="unexpected keyword argument 'answer'"):
        UserReward(reward)(ROW, "")
