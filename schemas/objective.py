"""The objective of a job: a name, and what the name stands for, option by option.

Formulas stand with the functions in `engines/`.
"""

from typing import Annotated, Any, Final, Literal, Self, cast

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from .contract import Contract

ObjectiveName = Literal[
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "importance_sampling",
]
AdvantageName = Literal[
    "group-normalised",
    "group-centred",
    "leave-one-out",
    "batch-normalised",
    "group-batch-normalised",
    "raw",
]

_PRESETS: Final[dict[str, dict[str, Any]]] = {
    "grpo": {},
    "dr_grpo": {"advantage": "group-centred", "aggregation": "constant"},
    "dapo": {"clip_high": 0.28, "aggregation": "token-mean", "mask_truncated": True, "refill_limit": 1.0},
    "gspo": {"ratio": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"clip": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token-mean"},
    "rloo": {"advantage": "leave-one-out", "ratio": "product"},
    "reinforce_pp": {"advantage": "batch-normalised"},
    "reinforce_pp_baseline": {"advantage": "group-batch-normalised"},
    "importance_sampling": {"advantage": "group-centred", "clip": "none", "aggregation": "sum"},
}
"""What differs from the fields' defaults, which are those of `grpo`."""

_CLIP_BOUNDS = ("clip_low", "clip_high")


class KlSpec(Contract):
    """A penalty on the distance from a reference policy."""

    coefficient: Annotated[float, Field(gt=0, le=100)]
    """Weight of the penalty."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the divergence, per token, from one sample (Schulman, `Approximating KL divergence`, 2020)."""
    reference: Literal["base", "start"] = "base"
    """`base`: the base model without an adapter. `start`: the adapter of version 0."""
    place: Literal["loss", "reward"] = "loss"
    """`loss`: added to each token's loss. `reward`: taken off the reward, before the advantage."""


class CorrectionSpec(Contract):
    """Weights for the difference between the sampler's policy and the one that a step begins with."""

    kind: Literal["token-truncate", "token-mask", "sequence-truncate", "sequence-mask"]
    """The weight is the ratio of the two policies' probabilities, of the token or of its whole sequence.
    `truncate`: at most `high` (truncated importance sampling). `mask`: 0 outside of [low, high] (of tokens:
    IcePop)."""
    low: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Lower bound of a mask."""
    high: Annotated[float, Field(ge=1)] = 3.0
    """Upper bound."""


class OverlongSpec(Contract):
    """A soft punishment of long completions (DAPO, arXiv 2503.14476, equation 13)."""

    buffer_tokens: Annotated[int, Field(ge=1)]
    """Over the last so many tokens before `sampling.max_tokens`, the punishment grows from 0 to full."""
    penalty: Annotated[float, Field(gt=0)] = 1.0
    """Taken off the reward of a completion that reaches `sampling.max_tokens`."""


class ObjectiveSpec(Contract):
    """The policy objective. `name` sets the other options; each can be given another value."""

    name: ObjectiveName = "grpo"
    """Sets the options below; docs/job-spec.md has a table of what to."""
    advantage: AdvantageName = "group-normalised"
    """How rewards become advantages; see `engines/advantages.py`."""
    ratio: Literal["token", "sequence", "product"] = "token"
    """The importance ratio of a token: its own, the geometric mean over its sequence, or their product."""
    clip: Literal["ppo", "cispo", "none"] = "ppo"
    """`ppo`: the pessimistic minimum. `cispo`: the ratio is a clipped weight without gradient."""
    clip_low: Annotated[float, Field(ge=0, le=1)] = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: Annotated[float, Field(ge=0)] = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative, the loss is at most this times its size (arXiv 1912.09729)."""
    aggregation: Literal["sequence-mean", "token-mean", "constant", "sum"] = "sequence-mean"
    """`sequence-mean`: mean over a sequence's tokens, then over sequences. `token-mean`: mean over all
    tokens. `constant`: sum over tokens, over sequences times `sampling.max_tokens`. `sum`: no division.
    What is masked counts in no denominator."""
    old: Literal["sampler", "trainer"] = "sampler"
    """Whose log-probabilities the ratio is against: those that the sampler reported, or those that the
    trainer computes at the start of the step (the proximal policy of decoupled PPO)."""
    correction: CorrectionSpec | None = None
    """Needs `old: trainer`."""
    kl: KlSpec | None = None
    """A penalty on the distance from a reference policy."""
    mask_truncated: bool = False
    """Completions that the token limit cut have no part in the loss. Their rewards still count in the
    statistics of their group."""
    overlong: OverlongSpec | None = None
    """A soft punishment of long completions."""
    refill_limit: Annotated[float, Field(ge=0, le=16)] = 0.0
    """Dynamic sampling (DAPO, section 3.2), as a share of `sampling.groups_per_step`: a step samples up to so
    many more groups, one for each whose rewards are all equal or failed. Those stay in the batch and teach
    nothing."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        name = given.get("name", "grpo")
        if name == "ppo":
            raise ValueError(
                "ppo needs a value model (a critic), which is not offered; grpo, rloo and reinforce_pp "
                "estimate advantages without one, with the same clipped loss"
            )
        return {**_PRESETS.get(name, {}), **given} if isinstance(name, str) else given

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        if self.correction is not None and self.correction.low and self.correction.kind.endswith("truncate"):
            raise ValueError(f"correction.low has no effect with correction.kind {self.correction.kind}")
        if self.clip == "none" and (idle := [bound for bound in _CLIP_BOUNDS if bound in self.changed]):
            raise ValueError(f"{idle[0]} has no effect with clip: none")
        if self.clip != "ppo" and self.dual_clip is not None:
            raise ValueError(f"dual_clip belongs to clip: ppo, and clip is {self.clip}")
        if self.correction is not None and self.old == "sampler":
            raise ValueError(
                "correction needs old: trainer; with old: sampler the ratio already is against the sampler"
            )
        if self.refill_limit and not self.compares_samples:
            raise ValueError(
                f"refill_limit is {self.refill_limit}: it makes up for groups whose rewards are equal, and "
                f"advantage {self.advantage} learns from those too"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_younger_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves `refill_limit` out where it is the name's own: specs from before it keep their digests."""
        written: dict[str, Any] = write(self)
        if "refill_limit" not in self.changed:
            del written["refill_limit"]
        return written

    @property
    def changed(self) -> frozenset[str]:
        """Options whose values are not the name's own."""
        preset = type(self).model_fields
        own = {name: _PRESETS[self.name].get(name, field.default) for name, field in preset.items()}
        return frozenset(
            name for name, value in own.items() if name != "name" and getattr(self, name) != value
        )

    @property
    def compares_samples(self) -> bool:
        """Whether an advantage needs the other samples of its group."""
        return self.advantage not in ("batch-normalised", "raw")
