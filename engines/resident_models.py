"""The base model that a process holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import torch

from ..schemas.dataset import Dataset
from ..schemas.job_spec import Precision, SamplingSpec
from ..schemas.manifest import Fingerprint
from . import base_model
from .base_model import BaseModel, UnusableModel
from .chat import prompt_ids

_DTYPES: Final[Mapping[Precision, torch.dtype]] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class WrongFingerprint(Exception):
    """This process would compute other bytes than the one that began the job."""


class UnusableDataset(Exception):
    """A prompt that the model can't be given; the message names its row."""


class ResidentModel:
    """Keeps the base model that was asked for last; another one takes its place."""

    def __init__(self, cache: Path, device: str) -> None:
        self._cache = cache
        self._device = device
        self._loaded: tuple[str, Precision] | None = None
        self._base: BaseModel | None = None

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> Self:
        """As the worker asks for: folder in MARLAAS_MODELS, torch device in MARLAAS_DEVICE."""
        return cls(Path(variables["MARLAAS_MODELS"]), variables["MARLAAS_DEVICE"])

    def get(self, name: str, precision: Precision, expected: Fingerprint | None) -> BaseModel:
        """Loads the model unless it is resident.

        Args:
            expected: what this process must match; None accepts anything.

        Raises:
            UnusableModel: when there is no such model.
            WrongFingerprint: naming what differs.
        """
        if self._base is None or self._loaded != (name, precision):
            self._base = None  # freed before the next is loaded: both may not fit
            folder = base_model.resolve(name, self._cache)
            self._base = base_model.load(folder, device=self._device, dtype=_DTYPES[precision])
            self._loaded = name, precision
        if expected is not None:
            _check(self._base.fingerprint, expected)
        return self._base


def _check(found: Fingerprint, expected: Fingerprint) -> None:
    differences = [
        f"{field} is {getattr(found, field)!r}, the job began with {getattr(expected, field)!r}"
        for field in Fingerprint.model_fields
        if getattr(found, field) != getattr(expected, field)
    ]
    if differences:
        raise WrongFingerprint(
            f"this worker computes other bytes than the job's first: {'; '.join(differences)}. Run the job "
            "on workers of one kind, or set durability.fingerprint to accept"
        )


def check_context(base: BaseModel, sampling: SamplingSpec) -> None:
    """Refuses sequences that are longer than the model was made for.

    Raises:
        UnusableModel: naming both lengths.
    """
    most = getattr(base.model.config, "max_position_embeddings", None)
    longest = sampling.max_prompt_tokens + sampling.max_tokens
    if most is not None and longest > most:
        raise UnusableModel(
            f"sampling.max_prompt_tokens {sampling.max_prompt_tokens} and sampling.max_tokens "
            f"{sampling.max_tokens} make {longest} tokens; the model takes at most {most}"
        )


def check_prompts(base: BaseModel, dataset: Dataset, limit: int) -> None:
    """Refuses a dataset with a prompt that is longer than `limit` tokens or that can't be rendered.

    Raises:
        UnusableDataset: naming the first five such rows.
    """
    problems: list[str] = []
    for row in (*dataset.train, *dataset.held_out):
        try:
            length = len(prompt_ids(base.tokenizer, row.messages))
        except Exception as error:  # chat templates raise what they like
            problems.append(f"{row.place}: the chat template failed: {error}")
        else:
            if length > limit:
                problems.append(f"{row.place}: {length} tokens")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise UnusableDataset(
            f"{len(problems)} prompts do not fit sampling.max_prompt_tokens {limit} or the chat template: "
            f"{'; '.join(problems[:5])}{more}"
        )
