"""Keys and values of the sequences in flight: one slot a sequence, every slot equally long."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Cache


@dataclass(frozen=True)
class PromptState:
    """What a model keeps of a prompt: per layer, keys and values [tokens, heads, head size]."""

    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]


class SlotCache(Cache):
    """Per layer, keys and values [slots, context, heads, head size].

    A slot is written whole when a sequence enters it and copied whole when it moves, so nothing of an
    earlier sequence is left in it, not even where the mask would hide it (0 · NaN is NaN).
    """

    def __init__(self, like: PromptState, slots: int, context: int) -> None:
        super().__init__(layers=[])
        self._states = [
            tuple(part.new_zeros(slots, context, *part.shape[1:]) for part in layer) for layer in like.layers
        ]
        self._context = context
        self._rows, self._length = 0, 0
        self._places = torch.zeros(0, dtype=torch.long)

    @torch.inference_mode()
    def enter(self, slot: int, prompt: PromptState) -> None:
        """Starts a sequence in a slot."""
        for layer, states in zip(self._states, prompt.layers, strict=True):
            for part, state in zip(layer, states, strict=True):
                part[slot, : len(state)] = state
                part[slot, len(state) :] = 0

    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copies slots, each from the first to the second of a pair; all are read before any is written."""
        sources, targets = [source for source, _ in moves], [target for _, target in moves]
        for layer in self._states:
            for part in layer:
                part[targets] = part[sources]

    def aim(self, positions: torch.Tensor, length: int) -> None:
        """Prepares a forward pass of one token in each of the first slots.

        Args:
            positions: int64 [rows], where row i writes in slot i.
            length: how many places of each slot are attended to, at most `context`.
        """
        self._rows, self._length = len(positions), length
        self._places = torch.arange(self._rows, device=positions.device) * self._context + positions

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes [rows, heads, 1, head size]; returns [rows, heads, length, head size]."""
        keys, values = self._states[layer_idx]
        return self._write(keys, key_states), self._write(values, value_states)

    def _write(self, part: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        part.view(-1, *part.shape[2:]).index_copy_(0, self._places, state.squeeze(2))
        return part[: self._rows, : self._length].transpose(1, 2)
