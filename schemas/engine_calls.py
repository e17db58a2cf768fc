"""What a worker asks of the processes that hold torch, and what they answer.

Large data goes through local files, named by their paths; only token ids of completions travel.
"""

from typing import Annotated, Literal

from pydantic import Field

from .contract import Contract, Digest
from .dataset import Message
from .job_spec import JobSpec, LoraSpec, Precision
from .manifest import Fingerprint, StepMetrics

ADAPTER_FILE = "adapter.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
"""What a trainer writes into the folder that a call names."""


class SampleSeed(Contract):
    """One sample to draw. Its seed alone decides what is drawn from the policy's distribution."""

    sample: Annotated[int, Field(ge=0)]
    seed: Annotated[int, Field(ge=0, lt=2**64)]


class PromptGroup(Contract):
    """A prompt and the samples wanted of it."""

    group: str
    messages: tuple[Message, ...]
    samples: tuple[SampleSeed, ...]


class SampleCall(Contract):
    """Samples groups from one adapter.

    Attributes:
        adapter: digest of the adapter's tensors, which lie at `adapter_path`.
        temperature: 0 is greedy decoding.
        fingerprint: that the process must have; None accepts any.
    """

    spec: JobSpec
    adapter: Digest
    adapter_path: str
    temperature: Annotated[float, Field(ge=0)]
    groups: tuple[PromptGroup, ...]
    fingerprint: Fingerprint | None


class Completion(Contract):
    """One sample, as `Trajectory` describes its fields."""

    sample: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: Literal["stop", "length", "failed"]
    text: str
    failure: str | None = None


class SampledGroup(Contract):
    """A finished group of a call."""

    group: str
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]


class InitialiseCall(Contract):
    """Makes version 0, after checking that every prompt fits.

    Attributes:
        dataset_path: of the stored `Dataset`.
        start_adapter_path: of the tensors of another job's version, which version 0 is to be; None for a
            new adapter, or that of the PEFT folder in the spec.
        start_base: digest of the base model of that version.
        out: existing folder that is given ADAPTER_FILE and OPTIMIZER_FILE.
    """

    spec: JobSpec
    dataset_path: str
    start_adapter_path: str | None = None
    start_base: Digest | None = None
    out: str


class Initialised(Contract):
    fingerprint: Fingerprint


class TrainCall(Contract):
    """One training step; `out` as for `InitialiseCall`.

    Attributes:
        start_adapter_path: of version 0's adapter; None unless a KL penalty is against it.
    """

    spec: JobSpec
    version: int
    batch_path: str
    adapter_path: str
    optimizer_path: str
    start_adapter_path: str | None = None
    out: str
    fingerprint: Fingerprint | None


class Trained(Contract):
    fingerprint: Fingerprint
    metrics: StepMetrics


class MergeCall(Contract):
    """Merges an adapter into a copy of its base model.

    Attributes:
        base: digest that the base model must have.
        out: existing folder that is given the merged model and its tokenizer.
    """

    model: str
    precision: Precision
    lora: LoraSpec
    base: Digest
    adapter_path: str
    out: str
