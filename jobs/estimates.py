"""What a job will need, reckoned from its spec and the shape of its base model."""

import math
from collections.abc import Iterable
from itertools import pairwise
from statistics import median

from ..schemas.contract import Contract
from ..schemas.job_spec import JobSpec
from ..schemas.metric_row import MetricRow
from ..schemas.names import JobKey
from .model_shape import ModelShape

_FLOAT = 4
_TENSOR_BYTES = {"float32": 4, "bfloat16": 2}
_LOGITS = 2**23
"""Most logits that a trainer holds at once; see `engines/gradients.py`."""
_CROSSOVER = 2048
"""Of rows that share a prompt; see `engines/packing.py`."""
_KEPT = {"float32": (32, 16), "bfloat16": (40, 10)}
"""Bytes that a block keeps for the backward pass per token and unit of width, and of intermediate width:
counted in a Llama block with adapters on all seven linear layers. Other architectures and fewer targets
differ."""
_NO_WORK = ("tenant", "job", "steps", "seed", "trackers")
"""Fields that do not change what a step has to do."""
_BATCH_TOKEN, _BATCH_SEQUENCE = 9, 34
"""Bytes of a batch; see `schemas/batch.py`."""


class StepTokens(Contract):
    """Most tokens of one step: each prompt and completion as long as the spec allows, every refill used."""

    sequences: int
    completion: int
    """`sequences` · sampling.max_tokens."""
    total: int
    """`sequences` · (sampling.max_prompt_tokens + sampling.max_tokens)."""


class Memory(Contract):
    """Estimates for one spec on one model. Only the adapter and what is stored of it are exact."""

    adapter_parameters: int
    """Σ rank · (in + out) over the target layers."""
    adapter_bytes: int
    """4 · adapter_parameters; a version's adapter, without some KB of header."""
    optimizer_bytes: int
    """8 · adapter_parameters: two float32 moments."""
    stored_bytes: int
    """(steps + 1) · (adapter_bytes + optimizer_bytes) + steps · batch, each batch with the most tokens that a
    step can have, 9 bytes a token. Without evaluations and metrics."""
    base_bytes: int
    """Parameters of the model · bytes of `precision`."""
    kv_cache_bytes: int
    """2 · blocks · KV heads · head size · slots · context · bytes of `precision`, where the context is prompt
    and completion, rounded up to 32."""
    sampler_bytes: int
    """base_bytes + kv_cache_bytes + adapter_bytes."""
    activation_bytes: int
    """What the backward pass needs of one forward pass of M tokens: per block, token and unit of width about
    8 values, of intermediate width about 4, the rank of each adapter, and a row of the attention mask. With
    gradient checkpointing one value per block, token and unit of width, and one whole block. M is
    optimizer.micro_batch_tokens or one longest sequence, whichever is more, at most what the step has."""
    training_bytes: int
    """base_bytes + 16 · adapter_parameters (weights, gradients, moments) + activation_bytes + three blocks of
    at most 2^23 float32 logits. Without what the allocator and the libraries take."""


class StepTime(Contract):
    """What the steps of another job took.

    Attributes:
        steps: that were looked at.
        seconds: median from one commit to the next.
        total_seconds: that as often as the spec has steps.
        differing: fields in which that job's spec is another, as `path: its value, not ours`.
    """

    like: JobKey
    steps: int
    seconds: float
    total_seconds: float
    differing: tuple[str, ...]


class Estimate(Contract):
    """What `marlaas validate --explain` shows beside the spec.

    Attributes:
        memory: None when the model is not at hand; `unknown` then says why.
        time: None when no job was named whose steps were measured.
    """

    tokens: StepTokens
    memory: Memory | None
    unknown: str | None
    time: StepTime | None


