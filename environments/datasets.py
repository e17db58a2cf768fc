"""A job's dataset, made once from its environment: which prompts train, which are held out."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from ..schemas.dataset import Dataset, Row
from ..schemas.environment import (
    Environment,
    HuggingFaceEnvironment,
    JsonlEnvironment,
    MixtureEnvironment,
    ParquetEnvironment,
    ReasoningGymEnvironment,
)
from ..schemas.job_spec import JobSpec
from ..schemas.mixing import mixed
from .arrow_rows import read_parquet, read_saved
from .invalid import InvalidEnvironment, of_mixture
from .jsonl import read_jsonl
from .reasoning_gym import task_rows

_Digested = list[tuple[str, Row]]
"""Rows, each after the digest of its messages."""


def build_dataset(spec: JobSpec) -> Dataset:
    """Makes the dataset of a job; of a mixture, the rows of each environment in its order.

    The held-out prompts are those whose messages have the lowest sha256, so they depend neither on
    the order of the prompts nor on the job's seed, and jobs on the same prompts share them. No
    training row has the messages of a held-out one; of rows with equal messages in one environment, one is
    held out and the others are left out. A mixture holds out of each environment as many as its weight says.

    Raises:
        InvalidEnvironment: when the environment is wrong, or has too few prompts.
        OSError: when a file could not be read for a reason that may pass.
    """
    if not isinstance(spec.environment, MixtureEnvironment):
        rows = _with_digests(_read(spec.environment))
        held_out = _held_out(spec.environment, rows, spec.evaluation.prompts, "is")
        return Dataset(train=_others(rows, held_out), held_out=tuple(held_out.values()))
    mixture = spec.environment.of
    counts = _shares([one.weight for one in mixture], spec.evaluation.prompts)
    pools: list[_Digested] = []
    apart: list[dict[str, Row]] = []
    for index, one in enumerate(mixture):
        with of_mixture(index):
            rows = _with_digests(
                [row.model_copy(update={"environment": one.name}) for row in _read(one.environment)]
            )
        pools.append(rows)
        apart.append(
            _held_out(
                one.environment,
                rows,
                counts[index],
                f"is {spec.evaluation.prompts}, of which {one.name} gets",
            )
        )
    every = {digest: row for part in apart for digest, row in part.items()}
    train = [_others(rows, every) for rows in pools]
    for one, left in zip(mixture, train, strict=True):
        if not left:
            raise InvalidEnvironment(
                "environment.of",
                f"every prompt of {one.name} is held out in another environment: nothing is left to train on",
            )
    return Dataset(
        train=tuple(row for rows in train for row in rows),
        held_out=tuple(row for part in apart for row in part.values()),
    )


def _read(environment: Environment) -> list[Row]:
    match environment:
        case ReasoningGymEnvironment():
            return task_rows(environment)
        case JsonlEnvironment():
            return read_jsonl(environment.path, environment.prompt_field)
        case ParquetEnvironment():
            return read_parquet(environment.path, environment.prompt_field)
        case HuggingFaceEnvironment():
            return read_saved(environment.path, environment.split, environment.prompt_field)


def _shares(weights: Sequence[int], prompts: int) -> Counter[int]:
    return Counter(mixed(tuple(weights), position)[0] for position in range(prompts))


def _held_out(environment: Environment, rows: _Digested, wanted: int, whose: str) -> dict[str, Row]:
    """The rows to hold out, by the digests of their messages.

    Args:
        whose: words for the part of `evaluation.prompts` that falls to the environment.
    """
    first: dict[str, Row] = {}
    for digest, row in rows:
        first.setdefault(digest, row)
    if wanted >= len(first):
        pool = f"pool of {environment.pool}" if environment.kind == "reasoning-gym" else "data"
        raise InvalidEnvironment(
            "evaluation.prompts",
            f"{whose} {wanted}; the environment's {pool} has {len(first)} distinct prompts, and at least one "
            "has to be left to train on: hold out fewer, or give more prompts",
        )
    return {digest: first[digest] for digest in sorted(first)[:wanted]}


def _others(rows: _Digested, held_out: dict[str, Row]) -> tuple[Row, ...]:
    return tuple(row for digest, row in rows if digest not in held_out)


def _with_digests(rows: list[Row]) -> _Digested:
    return [(_digest(row), row) for row in rows]


def _digest(row: Row) -> str:
    messages = [[message.role, message.content] for message in row.messages]
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()
