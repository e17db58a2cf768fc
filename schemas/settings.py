"""What may be changed while a job runs, and from which step on a change acts."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field

from .contract import Contract
from .job_spec import InvalidJobSpec, JobSpec, parse_job_spec

Acts = Literal["training", "sampling"]

SETTABLE: Final[Mapping[str, Acts]] = {
    "optimizer.learning_rate": "training",
    "optimizer.weight_decay": "training",
    "optimizer.max_grad_norm": "training",
    "optimizer.mini_batches": "training",
    "optimizer.epochs": "training",
    "objective.clip_low": "training",
    "objective.clip_high": "training",
    "objective.kl.coefficient": "training",
    "rewards.max_failed_share": "training",
    "evaluation.every": "training",
    "steps": "training",
    "objective.refill_limit": "sampling",
    "sampling.temperature": "sampling",
    "rewards.cpu_seconds": "sampling",
    "rewards.wall_seconds": "sampling",
    "rewards.attempts": "sampling",
}
"""By path, where a change acts: from the next step that is not trained yet, or from the next set of prompts
that is not dispatched yet."""


class Setting(Contract):
    """A field of the job spec that was given another value while the job ran.

    Attributes:
        path: of the field, for example `optimizer.learning_rate`.
        from_step: first step that the value holds for.
    """

    path: str
    value: int | float
    from_step: Annotated[int, Field(ge=0)]


def with_settings(spec: JobSpec, settings: Iterable[Setting], step: int) -> JobSpec:
    """The spec as it holds for a step; a later setting of the same field wins."""
    holding = {setting.path: setting.value for setting in settings if setting.from_step <= step}
    return _changed(spec, holding) if holding else spec


def settle(spec: JobSpec, changes: Any, *, untrained: int, undispatched: int) -> tuple[Setting, ...]:
    """What changes of a running job come to.

    Args:
        spec: as it holds now.
        changes: values by path.
        untrained: the first step that is not trained yet.
        undispatched: the first step whose prompts are not dispatched yet.

    Raises:
        InvalidJobSpec: when a path may not be set, or a value is not allowed.
    """
    if not isinstance(changes, dict) or not changes:
        raise InvalidJobSpec(f"`set` is given {changes!r}; a mapping from paths to values is needed")
    values = cast(dict[str, Any], changes)
    steps = _changed(spec, values).steps
    if steps < undispatched:
        raise InvalidJobSpec(f"steps is {steps}: the prompts of {undispatched} are dispatched already")
    first = {"training": untrained, "sampling": undispatched}
    return tuple(
        Setting(path=path, value=value, from_step=first[SETTABLE[path]]) for path, value in values.items()
    )


def _changed(spec: JobSpec, changes: Mapping[str, Any]) -> JobSpec:
    data = spec.model_dump(mode="json")
    for path, value in changes.items():
        if path not in SETTABLE:
            raise InvalidJobSpec(f"{path} can't be set while a job runs; what can: {', '.join(SETTABLE)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidJobSpec(f"{path} is {json.dumps(value, default=repr)}: a number is needed")
        *parents, field = path.split(".")
        place = data
        for parent in parents:
            place = place[parent]
            if place is None:
                raise InvalidJobSpec(f"{path} can't be set: the job has no {path.rpartition('.')[0]}")
        place[field] = value
    return parse_job_spec(data)
