"""A job's dataset: prompts and what their rewards need, fixed once at the start of the job."""

from typing import Annotated, Any, Literal

from pydantic import Field

from .contract import BlobRef, Contract, Digest, Document


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
    """

    source: str
    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    fields: dict[str, Any]


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


class DatasetRef(Contract):
    """The stored dataset and its size.

    Attributes:
        reward_code: what the job's reward is held to; see `environments.scoring.reward_code`. None where
            that is None, and in jobs that began before it was recorded.
    """

    blob: BlobRef
    train: Annotated[int, Field(ge=1)]
    held_out: Annotated[int, Field(ge=0)]
    reward_code: Digest | None = None
