"""A job's documents in the object store: its committed versions, which hold its name, and its evaluations."""

import asyncio
import hashlib
from typing import TypeVar

from ..schemas.contract import BlobRef, Digest, Document
from ..schemas.manifest import AdapterRevision, EpochDocument, EvaluationDocument, JobDocument, Manifest
from ..schemas.names import JobKey, blob_key
from .documents import UnreadableDocument, decode
from .object_store import MissingBlob, ObjectStore

D = TypeVar("D", bound=Document)


class ConflictingCommit(Exception):
    """A manifest does not continue what is committed: an attempt that lost its place must stop."""


class Revisions:
    """Writes every document once: the first writer wins, and the others are given what it wrote.

    All methods raise `StoreUnavailable` and `StoreRefused`; those that return a document also
    `UnreadableDocument`, when it is corrupt or of a format that this code does not know.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def job(self, key: JobKey) -> JobDocument | None:
        """The claim of a job's name; None when the job has no version 0, so that the name is free."""
        base = await self.manifest(key, 0)
        if base is None or base.claim is not None:
            return base and base.claim
        return await self._document(JobDocument, key.bucket, key.job_document)

    async def owner(self, key: JobKey, epoch: int) -> str | None:
        """The first run of a job in an epoch; None when there is none."""
        if epoch == 0:
            claim = await self.job(key)
            return claim.first_run_id if claim else None
        begun = await self._document(EpochDocument, key.bucket, key.epoch_key(epoch))
        return begun.first_run_id if begun else None

    async def begin_epoch(self, key: JobKey, first_run_id: str, version: int) -> int:
        """Makes a run the one that goes on with a job that has ended. May be repeated, by the same run.

        Args:
            version: newest committed.

        Returns:
            The number of the run's epoch.
        """
        epoch = 1
        while True:
            document = EpochDocument(epoch=epoch, first_run_id=first_run_id, version=version)
            stored = await self._put_once(key.bucket, key.epoch_key(epoch), document)
            found = decode(EpochDocument, stored, f"{key.bucket}/{key.epoch_key(epoch)}")
            if found.first_run_id == first_run_id:
                return epoch
            epoch += 1

    async def commit(self, manifest: Manifest) -> tuple[AdapterRevision, Manifest]:
        """Makes a policy version exist. May be repeated, by anyone, with the effect of once.

        Version 0 is the claim of the job's name as well. Claim and version are one object, put where none
        is: of two runs that want a name one gets it, and a run that dies before has used up nothing.

        Returns:
            What is committed: the caller's manifest, or that of an attempt which was faster.

        Raises:
            MissingBlob: when a blob that the manifest names is not in the store as named.
            ConflictingCommit: when the manifest's parent is not the committed previous version, when
                another parent or spec is committed under this version, when the name is another run's, or
                the job was resumed in a later epoch. An attempt that passes this last check just before the
                epoch begins may still win the put: the later epoch then goes on from what it committed.
        """
        key, version = manifest.key, manifest.version
        blobs = [blob for blob in (manifest.adapter, manifest.optimizer, manifest.batch) if blob is not None]
        parent, later, *_ = await asyncio.gather(
            self._manifest_digest(key, version - 1),
            self.owner(key, manifest.epoch + 1),
            *(self._check_blob(key.bucket, blob) for blob in blobs),
        )
        if later is not None:
            raise ConflictingCommit(
                f"{key} version {version} belongs to epoch {manifest.epoch}, and the job was resumed since: "
                f"run {later} goes on with it"
            )
        if manifest.parent != parent:
            raise ConflictingCommit(
                f"{key} version {version} has the parent {manifest.parent}, but version {version - 1} is "
                f"{parent}. Drop this attempt's state and start from the committed version"
            )
        stored = await self._put_once(key.bucket, key.manifest_key(version), manifest)
        revision, committed = _committed(key, version, stored)
        if _run(committed) != _run(manifest):
            raise ConflictingCommit(
                f"job {key} exists: run {_run(committed)} committed its version 0 first, with "
                f"{'the same' if committed.spec_digest == manifest.spec_digest else 'another'} spec; choose "
                "another job name"
            )
        if (committed.parent, committed.spec_digest) != (manifest.parent, manifest.spec_digest):
            raise ConflictingCommit(
                f"{key} version {version} is committed already with parent {committed.parent} and spec "
                f"{committed.spec_digest}, but this attempt has parent {manifest.parent} and spec "
                f"{manifest.spec_digest}. Drop this attempt's state and start from the committed version"
            )
        return revision, committed

    async def manifest(self, key: JobKey, version: int) -> Manifest | None:
        """A committed version's manifest; None when the version does not exist."""
        found = await self.committed(key, version)
        return found and found[1]

    async def revision(self, key: JobKey, version: int) -> AdapterRevision | None:
        """A committed version; None when it does not exist."""
        found = await self.committed(key, version)
        return found and found[0]

    async def committed(self, key: JobKey, version: int) -> tuple[AdapterRevision, Manifest] | None:
        """A committed version with its manifest, by one request; None when it does not exist."""
        stored = await self._store.get(key.bucket, key.manifest_key(version))
        return None if stored is None else _committed(key, version, stored)

    async def latest_version(self, key: JobKey) -> int | None:
        """The newest committed version; None before version 0. Lists all of them: not for every step."""
        versions = await self._versions(key.bucket, key.manifest_key(0))
        return versions[-1] if versions else None

    async def evaluated_versions(self, key: JobKey) -> list[int]:
        """The versions that have an evaluation, ascending."""
        return await self._versions(key.bucket, key.evaluation_key(0))

    async def _versions(self, bucket: str, example: str) -> list[int]:
        """The versions of documents that are named as the example is."""
        folder = example.rpartition("/")[0] + "/"
        keys = await self._store.list_keys(bucket, folder)
        return [int(key.removeprefix(folder).removesuffix(".json")) for key in keys]

    async def put_evaluation(self, document: EvaluationDocument) -> EvaluationDocument:
        """Stores the evaluation of a version. Returns the one that is stored: this, or an earlier one."""
        key, name = document.key, document.key.evaluation_key(document.version)
        stored = await self._put_once(key.bucket, name, document)
        return decode(EvaluationDocument, stored, f"{key.bucket}/{name}")

    async def evaluation(self, key: JobKey, version: int) -> EvaluationDocument | None:
        """The evaluation of a version; None when there is none."""
        return await self._document(EvaluationDocument, key.bucket, key.evaluation_key(version))

    async def _document(self, model: type[D], bucket: str, key: str) -> D | None:
        stored = await self._store.get(bucket, key)
        return None if stored is None else decode(model, stored, f"{bucket}/{key}")

    async def _put_once(self, bucket: str, key: str, document: Document) -> bytes:
        """Stores a document where none is. Returns the bytes that are there afterwards."""
        data = document.model_dump_json().encode()
        if await self._store.put_new(bucket, key, data):
            return data
        stored = await self._store.get(bucket, key)
        if stored is None:
            raise UnreadableDocument(f"{bucket}/{key}: was there, and is gone: something deletes documents")
        return stored

    async def _manifest_digest(self, key: JobKey, version: int) -> Digest | None:
        stored = await self._store.get(key.bucket, key.manifest_key(version)) if version >= 0 else None
        return None if stored is None else hashlib.sha256(stored).hexdigest()

    async def _check_blob(self, bucket: str, blob: BlobRef) -> None:
        size = await self._store.size(bucket, blob_key(blob.digest))
        if size != blob.size:
            found = "nothing" if size is None else f"{size} bytes"
            raise MissingBlob(
                f"{bucket}/{blob_key(blob.digest)}: a manifest may not name it: expected {blob.size} bytes, "
                f"found {found}. Compute the step again"
            )


def _run(manifest: Manifest) -> str | None:
    return manifest.claim.first_run_id if manifest.claim else None


def _committed(key: JobKey, version: int, stored: bytes) -> tuple[AdapterRevision, Manifest]:
    where = f"{key.bucket}/{key.manifest_key(version)}"
    manifest = decode(Manifest, stored, where)
    if (manifest.key, manifest.version) != (key, version):
        raise UnreadableDocument(f"{where}: is the manifest of {manifest.key} version {manifest.version}")
    revision = AdapterRevision(
        version=version,
        manifest=hashlib.sha256(stored).hexdigest(),
        adapter=manifest.adapter,
        optimizer=manifest.optimizer,
    )
    return revision, manifest
