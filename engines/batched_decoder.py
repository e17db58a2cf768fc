"""A base model that decodes many sequences of many adapters at once, one token each."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast

import torch
from transformers import DynamicCache, PreTrainedModel

from .base_model import BaseModel, UnusableModel
from .batched_lora import AdapterWeights, Product, Run, install
from .grouped_attention import exact_lengths, use_grouped_attention, visible_places
from .shape_probe import equal_parts, ladder, noise, smallest
from .slot_cache import PromptState, SlotCache

_BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_ROW_STEP = 16


class _FilledLayer(Protocol):
    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True)
class Prefilled:
    """A prompt after its forward pass.

    Attributes:
        logits: [vocabulary], of the first token after the prompt.
    """

    state: PromptState
    logits: torch.Tensor


class BatchedDecoder:
    """Runs prompts alone, then decodes them side by side in the slots of a cache.

    A row's logits are the bits that it would get in the decoder's largest shape, `slots` rows with
    `context` places each, whatever the other rows hold. Smaller shapes run where trying them on this
    processor showed that they give these bits. The base model is left as it is: the decoder has a
    module tree of its own on the same weights.

    Attributes:
        cache: whoever decodes enters and moves sequences in it.
    """

    def __init__(self, base: BaseModel, slots: int, context: int) -> None:
        """Reserves the cache and tries the shapes.

        Raises:
            UnusableModel: when a sequence's values would depend on the others.
        """
        rope = cast(dict[str, Any], getattr(base.model.config, "rope_parameters", None) or {})
        if rope.get("rope_type") in _BATCH_DEPENDENT_ROPE:
            raise UnusableModel(
                f"model folder {base.folder} has rope type {rope['rope_type']!r}, whose angles depend on the "
                "longest sequence in the batch, so a sample would depend on its neighbours"
            )
        self._device = base.model.device
        self._model = _twin(base.model)
        self._runs = install(self._model, self._model.get_output_embeddings())
        self._slots = slots
        self._exact_cuts: dict[tuple[torch.Size, torch.Size], bool] = {}
        with torch.inference_mode():
            state = self._forward_prompt([0]).state
            self.cache = SlotCache(state, slots, context)
            heads, keys = int(base.model.config.num_attention_heads), state.layers[0][0]
            self._lengths = exact_lengths(heads, min(slots, _ROW_STEP), context, like=keys)
            self._row_counts = self._usable_row_counts(state, context)

    @torch.inference_mode()
    def prefill(self, prompt_ids: Sequence[int], adapter: AdapterWeights) -> Prefilled:
        """Runs one prompt, alone and at its own length, so that nothing else can touch its values."""
        self._runs.current = [Run(adapter, 0, len(prompt_ids))]
        return self._forward_prompt(prompt_ids)

    @torch.inference_mode()
    def decode(
        self, tokens: Sequence[int], positions: Sequence[int], adapters: Sequence[AdapterWeights]
    ) -> torch.Tensor:
        """Feeds one token to each of the first slots.

        Args:
            tokens: token i is fed to slot i.
            positions: of the tokens in their sequences.
            adapters: that the slots follow; fastest when equal ones are neighbours.

        Returns:
            Logits of the next tokens, [slots in use, vocabulary].
        """
        count = len(tokens)
        cut = all(self._can_be_cut(adapter) for adapter in set(adapters))
        rows = smallest(self._row_counts, count) if cut else self._slots
        idle = [0] * (rows - count)
        self._runs.current = self._runs_of([*adapters, *[adapters[-1]] * len(idle)], cut)
        length = smallest(self._lengths, max(positions) + 1)
        return self._forward_slots([*tokens, *idle], [*positions, *idle], length)[:count]

    def _forward_prompt(self, prompt_ids: Sequence[int]) -> Prefilled:
        cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([list(prompt_ids)], device=self._device)
        last = torch.tensor(
            [len(prompt_ids) - 1], device=self._device
        )  # by index: a slice costs the head a copy
        output = self._model(input_ids=ids, past_key_values=cache, logits_to_keep=last)
        layers = [
            (layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1))
            for layer in cast(list[_FilledLayer], cache.layers)
        ]
        return Prefilled(PromptState(layers), output.logits[0, 0])

    def _forward_slots(self, tokens: Sequence[int], positions: Sequence[int], length: int) -> torch.Tensor:
        """Logits [rows, vocabulary]. A row at position p attends to the places 0 … p of its slot."""
        places = torch.tensor(positions, device=self._device)
        self.cache.aim(places, length)
        output = self._model(
            input_ids=torch.tensor(tokens, device=self._device)[:, None],
            attention_mask=visible_places(places, length, self._model.dtype),
            position_ids=places[:, None],
            past_key_values=self.cache,
        )
        return output.logits[:, 0]

    def _runs_of(self, adapters: Sequence[AdapterWeights], cut: bool) -> list[Run]:
        """Every adapter's own rows where they can be cut out, else all rows with the others masked."""
        if cut:
            starts = [i for i, adapter in enumerate(adapters) if i == 0 or adapter is not adapters[i - 1]]
            return [Run(adapters[i], i, j) for i, j in pairwise([*starts, len(adapters)])]
        runs: list[Run] = []
        for adapter in dict.fromkeys(adapters):
            others = torch.tensor([[other is not adapter] for other in adapters], device=self._device)
            runs.append(Run(adapter, 0, len(adapters), others))
        return runs

    def _can_be_cut(self, adapter: AdapterWeights) -> bool:
        return all(self._cut_is_exact(product) for product in adapter.products.values())

    def _cut_is_exact(self, product: Product) -> bool:
        """Whether the product gives the same bits for some of the rows as for all; tried once per shape."""
        shape = (product.a.shape, product.b.shape)
        if shape not in self._exact_cuts:
            trial = Product(noise(product.a.shape, product.a), noise(product.b.shape, product.b))
            like = next(self._model.parameters())
            x = noise((self._slots, product.a.shape[1]), like)
            start = noise((self._slots, product.b.shape[1]), like)
            self._exact_cuts[shape] = equal_parts(lambda out, i, j: trial.add(x[i:j], out[i:j]), start)
        return self._exact_cuts[shape]

    def _usable_row_counts(self, state: PromptState, context: int) -> list[int]:
        """Numbers of rows at which the whole model gives the bits that it gives with all slots."""
        layers = [
            (noise((context, *k.shape[1:]), k), noise((context, *v.shape[1:]), v)) for k, v in state.layers
        ]
        for slot in range(self._slots):
            self.cache.enter(slot, PromptState(layers))
        self._runs.current = ()

        def logits(rows: int) -> torch.Tensor:
            return self._forward_slots([1] * rows, [context - 1] * rows, context)

        full = logits(self._slots)
        if not torch.equal(full, full[:1].expand_as(full)):
            raise UnusableModel(
                f"with {torch.get_num_threads()} threads equal rows of a batch come out differently on this "
                "processor, so a sample would depend on its slot; set OMP_NUM_THREADS to 2 or 1"
            )
        counts = ladder(_ROW_STEP, self._slots)
        return [rows for rows in counts if rows == self._slots or torch.equal(logits(rows), full[:rows])]


def _twin(model: PreTrainedModel) -> PreTrainedModel:
    """The same model on the same weights, with modules of its own and grouped attention."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, cast(dict[int, Any], shared))
    use_grouped_attention(twin)
    return twin
