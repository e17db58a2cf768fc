"""The datasets of running jobs, parsed once per worker."""

from collections import OrderedDict

from ..schemas.dataset import Dataset, DatasetRef
from ..storage.object_store import ObjectStore

_KEPT = 8


class Datasets:
    """The most recently used datasets, by digest; a dataset never changes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._parsed: OrderedDict[str, Dataset] = OrderedDict()

    async def get(self, bucket: str, ref: DatasetRef) -> Dataset:
        """The dataset that `ref` names.

        Raises:
            MissingBlob, CorruptBlob: when the store no longer has it as it was.
        """
        digest = ref.blob.digest
        dataset = self._parsed.get(digest)
        if dataset is None:
            dataset = Dataset.model_validate_json(await self._store.get_blob(bucket, ref.blob))
        self._parsed[digest] = dataset
        self._parsed.move_to_end(digest)
        while len(self._parsed) > _KEPT:
            self._parsed.popitem(last=False)
        return dataset
