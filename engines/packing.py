"""Training sequences as rows in which the samples of a group share their prompt.

A row is [prompt, completion 1, …, completion n]. Every completion attends to the prompt and to itself,
and its positions continue those of the prompt, so each token sees what it would see alone and the
prompt is computed once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..schemas.batch import Batch

_CROSSOVER = 2048
"""Row length, in tokens, from which attention over the whole row costs more than the linear layers:
about 4 hidden sizes of the smallest models in use. Larger models cross later, where shorter rows than
the best cost little."""

_LENGTHS = 16
"""Rows are padded to a multiple of so many tokens. Kernels treat what is left over of their vectors in
another way, and in another for one row than for several: without this, the same sequences in other
micro-batches have float32 gradients that differ by 1e-5 of the largest, and with it by less than 3e-6."""

_PROMPT = 0
_PADDING = -1


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass, padded at the end to the longest, and that to whole 16: R rows of L tokens.

    Attributes:
        token_ids: int64 [R, L]; 0 in the padding.
        positions: int64 [R, L].
        segments: int32 [R, L], 0 for a row's prompt, then 1, 2, … for its completions; -1 for padding.
        predictors: int64 [P], where in the flattened [R · L] outputs each trained token is predicted.
        targets: int64 [P], where in the batch's arrays that token stands.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int32]
    predictors: npt.NDArray[np.int64]
    targets: npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Span:
    """A sequence, as places in the batch's arrays: prompt [start, first), policy tokens up to `end`.

    The token at end - 1 predicts nothing, so it is no input.
    """

    start: int
    first: int
    end: int

    @property
    def inputs(self) -> int:
        return self.end - 1 - self.first


@dataclass(frozen=True)
class _Row:
    spans: list[_Span]

    @property
    def length(self) -> int:
        return self.spans[0].first - self.spans[0].start + sum(span.inputs for span in self.spans)

    @property
    def padded(self) -> int:
        return -(-self.length // _LENGTHS) * _LENGTHS


def pack(batch: Batch, sequences: Sequence[int], budget: int) -> list[MicroBatch]:
    """Lays the given sequences out in micro-batches; a pure function of its arguments.

    Sequences of one group with the same tokens before their first policy token share them. A group is
    split into several rows, each with the prompt, where a longer row would cost more than it saves.
    Rows of similar length go together.

    Args:
        sequences: indices into the batch; each has a policy token.
        budget: most tokens in a micro-batch, padding counted. A single sequence that needs more gets a
            micro-batch of its own.

    Returns:
        Micro-batches in which every policy token of the sequences is the target of one predictor.

    Raises:
        ValueError: when a sequence has no policy token, or starts with one, which nothing predicts.
    """
    shared: dict[tuple[int, bytes], list[_Span]] = {}
    for sequence in sequences:
        span = _span(batch, sequence)
        prompt = batch.token_ids[span.start : span.first].tobytes()
        shared.setdefault((int(batch.group[sequence]), prompt), []).append(span)
    rows = [row for spans in shared.values() for row in _rows(spans, budget)]
    rows.sort(key=lambda row: -row.length)
    return [_lay_out(batch, taken) for taken in _fill(rows, budget)]


def attention_mask(segments: torch.Tensor) -> torch.Tensor:
    """Who attends to whom: bool [R, 1, L, L], True where query i may see key j, from segments [R, L].

    Every position sees itself, so that no row of the softmax is empty; padding is seen by padding only.
    """
    query, key = segments[:, None, :, None], segments[:, None, None, :]
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    return causal & ((key == _PROMPT) | (key == query))


def _span(batch: Batch, sequence: int) -> _Span:
    start, stop = int(batch.offsets[sequence]), int(batch.offsets[sequence + 1])
    policy = np.flatnonzero(batch.mask[start:stop])
    if policy.size == 0 or policy[0] == 0:
        fault = "has no policy token" if policy.size == 0 else "starts with a policy token: it has no prompt"
        raise ValueError(f"sequence {sequence} of the batch {fault}")
    return _Span(start, start + int(policy[0]), start + int(policy[-1]) + 1)


def _rows(spans: list[_Span], budget: int) -> Iterator[_Row]:
    """Splits the samples of a prompt into rows.

    A row of p prompt and c completion tokens costs (p + c)(1 + (p + c) / crossover); per completion token
    that is least at c = √(p (p + crossover)).
    """
    prompt = spans[0].first - spans[0].start
    limit = min(budget // _LENGTHS * _LENGTHS - prompt, math.isqrt(prompt * (prompt + _CROSSOVER)))
    row: list[_Span] = []
    for span in spans:
        if row and sum(other.inputs for other in row) + span.inputs > limit:
            yield _Row(row)
            row = []
        row.append(span)
    yield _Row(row)


def _fill(rows: list[_Row], budget: int) -> Iterator[list[_Row]]:
    """Cuts rows, longest first, into micro-batches within the budget."""
    taken: list[_Row] = []
    for row in rows:
        if taken and (len(taken) + 1) * taken[0].padded > budget:
            yield taken
            taken = []
        taken.append(row)
    if taken:
        yield taken


def _lay_out(batch: Batch, rows: list[_Row]) -> MicroBatch:
    shape = len(rows), rows[0].padded
    token_ids = np.zeros(shape, np.int64)
    positions = np.zeros(shape, np.int64)
    segments = np.full(shape, _PADDING, np.int32)
    predictors: list[npt.NDArray[np.int64]] = []
    targets: list[npt.NDArray[np.int64]] = []
    for index, row in enumerate(rows):
        start, first = row.spans[0].start, row.spans[0].first
        prompt = column = first - start
        token_ids[index, :prompt] = batch.token_ids[start:first]
        positions[index, :prompt] = np.arange(prompt)
        segments[index, :prompt] = _PROMPT
        for number, span in enumerate(row.spans, start=1):
            own = slice(column, column + span.inputs)
            token_ids[index, own] = batch.token_ids[span.first : span.end - 1]
            positions[index, own] = prompt + np.arange(span.inputs)
            segments[index, own] = number
            # The token after the prompt is predicted by the prompt's end, every later one by its forerunner.
            columns = np.concatenate([[prompt - 1], np.arange(own.start, own.stop)])
            trained = np.flatnonzero(batch.mask[span.first : span.end])
            predictors.append(index * shape[1] + columns[trained])
            targets.append(span.first + trained)
            column = own.stop
    return MicroBatch(token_ids, positions, segments, np.concatenate(predictors), np.concatenate(targets))
