"""Adapters in memory: read once, bounded in number, kept while they are in use."""

from collections import OrderedDict
from collections.abc import Collection
from pathlib import Path

from ..schemas.job_spec import LoraSpec
from .base_model import BaseModel
from .batched_lora import AdapterWeights, read_adapter


class AdapterCache:
    """The adapters of one base model that were asked for last.

    An adapter is known by its digest and its spec: the file does not say by how much alpha scales it.
    """

    def __init__(self, base: BaseModel, capacity: int) -> None:
        self._base = base
        self._capacity = capacity
        self._cached: OrderedDict[tuple[str, LoraSpec], AdapterWeights] = OrderedDict()

    def load(
        self, digest: str, path: Path, lora: LoraSpec, in_use: Collection[AdapterWeights]
    ) -> AdapterWeights:
        """The adapter with a digest; its file is read only when it is not in memory.

        Args:
            in_use: these stay, even if more than `capacity` of them are in use.

        Raises:
            UnusableModel: when the file is no adapter for the base model and the spec.
        """
        key = (digest, lora)
        if key not in self._cached:
            self._cached[key] = read_adapter(self._base, digest, path, lora)
        self._cached.move_to_end(key)
        for old, adapter in list(self._cached.items()):
            if len(self._cached) > self._capacity and old != key and adapter not in in_use:
                del self._cached[old]
        return self._cached[key]
