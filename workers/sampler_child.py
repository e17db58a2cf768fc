"""The process that holds the sampler: calls come at any time, and their samples decode in one batch."""

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from ..engines.chat import prompt_ids
from ..engines.resident_models import ResidentModel
from ..engines.sampler import FinishedSample, GroupRequest, Sampler
from ..schemas.engine_calls import Completion, PromptGroup, SampleCall, SampledGroup
from .child_runtime import Channel, Request


@dataclass(eq=False)
class _OpenGroup:
    """A group that is being sampled for a request."""

    request: Request
    group: PromptGroup
    prompt_ids: list[int]
    completions: list[Completion] = field(default_factory=list[Completion])


class SamplerChild:
    """Answers `sample` (`SampleCall`) with one `SampledGroup` per group, each when it is done.

    All calls in work are for one base model and one shape; a call for another waits until they end.
    """

    def __init__(self, channel: Channel, model: ResidentModel) -> None:
        self._channel = channel
        self._model = model
        self._batch: tuple[str, str, int, int] | None = None
        self._sampler: Sampler | None = None
        self._waiting: deque[Request] = deque()
        self._open: dict[str, _OpenGroup] = {}
        self._ids = 0

    def serve(self) -> None:
        """Decodes as long as there is something to decode, and listens in between."""
        while True:
            idle = not self._open and not self._waiting
            request = self._channel.receive(None if idle else 0)
            while request is not None:
                self._waiting.append(request)
                request = self._channel.receive(0)
            self._drop_cancelled()
            self._begin_waiting()
            if self._sampler is not None and self._open:
                for finished in self._sampler.step():
                    self._finish(finished)

    def _drop_cancelled(self) -> None:
        self._waiting = deque(request for request in self._waiting if not request.cancelled)
        for request in {group.request for group in self._open.values() if group.request.cancelled}:
            self._forget(request)

    def _forget(self, request: Request) -> None:
        for name in [name for name, group in self._open.items() if group.request is request]:
            assert self._sampler is not None
            self._sampler.cancel(name)
            del self._open[name]

    def _begin_waiting(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            try:
                if not self._begin(request):
                    return
            except Exception as error:  # a call that can't be begun is refused; the others go on
                self._forget(request)
                self._channel.error(request, error)
            self._waiting.popleft()

    def _begin(self, request: Request) -> bool:
        """Adds the call's groups to the batch; False when the batch is of another model or shape."""
        call = SampleCall.model_validate(request.payload, strict=False)
        spec = call.spec
        batch = (spec.model, spec.precision, spec.sampling.slots, spec.sampling.context)
        if self._open and self._batch != batch:
            return False
        base = self._model.get(spec.model, spec.precision, call.fingerprint)
        if self._sampler is None or self._batch != batch:
            self._sampler = None  # its cache is freed before the next is reserved
            self._sampler = Sampler(base, slots=spec.sampling.slots, context=spec.sampling.context)
            self._batch = batch
        adapter = self._sampler.load_adapter(call.adapter, Path(call.adapter_path), spec.lora)
        prompts = [prompt_ids(base.tokenizer, group.messages) for group in call.groups]
        for group, prompt in zip(call.groups, prompts, strict=True):
            self._ids += 1
            name = str(self._ids)
            self._open[name] = _OpenGroup(request, group, prompt)
            self._sampler.add(
                GroupRequest(
                    request=name,
                    prompt_ids=prompt,
                    seeds=[one.seed for one in group.samples],
                    temperature=call.temperature,
                    max_tokens=spec.sampling.max_tokens,
                    adapter=adapter,
                    stop=spec.sampling.stop,
                )
            )
        return True

    def _finish(self, finished: FinishedSample) -> None:
        open_group = self._open[finished.request]
        open_group.completions.append(
            Completion(
                sample=open_group.group.samples[finished.sample].sample,
                token_ids=tuple(finished.token_ids),
                logprobs=tuple(finished.logprobs),
                finish_reason=finished.finish_reason,
                text=finished.text,
                failure=finished.failure,
            )
        )
        if len(open_group.completions) == len(open_group.group.samples):
            self._reply(finished.request, open_group)

    def _reply(self, name: str, done: _OpenGroup) -> None:
        del self._open[name]
        sampled = SampledGroup(
            group=done.group.group,
            prompt_ids=tuple(done.prompt_ids),
            completions=tuple(sorted(done.completions, key=lambda one: one.sample)),
        )
        self._channel.reply(done.request, sampled.model_dump(mode="json"))
        if all(group.request is not done.request for group in self._open.values()):
            self._channel.end(done.request)


def main(channel: Channel) -> None:
    """Serves until the parent closes the channel."""
    SamplerChild(channel, ResidentModel.from_environment(os.environ)).serve()
