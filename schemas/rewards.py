"""Rewards as a job spec names them: a function, or a list of weighted parts."""

import re
from collections import Counter
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from .contract import Contract

PART_NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
PartName = Annotated[str, Field(pattern=PART_NAME)]
FieldName = Annotated[str, Field(min_length=1)]
TOKEN_PREFIX: Final = "MARLAAS_REWARD_"
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
"""In a judge's prompt: `{prompt}`, `{completion}` or the name of a field."""

_FUNCTION = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
_MOST_PARTS = 32
_JUDGES_OWN = ("model", "messages", "stream", "n")


def _function_name(name: str) -> str:
    if not _FUNCTION.match(name):
        raise ValueError(f"is {name!r}; write module:function, for example rewards.math:exact")
    return name


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as fault:
        raise ValueError(f"is {pattern!r}, which is no regular expression of Python: {fault}") from None
    return pattern


def _web_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        found = False
    else:
        if parts.username is not None:
            raise ValueError("has a user or password in it, and the spec is stored: use token_variable")
    if not found or not url.isprintable() or " " in url:
        raise ValueError(f"is {url!r}; write an address that begins with http:// or https://")
    return url


FunctionName = Annotated[str, AfterValidator(_function_name)]
Pattern = Annotated[str, AfterValidator(_regular_expression)]
WebAddress = Annotated[str, AfterValidator(_web_address)]


class _Part(Contract):
    name: PartName | None = None
    """Under which the part is reported; its kind when there is none. No two parts have one name."""
    weight: float = 1.0
    """The reward is the sum of the parts that apply, each times its weight."""

    @property
    def label(self) -> str:
        """The name, or the kind for want of one."""
        return self.name or getattr(self, "kind")  # noqa: B009


class ExactPart(_Part):
    """1 when the answer is the row's field to the letter, blanks around it aside; else 0."""

    kind: Literal["exact"]
    """Says which part this is."""
    field: FieldName
    """Of the row: text or a number. The part does not apply where it is null."""
    answer: Literal["raw", "last-number", "last-line"] = "raw"
    """What of the completion is the answer."""


class NumericPart(_Part):
    """1 when the last number of the completion is the row's, else 0."""

    kind: Literal["numeric"]
    """Says which part this is."""
    field: FieldName
    """Of the row: a number, or text whose last number counts. The part does not apply where it is null."""
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    """Largest difference that is still right."""


class MathVerifyPart(_Part):
    """1 when the completion's last expression is the row's as mathematics (package `math-verify`), else 0."""

    kind: Literal["math-verify"]
    """Says which part this is."""
    field: FieldName
    """Of the row: a number or an expression, LaTeX or plain. The part does not apply where it is null."""


class FormatPart(_Part):
    """1 when a regular expression of Python's `re` is found in the completion, else 0."""

    kind: Literal["format"]
    """Says which part this is."""
    pattern: Pattern
    r"""Searched for anywhere; `(?s)\A…\Z` holds it to the whole completion."""


class LengthPart(_Part):
    """1 when the completion's length is within bounds, falling to 0 outside of them."""

    kind: Literal["length"]
    """Says which part this is."""
    unit: Literal["words", "characters"] = "words"
    """Words are what blanks separate. For tokens see `objective.overlong`."""
    min: Annotated[int, Field(ge=0)] = 0
    """The least length that is worth 1."""
    max: Annotated[int, Field(ge=0)] | None = None
    """No bound when there is none."""
    margin: Annotated[int, Field(ge=0)] = 0
    """Over so many units outside of the bounds the part falls linearly from 1 to 0; 0 is at once."""

    @model_validator(mode="after")
    def _some_bound(self) -> Self:
        if self.max is None and self.min == 0:
            raise ValueError("has neither min nor max, so that every length is right; give one of them")
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min is {self.min} and max {self.max}; min is at most max")
        return self


class FunctionPart(_Part):
    """What a function of the user's returns: a number, null, or a dictionary of further parts."""

    kind: Literal["function"]
    """Says which part this is."""
    function: FunctionName
    """`module:function`, importable by the CPU workers."""
    weights: dict[PartName, float] = Field(default_factory=dict[str, float])
    """Of the keys of a returned dictionary, 1 where there is none; `weight` multiplies them all."""


