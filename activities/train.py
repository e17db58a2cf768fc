"""Computing policy versions: the first from nothing, each other from its parent and a batch."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from temporalio import activity

from ..schemas.contract import BlobRef
from ..schemas.engine_calls import ADAPTER_FILE, OPTIMIZER_FILE, InitialiseCall, TrainCall
from ..schemas.events import Candidate, InitialiseInput, TrainInput
from ..storage.blob_cache import BlobCache
from .engines import Trainer


class TrainActivities:
    """Runs on GPU workers, on the train queue.

    Both activities write content-addressed blobs and nothing else. Killed anywhere, repeated, or run
    twice at once, they leave at most blobs that no manifest names; a version exists only once
    `snapshot` has committed it.
    """

    def __init__(self, cache: BlobCache, trainer: Trainer, scratch: Path) -> None:
        self._cache = cache
        self._trainer = trainer
        self._scratch = scratch

    @activity.defn
    async def initialise(self, data: InitialiseInput) -> Candidate:
        """Computes version 0, after checking that model, adapter and prompts fit one another.

        Raises:
            EngineFailure: `UnusableModel` or `UnusableDataset`, naming the layer or row.
        """
        bucket = data.spec.key.bucket
        async with self._cache.pinned(bucket, data.dataset.blob) as dataset:
            with tempfile.TemporaryDirectory(dir=self._scratch) as out:
                made = await self._trainer.initialise(
                    InitialiseCall(spec=data.spec, dataset_path=str(dataset), out=out)
                )
                adapter, optimizer = await self._upload(bucket, Path(out))
        return Candidate(
            version=0,
            parent=None,
            adapter=adapter,
            optimizer=optimizer,
            batch=None,
            metrics=None,
            fingerprint=made.fingerprint,
        )

    @activity.defn
    async def train(self, data: TrainInput) -> Candidate:
        """Computes version t+1 from version t and the batch.

        Raises:
            EngineFailure: from the trainer.
        """
        spec, revision = data.spec, data.revision
        bucket = spec.key.bucket
        async with AsyncExitStack() as stack:
            batch, adapter, optimizer = [
                str(await stack.enter_async_context(self._cache.pinned(bucket, blob)))
                for blob in (data.batch, revision.adapter, revision.optimizer)
            ]
            kl = spec.objective.kl
            start = None
            if kl is not None and kl.reference == "start" and data.started.adapter is not None:
                start = str(await stack.enter_async_context(self._cache.pinned(bucket, data.started.adapter)))
            out = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch))
            trained = await self._trainer.train(
                TrainCall(
                    spec=spec,
                    version=revision.version,
                    batch_path=batch,
                    adapter_path=adapter,
                    optimizer_path=optimizer,
                    start_adapter_path=start,
                    out=out,
                    fingerprint=data.started.fingerprint
                    if spec.durability.fingerprint == "require"
                    else None,
                )
            )
            new_adapter, new_optimizer = await self._upload(bucket, Path(out))
        return Candidate(
            version=revision.version + 1,
            parent=revision.manifest,
            adapter=new_adapter,
            optimizer=new_optimizer,
            batch=data.batch,
            metrics=trained.metrics,
            fingerprint=trained.fingerprint,
        )

    async def _upload(self, bucket: str, folder: Path) -> tuple[BlobRef, BlobRef]:
        """Stores both files, and keeps them here: the next step is likely to train or sample them here."""
        return await asyncio.gather(
            self._cache.put(bucket, folder / ADAPTER_FILE),
            self._cache.put(bucket, folder / OPTIMIZER_FILE),
        )
