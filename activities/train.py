"""Computing policy versions: the first from nothing, each other from its parent and a batch."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from temporalio import activity

from ..schemas.contract import BlobRef
from ..schemas.engine_calls import ADAPTER_FILE, OPTIMIZER_FILE, InitialiseCall, TrainCall
from ..schemas.events import Candidate, InitialiseInput, TrainInput
from ..schemas.job_spec import JobSpec
from ..schemas.manifest import Manifest
from ..schemas.names import JobKey
from ..storage.blob_cache import BlobCache
from ..storage.revisions import Revisions
from .engines import Trainer


class UnusableStart(Exception):
    """A version that a job can't start from."""


class TrainActivities:
    """Runs on GPU workers, on the train queue.

    Both activities write content-addressed blobs and nothing else. Killed anywhere, repeated, or run
    twice at once, they leave at most blobs that no manifest names; a version exists only once
    `snapshot` has committed it.
    """

    def __init__(self, cache: BlobCache, revisions: Revisions, trainer: Trainer, scratch: Path) -> None:
        self._cache = cache
        self._revisions = revisions
        self._trainer = trainer
        self._scratch = scratch

    @activity.defn
    async def initialise(self, data: InitialiseInput) -> Candidate:
        """Computes version 0, after checking that model, adapter and prompts fit one another.

        A version of another job that it starts from never changes. A PEFT folder may change from one try to
        the next; the try whose result Temporal records decides.

        Raises:
            UnusableStart: when the version to start from is not there, or was trained with another `lora`.
            EngineFailure: `UnusableModel` or `UnusableDataset`, naming the layer or row.
        """
        bucket = data.spec.key.bucket
        start = await self._start(data.spec)
        async with AsyncExitStack() as stack:
            dataset = await stack.enter_async_context(self._cache.pinned(bucket, data.dataset.blob))
            path = None
            if start is not None:
                path = str(await stack.enter_async_context(self._cache.pinned(bucket, start.adapter)))
            out = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch))
            made = await self._trainer.initialise(
                InitialiseCall(
                    spec=data.spec,
                    dataset_path=str(dataset),
                    start_adapter_path=path,
                    start_base=start.fingerprint.base if start else None,
                    out=out,
                )
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

    async def _start(self, spec: JobSpec) -> Manifest | None:
        """The manifest of another job's version that the spec starts from."""
        start = spec.start
        if start is None or start.job is None or start.version is None:
            return None
        key = JobKey.parse(start.job)
        job, manifest = await asyncio.gather(
            self._revisions.job(key), self._revisions.manifest(key, start.version)
        )
        if job is None or manifest is None:
            raise UnusableStart(f"start: version {start.version} of job {key} is not committed")
        if job.spec.lora != spec.lora:
            raise UnusableStart(
                f"start: job {key} has lora {job.spec.lora}, and this job {spec.lora}; they have to be equal"
            )
        return manifest

    async def _upload(self, bucket: str, folder: Path) -> tuple[BlobRef, BlobRef]:
        """Stores both files, and keeps them here: the next step is likely to train or sample them here."""
        return await asyncio.gather(
            self._cache.put(bucket, folder / ADAPTER_FILE),
            self._cache.put(bucket, folder / OPTIMIZER_FILE),
        )
