"""Tasks of the `reasoning-gym` package: their entries as prompts, their scorers."""

import dataclasses
import difflib
import random
from collections.abc import Iterable
from typing import Any, Protocol, cast

from ..schemas.dataset import Message, Row
from ..schemas.environment import ReasoningGymEnvironment
from .answers import Extraction, extract_answer
from .invalid import InvalidEnvironment
from .stored_entry import decode_entry, encode_entry

_ENTRY = "entry"


class _Task(Protocol):
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


class _Create(Protocol):
    def __call__(self, name: str, **options: Any) -> _Task: ...


class TaskScorer:
    """Scores a completion with the task's own scorer, after extracting its answer.

    The right answer scores 1; what a wrong one scores is the task's affair. Many tasks give a part:
    `chain_sum` gives 0.5 for 15 where 5 is right. An answer that the task's scorer cannot even read
    scores 0.
    """

    def __init__(self, environment: ReasoningGymEnvironment) -> None:
        """Raises InvalidEnvironment when there is no such task or its options are wrong."""
        self._task = _task(environment)
        self._extraction: Extraction = environment.answer

    def __call__(self, row: Row, completion: str) -> float:
        entry = decode_entry(row.fields[_ENTRY])
        answer = extract_answer(completion, self._extraction)
        try:
            return float(self._task.score_answer(answer, entry))
        except Exception:
            # Some scorers raise on text that they cannot read. When this one takes the right answer,
            # the completion was at fault and not the entry.
            self._task.score_answer(entry["answer"], entry)
            return 0.0


def task_rows(environment: ReasoningGymEnvironment) -> list[Row]:
    """One row per distinct question among the task's entries 0 to pool-1, in their order.

    A row's fields hold the whole entry, so that scoring does not depend on generating it again.
    Entry i of data seed s is entry i-1 of data seed s+1: pools of near seeds overlap.

    Raises:
        InvalidEnvironment: when there is no such task, its options are wrong or it cannot be stored.
    """
    task = _task(environment)
    rows: dict[str, Row] = {}
    before = random.getstate()
    random.seed(environment.data_seed)  # some tasks draw from the global generator
    try:
        for index in range(environment.pool):
            entry = _entry(task, index)
            if entry["question"] not in rows:
                rows[entry["question"]] = _row(environment, index, entry)
    finally:
        random.setstate(before)
    return list(rows.values())


def _entry(task: _Task, index: int) -> dict[str, Any]:
    try:
        return task[index]
    except Exception as fault:
        raise InvalidEnvironment(
            "environment.options", f"the task cannot generate entry {index}: {type(fault).__name__}: {fault}"
        ) from fault


def _row(environment: ReasoningGymEnvironment, index: int, entry: dict[str, Any]) -> Row:
    try:
        stored = encode_entry(entry)
    except ValueError as fault:
        raise InvalidEnvironment(
            "environment.task", f"is {environment.task!r}; its entry {index} cannot be stored: {fault}"
        ) from fault
    question = Message(role="user", content=entry["question"] + environment.suffix)
    system = () if environment.system is None else (Message(role="system", content=environment.system),)
    return Row(source=f"entry {index}", messages=(*system, question), fields={_ENTRY: stored})


def _task(environment: ReasoningGymEnvironment) -> _Task:
    try:
        from reasoning_gym import factory  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as fault:
        raise InvalidEnvironment(
            "environment.kind",
            "is 'reasoning-gym'; this worker lacks the package: pip install 'marlaas[tasks]'",
        ) from fault
    registry = cast(dict[str, tuple[type, type]], factory.DATASETS)
    if environment.task not in registry:
        raise InvalidEnvironment(
            "environment.task", f"no task is named {_unknown(environment.task, registry)}"
        )
    _check_options(environment, registry[environment.task][1])
    options = {**environment.options, "seed": environment.data_seed, "size": environment.pool}
    try:
        return cast(_Create, factory.create_dataset)(environment.task, **options)  # pyright: ignore[reportUnknownMemberType]
    except Exception as fault:
        raise InvalidEnvironment(
            "environment.options",
            f"are {environment.options}; {environment.task} refuses them: {fault or type(fault).__name__}",
        ) from fault


def _check_options(environment: ReasoningGymEnvironment, configuration: type) -> None:
    allowed = {option.name for option in dataclasses.fields(configuration)} - {"seed", "size"}
    ours = {"seed": "environment.data_seed", "size": "environment.pool"}
    for name in environment.options:
        if name in ours:
            raise InvalidEnvironment(
                "environment.options", f"has {name!r}, which {ours[name]} sets: put it there"
            )
        if name not in allowed:
            raise InvalidEnvironment(
                "environment.options", f"{environment.task} has no option {_unknown(name, allowed)}"
            )


def _unknown(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{name!r}; {hint}there are {', '.join(sorted(known))}"