def step_tokens(spec: JobSpec) -> StepTokens:
    """See `StepTokens`."""
    sampling = spec.sampling
    groups = sampling.groups_per_step + math.ceil(spec.objective.refill_limit * sampling.groups_per_step)
    sequences = groups * sampling.samples_per_group
    return StepTokens(
        sequences=sequences,
        completion=sequences * sampling.max_tokens,
        total=sequences * (sampling.max_prompt_tokens + sampling.max_tokens),
    )


def estimate_memory(spec: JobSpec, shape: ModelShape) -> Memory:
    """See `Memory`.

    Raises:
        UnknownShape: when the model has no layer of a target's name.
    """
    tokens, size = step_tokens(spec), _TENSOR_BYTES[spec.precision]
    parameters = sum(spec.lora.rank * (o + i) for o, i in shape.targets(spec.lora.targets).values())
    adapter, optimizer = _FLOAT * parameters, 2 * _FLOAT * parameters
    batch = _BATCH_TOKEN * tokens.total + _BATCH_SEQUENCE * tokens.sequences
    base = size * shape.parameters
    state = 2 * shape.blocks * shape.kv_heads * shape.head_dim * size
    cache = state * spec.sampling.slots * spec.sampling.context
    passed = _tokens_of_a_pass(spec, tokens)
    activations = _activation_bytes(spec, shape, passed)
    logits = 3 * _FLOAT * min(_LOGITS, passed * shape.vocabulary)
    return Memory(
        adapter_parameters=parameters,
        adapter_bytes=adapter,
        optimizer_bytes=optimizer,
        stored_bytes=(spec.steps + 1) * (adapter + optimizer) + spec.steps * batch,
        base_bytes=base,
        kv_cache_bytes=cache,
        sampler_bytes=base + cache + adapter,
        activation_bytes=activations,
        training_bytes=base + 2 * adapter + optimizer + activations + logits,
    )


def _tokens_of_a_pass(spec: JobSpec, tokens: StepTokens) -> int:
    sampling = spec.sampling
    longest = sampling.max_prompt_tokens + sampling.max_tokens
    return min(max(spec.optimizer.micro_batch_tokens, longest), tokens.total)


def _activation_bytes(spec: JobSpec, shape: ModelShape, tokens: int) -> int:
    size = _TENSOR_BYTES[spec.precision]
    prompt = spec.sampling.max_prompt_tokens
    row = min(tokens, round(prompt + math.sqrt(prompt * (prompt + _CROSSOVER)) + spec.sampling.max_tokens))
    width, intermediate = _KEPT[spec.precision]
    ranks = _FLOAT * spec.lora.rank * len(spec.lora.targets)
    kept = width * max(shape.hidden, shape.heads * shape.head_dim) + intermediate * shape.intermediate
    block = tokens * (kept + ranks + size * row + _FLOAT * shape.heads)
    if spec.optimizer.gradient_checkpointing:
        return shape.blocks * tokens * shape.hidden * size + block
    return shape.blocks * block


def step_time(spec: JobSpec, other: JobSpec, rows: Iterable[MetricRow]) -> StepTime | None:
    """The time that another job's steps took; None when it has committed too few to tell.

    Args:
        rows: of the other job, in order.
    """
    times = [row.time for row in rows if row.kind == "step" and row.time is not None]
    between = [later - earlier for earlier, later in pairwise(times)]
    if not between:
        return None
    ours, its = _values(spec), _values(other)
    return StepTime(
        like=other.key,
        steps=len(between),
        seconds=median(between),
        total_seconds=median(between) * spec.steps,
        differing=tuple(
            f"{path}: {its.get(path)}, not {ours.get(path)}"
            for path in dict.fromkeys((*ours, *its))
            if path not in _NO_WORK and ours.get(path) != its.get(path)
        ),
    )


def _values(spec: JobSpec) -> dict[str, object]:
    """The spec's values by path."""
    found: dict[str, object] = {}

    def visit(value: object, path: str) -> None:
        if isinstance(value, Contract):
            for name in type(value).model_fields:
                visit(getattr(value, name), f"{path}.{name}" if path else name)
        else:
            found[path] = value

    visit(spec, "")
    return found
