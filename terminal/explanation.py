"""What `marlaas validate --explain` prints: the whole spec, and what a job of it will need."""

import json
from pathlib import Path
from typing import Any, cast

import typer
import yaml
from pydantic import BaseModel

from ..job import Job
from ..jobs.estimates import Estimate, Memory, StepTime, estimate_memory, step_time, step_tokens
from ..jobs.model_shape import UnknownShape, find_model, read_shape
from ..schemas.job_spec import JobSpec
from .words import count, duration


async def show_explanation(spec: JobSpec, models: Path, like: Job | None, *, as_json: bool) -> None:
    """Prints a spec with all its values, and estimates.

    Args:
        models: where the workers of this machine keep base models.
        like: a job whose steps' time is this one's estimate.
    """
    time = None
    if like is not None:
        other = await like.spec()
        time = step_time(spec, other, [row async for row in like.metric_rows()])
    memory = unknown = None
    try:
        memory = estimate_memory(spec, read_shape(find_model(spec.model, models)))
    except UnknownShape as error:
        unknown = str(error)
    estimate = Estimate(tokens=step_tokens(spec), memory=memory, unknown=unknown, time=time)
    if as_json:
        typer.echo(json.dumps({"spec": _values(spec), "estimate": estimate.model_dump(mode="json")}))
        return
    typer.echo(yaml.safe_dump(_values(spec), sort_keys=False, allow_unicode=True, default_flow_style=None))
    typer.echo("\n".join(_lines(estimate, like)))


def _values(value: Any) -> Any:
    """A spec as plain values, also those that its JSON leaves out because they are the defaults."""
    if isinstance(value, BaseModel):
        return {name: _values(getattr(value, name)) for name in type(value).model_fields}
    return [_values(one) for one in cast(tuple[Any, ...], value)] if isinstance(value, tuple) else value


def _lines(estimate: Estimate, like: Job | None) -> list[str]:
    tokens = estimate.tokens
    return [
        f"A step: at most {count(tokens.sequences)} samples with {count(tokens.completion)} tokens of "
        f"completions, {count(tokens.total)} with their prompts.",
        "",
        *(
            _memory(estimate.memory)
            if estimate.memory
            else [f"Memory and storage: unknown: {estimate.unknown}."]
        ),
        "",
        *_time(estimate.time, like),
    ]


def _memory(memory: Memory) -> list[str]:
    rows = (
        ("adapter", memory.adapter_bytes, f"{count(memory.adapter_parameters)} float32 parameters"),
        ("optimizer state", memory.optimizer_bytes, "two moments of each"),
        ("stored by the job", memory.stored_bytes, "all versions and their batches, at most"),
        ("base model", memory.base_bytes, "in each engine process"),
        ("sampler's KV cache", memory.kv_cache_bytes, "slots × context × layers"),
        ("sampler", memory.sampler_bytes, "base model, KV cache and one adapter"),
        ("kept for gradients", memory.activation_bytes, "of one forward pass"),
        ("trainer", memory.training_bytes, "base model, adapter with its state, gradients"),
    )
    return [
        "Estimates of memory and storage, without what allocators and libraries take:",
        *(f"  {name:<20}{_size(size):>12}  {what}" for name, size, what in rows),
    ]


def _time(time: StepTime | None, like: Job | None) -> list[str]:
    if like is None:
        return ["Time: unknown: name a job whose steps were measured, with --like."]
    if time is None:
        return [f"Time: unknown: job {like.key} has not committed two steps whose times were kept."]
    lines = [
        f"Time: {duration(time.seconds)} a step, {duration(time.total_seconds)} in all, if steps take as "
        f"long as those of {time.like} (median of {time.steps}).",
    ]
    if time.differing:
        lines += ["That job differs:", *(f"  {one}" for one in time.differing)]
    return lines


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
