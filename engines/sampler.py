"""Continuous batching: groups of samples from many adapters decode side by side, one token a step."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from ..schemas.job_spec import LoraSpec
from ..schemas.seeds import uniform
from .adapter_cache import AdapterCache
from .base_model import BaseModel
from .batched_decoder import BatchedDecoder
from .batched_lora import AdapterWeights
from .seating import arrange
from .slot_cache import PromptState
from .stop_strings import StopSearch, StopStrings
from .token_choice import Choice, choose


@dataclass(frozen=True)
class GroupRequest:
    """Samples of one prompt from one adapter.

    Attributes:
        request: id, unique among the requests in flight.
        prompt_ids: at least one token.
        seeds: one a sample; token i of a sample is drawn by `schemas.seeds.uniform(seed, i)`.
        temperature: 0 is greedy decoding.
        max_tokens: longest completion, at least 1.
        adapter: from `Sampler.load_adapter`.
        stop: strings, each of which ends a completion when its text holds it.
    """

    request: str
    prompt_ids: Sequence[int]
    seeds: Sequence[int]
    temperature: float
    max_tokens: int
    adapter: AdapterWeights
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedSample:
    """One completion.

    Attributes:
        request: id of its request.
        sample: index in the request's seeds.
        token_ids: what was drawn, a stop token or the tokens of a stop string included; empty when it failed.
        logprobs: of every token, natural logarithm, in the distribution that it was drawn from; see
            `token_choice.choose`.
        finish_reason: as in `schemas.trajectory.Trajectory`.
        text: of the tokens, up to a stop string.
        failure: why it failed; None otherwise.
    """

    request: str
    sample: int
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: Literal["stop", "length", "failed"]
    text: str = ""
    failure: str | None = None


@dataclass(eq=False)
class _Sample:
    group: GroupRequest
    index: int
    stop: StopStrings
    search: StopSearch
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def next_uniform(self) -> float:
        return uniform(self.group.seeds[self.index], len(self.token_ids))

    @property
    def last_position(self) -> int:
        return len(self.group.prompt_ids) + len(self.token_ids) - 1

    def take(self, choice: Choice | None, stop_ids: frozenset[int]) -> FinishedSample | None:
        """Appends a drawn token; returns the sample when that ends it."""
        if choice is None:
            failure = f"the logits for token {len(self.token_ids)} of the completion are not finite"
            return FinishedSample(self.group.request, self.index, [], [], "failed", failure=failure)
        self.token_ids.append(choice.token)
        self.logprobs.append(choice.logprob)
        stopped = choice.token in stop_ids or self.search.ends(self.token_ids)
        if not stopped and len(self.token_ids) < self.group.max_tokens:
            return None
        reason = "stop" if stopped else "length"
        text = self.stop.text(self.token_ids)
        return FinishedSample(self.group.request, self.index, self.token_ids, self.logprobs, reason, text)


class Sampler:
    """Samples many groups at once. What a sample gets depends on its prompt, seed, temperature, limit and
    adapter, to the bit, and not on what else is in flight, when it was added or in which slot it is.

    Not thread-safe; whoever owns it calls `step` until it is `idle`.
    """

    def __init__(self, base: BaseModel, *, slots: int, context: int, adapters: int = 8) -> None:
        """Reserves the cache and tries how this processor computes; see `BatchedDecoder`.

        Args:
            slots: sequences that decode at once.
            context: longest sequence, prompt and completion.
            adapters: how many adapters are kept in memory; more only while more are in use.

        Raises:
            UnusableModel: when the model can't be sampled deterministically.
        """
        self._decoder = BatchedDecoder(base, slots, context)
        self._adapters = AdapterCache(base, adapters)
        self._stop_ids = base.stop_ids
        self._tokenizer = base.tokenizer
        self._vocabulary = int(base.model.config.vocab_size)
        self._slots, self._context = slots, context
        self._groups: deque[GroupRequest] = deque()
        self._ready: deque[tuple[_Sample, PromptState]] = deque()
        self._seats: list[_Sample | None] = []

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not (self._groups or self._ready or any(self._seats))

    def load_adapter(self, digest: str, path: Path, lora: LoraSpec) -> AdapterWeights:
        """The adapter with a digest; its file is read only when it is not in memory.

        Args:
            path: safetensors with PEFT's names.

        Raises:
            UnusableModel: when the file does not fit the base model and the spec; names the tensors.
        """
        return self._adapters.load(digest, path, lora, {group.adapter for group in self._in_flight()})

    def add(self, group: GroupRequest) -> None:
        """Queues a group. Groups start in the order in which they were added.

        Raises:
            ValueError: when the group can't be sampled; says why.
        """
        problem = self._problem(group)
        if problem:
            raise ValueError(f"request {group.request!r}: {problem}")
        self._groups.append(group)

    def cancel(self, request: str) -> None:
        """Drops what is left of a request; its samples in flight are not reported."""
        self._groups = deque(group for group in self._groups if group.request != request)
        self._ready = deque(pair for pair in self._ready if pair[0].group.request != request)
        self._seats = [s if s and s.group.request != request else None for s in self._seats]

    def step(self) -> list[FinishedSample]:
        """Starts waiting samples in free slots, then draws one token for every sample in a slot.

        Returns:
            The samples that this ended.
        """
        finished = self._admit()
        seated = [sample for sample in self._seats if sample]
        if not seated:
            return finished
        logits = self._decoder.decode(
            [sample.token_ids[-1] for sample in seated],
            [sample.last_position for sample in seated],
            [sample.group.adapter for sample in seated],
        )
        for slot, end in enumerate(self._draw(logits, seated)):
            if end:
                finished.append(end)
                self._seats[slot] = None
        return finished

    def _admit(self) -> list[FinishedSample]:
        finished: list[FinishedSample] = []
        arriving: list[tuple[_Sample, PromptState]] = []
        free = self._slots - sum(sample is not None for sample in self._seats)
        while len(arriving) < free and (self._ready or self._groups):
            if self._ready:
                arriving.append(self._ready.popleft())
            else:
                finished += self._start(self._groups.popleft())
        if arriving or None in self._seats:
            self._seat(arriving)
        return finished

    def _start(self, group: GroupRequest) -> list[FinishedSample]:
        """Runs a group's prompt once and draws the first token of all its samples."""
        prompt = self._decoder.prefill(group.prompt_ids, group.adapter)
        stop = StopStrings(self._tokenizer, group.stop)
        samples = [_Sample(group, index, stop, StopSearch(stop)) for index in range(len(group.seeds))]
        ends: list[FinishedSample | None] = []
        for first in range(0, len(samples), self._slots):  # in parts, so that a large group's logits fit
            part = samples[first : first + self._slots]
            ends += self._draw(prompt.logits.repeat(len(part), 1), part)
        self._ready.extend(
            (sample, prompt.state) for sample, end in zip(samples, ends, strict=True) if not end
        )
        return [end for end in ends if end]

    def _draw(self, logits: torch.Tensor, samples: Sequence[_Sample]) -> list[FinishedSample | None]:
        temperatures = [sample.group.temperature for sample in samples]
        choices = choose(logits, temperatures, [sample.next_uniform for sample in samples])
        return [sample.take(choice, self._stop_ids) for sample, choice in zip(samples, choices, strict=True)]

    def _seat(self, arriving: Sequence[tuple[_Sample, PromptState]]) -> None:
        """Packs the samples in flight, neighbours by adapter, and writes the arriving ones' prompts."""
        old = len(self._seats)
        order = arrange(
            [sample and sample.group.adapter for sample in self._seats],
            [sample.group.adapter for sample, _ in arriving],
        )
        moves = [(who, slot) for slot, who in enumerate(order) if who < old and who != slot]
        if moves:
            self._decoder.cache.move(moves)
        for slot, who in enumerate(order):
            if who >= old:
                self._decoder.cache.enter(slot, arriving[who - old][1])
        everyone = [*self._seats, *(sample for sample, _ in arriving)]
        self._seats = [everyone[who] for who in order]

    def _in_flight(self) -> Iterator[GroupRequest]:
        yield from self._groups
        yield from (sample.group for sample, _ in self._ready)
        yield from (sample.group for sample in self._seats if sample)

    def _problem(self, group: GroupRequest) -> str | None:
        tokens, most, seeds = len(group.prompt_ids), group.max_tokens, len(group.seeds)
        if any(other.request == group.request for other in self._in_flight()):
            return "a request with this id is in flight"
        if min(tokens, seeds, most) < 1:
            return f"{tokens} prompt tokens, {seeds} seeds and max_tokens {most}; each must be at least 1"
        if not 0 <= group.temperature < math.inf:
            return f"temperature is {group.temperature}; it must be finite and at least 0"
        if tokens + most > self._context:
            return f"{tokens} prompt tokens and max_tokens {most} exceed the context of {self._context}"
        strange = [token for token in group.prompt_ids if not 0 <= token < self._vocabulary]
        if strange:
            return f"prompt token {strange[0]} is not in the vocabulary of {self._vocabulary}"
        return None
