"""Batches for the tests of training, built the way that a step builds them: from scored groups."""

from dataclasses import dataclass, replace

import numpy as np
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.trajectory import ScoredGroup, ScoredSample, Trajectory


@dataclass(frozen=True)
class Sample:
    """A completion of a group's prompt; `reward` None is a failure."""

    completion: list[int]
    reward: float | None
    mask: list[int] | None = None
    truncated: bool = False


def make_batch(groups: list[tuple[list[int], list[Sample]]], version: int = 0) -> Batch:
    """A batch of groups (prompt, samples), with log-probabilities of 0."""
    scored: list[tuple[ScoredGroup, list[Trajectory]]] = []
    for number, (prompt, samples) in enumerate(groups):
        trajectories = [
            _trajectory(f"g{number}", index, prompt, sample, version) for index, sample in enumerate(samples)
        ]
        ok = sum(sample.reward is not None for sample in samples) >= min(2, len(samples))
        scored.append((_scored(f"g{number}", samples, ok), trajectories))
    return Batch.assemble(scored)


def _trajectory(group: str, index: int, prompt: list[int], sample: Sample, version: int) -> Trajectory:
    tokens = prompt + sample.completion
    own = sample.mask if sample.mask is not None else [1] * len(sample.completion)
    return Trajectory.model_validate(
        {
            "group": group,
            "sample": index,
            "prompt_index": 0,
            "version": version,
            "adapter": "0" * 64,
            "token_ids": tokens,
            "mask": [0] * len(prompt) + own,
            "logprobs": [0.0] * len(tokens),
            "finish_reason": "length" if sample.truncated else "stop",
            "text": "",
        }
    )


def _scored(group: str, samples: list[Sample], ok: bool) -> ScoredGroup:
    return ScoredGroup(
        group=group,
        prompt_index=0,
        status="ok" if ok else "failed",
        reason=None if ok else "too few rewards",
        samples=tuple(
            ScoredSample(
                sample=index,
                stream_sequence=index + 1,
                reward=sample.reward,
                failure=None if sample.reward is not None else "no reward",
            )
            for index, sample in enumerate(samples)
        ),
    )


def random_batch(
    seed: int,
    *,
    groups: int,
    samples: int,
    prompt: tuple[int, int],
    completion: tuple[int, int],
    vocabulary: int,
    version: int = 0,
) -> Batch:
    """Random tokens, lengths (inclusive ranges) and rewards; log-probabilities between -3 and -0.1."""
    draw = np.random.default_rng(seed)

    def tokens(bounds: tuple[int, int]) -> list[int]:
        return draw.integers(3, vocabulary, draw.integers(bounds[0], bounds[1] + 1)).tolist()

    batch = make_batch(
        [
            (tokens(prompt), [Sample(tokens(completion), float(draw.random())) for _ in range(samples)])
            for _ in range(groups)
        ],
        version,
    )
    logprobs = draw.uniform(-3.0, -0.1, len(batch.mask)).astype(np.float32) * batch.mask
    return replace(batch, logprobs=logprobs.astype(np.float32))


def make_spec(**changes: object) -> JobSpec:
    """A job spec with the given parts replaced."""
    return JobSpec.model_validate(
        {
            "tenant": "acme",
            "job": "sums",
            "model": "tiny",
            "steps": 10,
            "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
            "sampling": {"groups_per_step": 4, "samples_per_group": 4, "max_tokens": 16},
            **changes,
        },
        strict=False,
    )
