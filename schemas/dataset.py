"""A job's dataset: prompts and what their rewards need, fixed once at the start of the job."""

import operator
from typing import Annotated, Any, Literal

from pydantic import Field

from .contract import BlobRef, Contract, Digest, Document, Label
from .mixing import mixed
from .seeds import environment_seed, prompt_at


class Message(Contract):
    """One chat message, in OpenAI's form."""

    role: Literal["system", "user", "assistant"]
    content: str


class Row(Contract):
    """One prompt.

    Attributes:
        source: where it came from, for error messages: a line number or an entry's index.
        messages: rendered with the model's chat template.
        fields: given to the reward unchanged.
        environment: of a mixture, the one that it belongs to; '' when the job has one environment.
    """

    source: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    fields: dict[str, Any]
    environment: Annotated[str, Field(exclude_if=operator.not_)] = ""

    @property
    def place(self) -> str:
        """Where it came from, and of which environment."""
        return f"{self.environment}: {self.source}" if self.environment else self.source


class Dataset(Document):
    """All prompts of a job. `prompt_index` counts through `train`, then `held_out`."""

    train: Annotated[tuple[Row, ...], Field(min_length=1)]
    held_out: tuple[Row, ...]

    def row(self, prompt_index: int) -> Row:
        """The row at a prompt index.

        Raises:
            IndexError: when there is none.
        """
        count = len(self.train)
        return self.train[prompt_index] if prompt_index < count else self.held_out[prompt_index - count]


class DatasetPart(Contract):
    """Of the dataset of a mixture, the rows of one environment.

    Attributes:
        first: prompt index of the first of its training rows, which follow each other.
        count: of its training rows.
        held_out: likewise of its held-out rows, which follow each other in the order of the parts.
        reward_code: as in `DatasetRef`.
    """

    name: Label
    weight: Annotated[int, Field(ge=1)]
    first: Annotated[int, Field(ge=0)]
    count: Annotated[int, Field(ge=1)]
    held_out: Annotated[int, Field(ge=0)]
    reward_code: Digest | None = None


class DatasetRef(Contract):
    """The stored dataset and its size.

    Attributes:
        reward_code: what the job's reward is held to; see `environments.scoring.reward_code`. None where
            that is None, for a mixture, and in jobs that began before it was recorded.
        parts: of a mixture; none when the job has one environment.
    """

    blob: BlobRef
    train: Annotated[int, Field(ge=1)]
    held_out: Annotated[int, Field(ge=0)]
    reward_code: Digest | None = None
    parts: Annotated[tuple[DatasetPart, ...], Field(exclude_if=operator.not_)] = ()

    def prompt(self, job_seed: int, position: int) -> int:
        """The prompt index at `position` of the endless order of a seed.

        Of a mixture, the weights decide which environment it is, and each has epochs of its own.
        """
        if not self.parts:
            return prompt_at(job_seed, position, self.train)
        which, before = mixed(tuple(part.weight for part in self.parts), position)
        part = self.parts[which]
        return part.first + prompt_at(environment_seed(job_seed, part.name), before, part.count)

    def code_of(self, environment: str) -> Digest | None:
        """The `reward_code` of the environment that a row names."""
        return {part.name: part.reward_code for part in self.parts}.get(environment, self.reward_code)
