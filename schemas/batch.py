"""The training batch as one safetensors blob: what a step trained on, to the bit."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from .trajectory import ScoredGroup, Trajectory

_FORMAT = 1


@dataclass(frozen=True)
class Batch:
    """Sequences of one training step, in the order of their groups and samples.

    N is the number of sequences, T the number of all their tokens; sequence i owns the tokens
    `offsets[i]:offsets[i + 1]`.

    Attributes:
        offsets: int64 [N+1].
        token_ids: int32 [T], prompt and completion.
        mask: uint8 [T], 1 where the policy produced the token.
        logprobs: float32 [T], of the sampler; 0 where the mask is 0.
        rewards: float64 [N]; 0 where `valid` is 0.
        valid: uint8 [N], 1 when the sample has a reward and its group did not fail.
        truncated: uint8 [N], 1 when the token limit ended the completion.
        group: int32 [N], position of the sequence's group in the batch.
        version: int32 [N], policy version that generated the sequence.
        stream_sequence: int64 [N], of the trajectory in the job's stream.
    """

    offsets: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.uint8]
    logprobs: npt.NDArray[np.float32]
    rewards: npt.NDArray[np.float64]
    valid: npt.NDArray[np.uint8]
    truncated: npt.NDArray[np.uint8]
    group: npt.NDArray[np.int32]
    version: npt.NDArray[np.int32]
    stream_sequence: npt.NDArray[np.int64]

    @classmethod
    def assemble(cls, groups: list[tuple[ScoredGroup, list[Trajectory]]]) -> Self:
        """Builds the batch of scored groups, each with its trajectories in order of their samples."""
        rows = [
            (position, scored, sample, trajectory)
            for position, (scored, trajectories) in enumerate(groups)
            for sample, trajectory in zip(scored.samples, trajectories, strict=True)
        ]
        lengths = [len(trajectory.token_ids) for *_, trajectory in rows]
        valid = [scored.status == "ok" and sample.reward is not None for _, scored, sample, _ in rows]
        return cls(
            offsets=np.cumsum([0, *lengths], dtype=np.int64),
            token_ids=_flat([trajectory.token_ids for *_, trajectory in rows], np.int32),
            mask=_flat([trajectory.mask for *_, trajectory in rows], np.uint8),
            logprobs=_flat([trajectory.logprobs for *_, trajectory in rows], np.float32),
            rewards=np.array([sample.reward or 0.0 for *_, sample, _ in rows], np.float64),
            valid=np.array(valid, np.uint8),
            truncated=np.array([trajectory.finish_reason == "length" for *_, trajectory in rows], np.uint8),
            group=np.array([position for position, *_ in rows], np.int32),
            version=np.array([trajectory.version for *_, trajectory in rows], np.int32),
            stream_sequence=np.array([sample.stream_sequence for *_, sample, _ in rows], np.int64),
        )

    def to_bytes(self) -> bytes:
        """Safetensors bytes; equal batches give equal bytes."""
        return save({"format": np.array([_FORMAT], np.int64), **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Reads what `to_bytes` wrote.

        Raises:
            ValueError: when the bytes are in a format that this code does not know.
        """
        tensors = load(data)
        written = int(tensors.pop("format")[0])
        if written != _FORMAT:
            raise ValueError(
                f"the batch has format {written}; this version of marlaas reads format {_FORMAT}"
            )
        return cls(**tensors)


def _flat(lists: list[Any], dtype: Any) -> npt.NDArray[Any]:
    return np.array([value for values in lists for value in values], dtype)