class _Remote(_Part):
    url: WebAddress
    """Where the questions go. Of a judge it is the API's, such as `https://host/v1`; `/chat/completions` is
    put after it."""
    token_variable: Annotated[str, Field(pattern=rf"^{TOKEN_PREFIX}[A-Z0-9_]+$")] | None = None
    """Environment variable of the CPU workers whose value is sent as a bearer token."""
    timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """For one try to connect and answer. `rewards.wall_seconds` bounds all tries of all parts together."""
    retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Further tries after no connection, no answer in time, or status 408, 425, 429, 500, 502, 503, 504."""


class HttpPart(_Remote):
    """What a server answers to `{"prompt": messages, "completion": text, "fields": {…}}`, sent by POST.

    It answers `{"reward": number or null}` or `{"parts": {name: number or null, …}}`. What is no such
    answer is the sample's failure and never a reward.
    """

    kind: Literal["http"]
    """Says which part this is."""
    weights: dict[PartName, float] = Field(default_factory=dict[str, float])
    """Of the names in `parts`, 1 where there is none; `weight` multiplies them all."""


class JudgePart(_Remote):
    """A grade by a language model behind an OpenAI-compatible address, as a number from 0 to 1.

    The grade is the last number in the model's reply, without what follows a slash (`7/10` is 7). A
    reply without a number, or with one outside of the scale, is the sample's failure.
    """

    kind: Literal["judge"]
    """Says which part this is."""
    model: Annotated[str, Field(min_length=1)]
    """The judge, as its server names it."""
    prompt: Annotated[str, Field(min_length=1)]
    """What the judge reads. `{prompt}` becomes the row's messages, `{completion}` the completion, and any
    other name in braces that field of the row."""
    low: float = 0.0
    """Grade that is worth 0."""
    high: float = 10.0
    """Grade that is worth 1."""
    options: dict[str, Any] = Field(default_factory=lambda: dict[str, Any](temperature=0.0))
    """Further fields of the request, for example `{temperature: 0, max_tokens: 16}`."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if "completion" not in PLACEHOLDER.findall(self.prompt):
            raise ValueError("prompt has no {completion}, so that the judge would not see what it grades")
        if not self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; low is less than high")
        if own := [name for name in _JUDGES_OWN if name in self.options]:
            raise ValueError(f"options sets {', '.join(own)}, which the part itself sets")
        return self


RewardPart = Annotated[
    ExactPart | NumericPart | MathVerifyPart | FormatPart | LengthPart | FunctionPart | HttpPart | JudgePart,
    Field(discriminator="kind"),
]


def _some_of_different_names(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    # Here and not as a bound of the field, which pydantic also tells when an element is wrong.
    if not 1 <= len(parts) <= _MOST_PARTS:
        raise ValueError(f"has {len(parts)} parts; give 1 to {_MOST_PARTS}")
    twice = [name for name, count in Counter(part.label for part in parts).items() if count > 1]
    if twice:
        raise ValueError(f"has two parts named {', '.join(twice)}; give each a name of its own")
    return parts


RewardParts = Annotated[tuple[RewardPart, ...], AfterValidator(_some_of_different_names)]


def _form(value: object) -> str | None:
    if isinstance(value, str):
        return "function"
    return "parts" if isinstance(value, list | tuple) else None


RewardSpec = Annotated[
    Annotated[FunctionName, Tag("function")] | Annotated[RewardParts, Tag("parts")],
    Discriminator(
        _form,
        custom_error_type="reward_form",
        custom_error_message="should be module:function, or a list of parts that have a kind each",
    ),
]
"""`module:function`, or a list of parts."""


def reward_functions(reward: RewardSpec) -> tuple[str, ...]:
    """The functions of users, as `module:function`, that a reward calls."""
    if isinstance(reward, str):
        return (reward,)
    return tuple(part.function for part in reward if isinstance(part, FunctionPart))


def token_variables(reward: RewardSpec) -> tuple[str, ...]:
    """The environment variables that a reward reads its tokens from."""
    if isinstance(reward, str):
        return ()
    named = (part.token_variable for part in reward if isinstance(part, HttpPart | JudgePart))
    return tuple(name for name in named if name is not None)
