"""A job's dataset, made once from its environment: which prompts train, which are held out."""

import hashlib
import json

from ..schemas.dataset import Dataset, Row
from ..schemas.job_spec import JobSpec, JsonlEnvironment, ReasoningGymEnvironment
from .invalid import InvalidEnvironment
from .jsonl import read_jsonl
from .reasoning_gym import task_rows


def build_dataset(spec: JobSpec) -> Dataset:
    """Makes the dataset of a job.

    The held-out prompts are those whose messages have the lowest sha256, so they depend neither on
    the order of the prompts nor on the job's seed, and jobs on the same prompts share them. No
    training row has the messages of a held-out one; of rows with equal messages, one is held out and
    the others are left out.

    Raises:
        InvalidEnvironment: when the environment is wrong, or has too few prompts.
        OSError: when a file could not be read for a reason that may pass.
    """
    match spec.environment:
        case ReasoningGymEnvironment() as environment:
            rows, pool = task_rows(environment), f"pool of {environment.pool}"
        case JsonlEnvironment() as environment:
            rows, pool = read_jsonl(environment.path), "file"
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(_digest(row), row)
    wanted = spec.evaluation.prompts
    if wanted >= len(first):
        raise InvalidEnvironment(
            "evaluation.prompts",
            f"is {wanted}; the environment's {pool} has {len(first)} distinct prompts, and at least one "
            "has to be left to train on: hold out fewer, or give more prompts",
        )
    held_out = {digest: first[digest] for digest in sorted(first)[:wanted]}
    train = tuple(row for row in rows if _digest(row) not in held_out)
    return Dataset(train=train, held_out=tuple(held_out.values()))


def _digest(row: Row) -> str:
    messages = [[message.role, message.content] for message in row.messages]
    return hashlib.sha256(json.dumps(messages).encode()).hexdigest()
