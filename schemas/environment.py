"""Environments: where a job's prompts come from, and what scores their completions."""

import json
import operator
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, cast

from pydantic import Field, field_validator, model_validator

from .contract import Contract, Label
from .rewards import RewardSpec

Kind = TypeVar("Kind", bound=str)


class ReasoningGymEnvironment(Contract):
    """A task of the `reasoning-gym` package, scored by the task's own scorer."""

    kind: Literal["reasoning-gym"]
    """Says which environment this is."""
    task: Annotated[str, Field(min_length=1)]
    """A task's name in `reasoning-gym`, for example chain_sum."""
    options: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Passed to the task's configuration, for example `{min_terms: 2, max_terms: 2}`."""
    pool: Annotated[int, Field(ge=2, le=1_000_000)] = 1000
    """How many entries are generated; entries with the same question are kept once."""
    data_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Decides which entries are generated, and in which order."""
    answer: Literal["raw", "last-number", "last-line"] = "raw"
    """What of the completion is given to the scorer."""
    system: str | None = None
    """Text of a system message before every question."""
    suffix: str = ""
    """Text that is put after every question."""

    @model_validator(mode="after")
    def _options_are_json(self) -> Self:
        try:
            json.dumps(self.options, allow_nan=False)
        except ValueError:
            raise ValueError(f"options are {self.options}; numbers in them have to be finite") from None
        return self


class RowsEnvironment(Contract, Generic[Kind]):
    """Prompts in a file or a folder, one in each row, and a reward.

    A row has `messages`, a list of OpenAI-style `{role, content}`, or `prompt`: one user message as text, or
    again such a list. The reward is given every other column unchanged. Of rows with an `id` no two have
    the same.
    """

    kind: Kind
    """Says which environment this is."""
    path: Annotated[str, Field(min_length=1)]
    """As the CPU workers see it. It is read once, at the start of the job."""
    reward: RewardSpec
    """`module:function`, importable by the CPU workers, or a list of parts; see `schemas/rewards.py`."""
    prompt_field: Annotated[str | None, Field(min_length=1, exclude_if=operator.not_)] = None
    """The column that holds the prompt; by default `messages`, or `prompt` where a row has no `messages`."""


class JsonlEnvironment(RowsEnvironment[Literal["jsonl"]]):
    """A JSONL file: every line is an object."""


class ParquetEnvironment(RowsEnvironment[Literal["parquet"]]):
    """A Parquet file.

    A null in a struct is left out, since Parquet does not tell it from a field that the row never had.
    Objects whose nulls matter are stored as JSON text, which the reward gets as text, or in a JSONL file.
    """


class HuggingFaceEnvironment(RowsEnvironment[Literal["huggingface"]]):
    """A folder that `save_to_disk` of Hugging Face `datasets` wrote; nulls in structs as for Parquet."""

    split: Annotated[str | None, Field(min_length=1)] = None
    """Of a folder with several splits; by default the only one."""


_Unmixed = ReasoningGymEnvironment | JsonlEnvironment | ParquetEnvironment | HuggingFaceEnvironment

Environment = Annotated[_Unmixed, Field(discriminator="kind")]
"""Prompts and what scores them."""


class MixedEnvironment(Contract):
    """One of the environments of a mixture."""

    name: Label
    """Of its figures in metrics and evaluations."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Its share of the prompts is its weight by the sum of all, over any stretch of so many prompts."""
    environment: Environment
    """Where its prompts and rewards come from."""

    @field_validator("environment", mode="before")
    @classmethod
    def _no_mixture(cls, value: Any) -> Any:
        if isinstance(value, dict) and cast(dict[str, Any], value).get("kind") == "mixture":
            raise ValueError("is a mixture in a mixture; name its environments in the outer one's `of`")
        return cast(object, value)


class MixtureEnvironment(Contract):
    """Several environments, whose prompts take turns by weight. Each row is scored by its own."""

    kind: Literal["mixture"]
    """Says which environment this is."""
    of: Annotated[tuple[MixedEnvironment, ...], Field(min_length=1, max_length=16)]
    """The environments, each with a name and a weight."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [one.name for one in self.of]
        if len(set(names)) != len(names):
            raise ValueError(f"of has a name twice: {', '.join(names)}")
        return self


JobEnvironment = Annotated[_Unmixed | MixtureEnvironment, Field(discriminator="kind")]
"""What a job may name as its environment."""
