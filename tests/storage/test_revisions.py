"""A job's documents: one claim, one manifest per version, and none that names missing bytes."""

import asyncio
import hashlib
import json
import os

import pytest
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.environment import ReasoningGymEnvironment
from marlaas.schemas.job_spec import JobSpec, SamplingSpec
from marlaas.schemas.manifest import EvaluationDocument, Fingerprint, JobDocument, Manifest
from marlaas.schemas.names import JobKey, blob_key
from marlaas.storage.documents import UnreadableDocument
from marlaas.storage.object_store import MissingBlob, ObjectStore
from marlaas.storage.revisions import ConflictingCommit, Revisions

FINGERPRINT = Fingerprint(device="cpu", torch="2", transformers="5", dtype="float32", base="0" * 64)


@pytest.fixture
def revisions(store: ObjectStore) -> Revisions:
    return Revisions(store)


def claim_of(key: JobKey, run: str) -> JobDocument:
    spec = JobSpec(
        tenant=key.tenant,
        job=key.job,
        model="tiny",
        steps=1,
        environment=ReasoningGymEnvironment(kind="reasoning-gym", task="chain_sum"),
        sampling=SamplingSpec(groups_per_step=1, samples_per_group=2),
    )
    return JobDocument(spec=spec, spec_digest=spec.digest, first_run_id=run)


async def candidate(
    store: ObjectStore, key: JobKey, version: int, parent: str | None, spec_digest: str = "5" * 64
) -> Manifest:
    """A manifest with blobs of its own, as each of two attempts would bring them."""
    adapter, optimizer, batch = [await store.put_blob(key.bucket, os.urandom(16)) for _ in range(3)]
    return Manifest(
        key=key,
        version=version,
        parent=parent,
        spec_digest=spec_digest,
        adapter=adapter,
        optimizer=optimizer,
        batch=batch if version else None,
        metrics=None,
        fingerprint=FINGERPRINT,
    )


async def base_of(store: ObjectStore, key: JobKey, run: str) -> Manifest:
    """Version 0 as a run brings it."""
    claim = claim_of(key, run)
    base = await candidate(store, key, 0, None, claim.spec_digest)
    return base.model_copy(update={"claim": claim})


async def test_the_first_version_0_of_a_name_holds_it(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    assert await revisions.job(key) is None
    bases = [await base_of(store, key, f"run {number}") for number in range(8)]
    held = await asyncio.gather(*map(revisions.commit, bases), return_exceptions=True)
    (winner,) = [one for one in held if isinstance(one, tuple)]
    assert all(isinstance(one, ConflictingCommit | tuple) for one in held)
    assert await revisions.job(key) == winner[1].claim
    assert winner[1] == bases[held.index(winner)]
    with pytest.raises(ConflictingCommit, match="committed its version 0 first, with the same spec"):
        await revisions.commit(await base_of(store, key, "much later"))


async def test_a_name_that_was_claimed_by_job_json_is_held_from_version_0_on(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    claim = claim_of(key, "old")
    await store.put_new(key.bucket, key.job_document, claim.model_dump_json().encode())
    assert await revisions.job(key) is None
    await revisions.commit(await candidate(store, key, 0, None))
    assert await revisions.job(key) == claim
    with pytest.raises(ConflictingCommit):
        await revisions.commit(await base_of(store, key, "new"))


async def test_versions_follow_one_another(revisions: Revisions, store: ObjectStore, key: JobKey) -> None:
    assert await revisions.latest_version(key) is None
    assert await revisions.revision(key, 0) is None
    parent = None
    for version in range(3):
        manifest = await candidate(store, key, version, parent)
        revision, committed = await revisions.commit(manifest)
        assert committed == manifest == await revisions.manifest(key, version)
        assert revision == await revisions.revision(key, version)
        assert (revision.version, revision.adapter, revision.optimizer) == (
            version,
            manifest.adapter,
            manifest.optimizer,
        )
        stored = await store.get(key.bucket, key.manifest_key(version))
        assert stored is not None
        assert revision.manifest == hashlib.sha256(stored).hexdigest()
        assert await revisions.latest_version(key) == version
        parent = revision.manifest


async def test_concurrent_commits_of_one_version_agree_on_one(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    """CASES 4: The same content again changes nothing."""
    first, _ = await revisions.commit(await candidate(store, key, 0, None))
    attempts = [await candidate(store, key, 1, first.manifest) for _ in range(10)]
    results = await asyncio.gather(*(revisions.commit(attempt) for attempt in attempts))
    assert results == [results[0]] * 10
    assert results[0][1] in attempts
    assert await revisions.commit(attempts[0]) == results[0]


@pytest.mark.parametrize("missing", ["adapter", "optimizer", "batch"])
@pytest.mark.parametrize("size", [None, 3], ids=["absent", "truncated"])
async def test_a_manifest_never_names_missing_bytes(
    revisions: Revisions, store: ObjectStore, key: JobKey, missing: str, size: int | None
) -> None:
    """CASES 13: No version is half there."""
    first, _ = await revisions.commit(await candidate(store, key, 0, None))
    manifest = await candidate(store, key, 1, first.manifest)
    blob = BlobRef(digest=hashlib.sha256(os.urandom(8)).hexdigest(), size=16)
    if size is not None:
        await store.put_new(key.bucket, blob_key(blob.digest), bytes(size))
    with pytest.raises(MissingBlob, match=blob.digest):
        await revisions.commit(manifest.model_copy(update={missing: blob}))
    assert await revisions.latest_version(key) == 0


async def test_a_commit_that_does_not_continue_the_committed_version_is_refused(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    """CASES 4: Other content is an error."""
    with pytest.raises(ConflictingCommit, match="version 0 is None"):
        await revisions.commit(await candidate(store, key, 1, "1" * 64))
    await revisions.commit(await candidate(store, key, 0, None))
    for parent in ("1" * 64, None):
        with pytest.raises(ConflictingCommit, match=f"{key} version 1 has the parent {parent}"):
            await revisions.commit(await candidate(store, key, 1, parent))
    with pytest.raises(ConflictingCommit, match="committed already"):
        await revisions.commit(await candidate(store, key, 0, None, spec_digest="6" * 64))
    assert await revisions.latest_version(key) == 0


async def test_a_newer_format_is_refused_by_name(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    manifest = await candidate(store, key, 0, None)
    newer = {**json.loads(manifest.model_dump_json()), "format": 2, "added_later": 1}
    await store.put_new(key.bucket, key.manifest_key(0), json.dumps(newer).encode())
    message = rf"{key.bucket}/{key.manifest_key(0)}: Manifest has format 2; .* format 1"
    with pytest.raises(UnreadableDocument, match=message):
        await revisions.revision(key, 0)
    with pytest.raises(UnreadableDocument, match=message):
        await revisions.commit(manifest)


@pytest.mark.parametrize("stored", [b"", b"\xff\x00", b"[]", b'{"format": 1}', b'{"format": "x"}'])
async def test_a_corrupt_document_is_named(
    revisions: Revisions, store: ObjectStore, key: JobKey, stored: bytes
) -> None:
    await store.put_new(key.bucket, key.manifest_key(0), stored)
    with pytest.raises(UnreadableDocument, match=f"{key.bucket}/{key.manifest_key(0)}: not a Manifest"):
        await revisions.job(key)
    with pytest.raises(UnreadableDocument):
        await revisions.commit(await base_of(store, key, "run"))


async def test_a_manifest_at_the_wrong_place_is_named(
    revisions: Revisions, store: ObjectStore, key: JobKey
) -> None:
    manifest = await candidate(store, key, 0, None)
    await store.put_new(key.bucket, key.manifest_key(7), manifest.model_dump_json().encode())
    with pytest.raises(UnreadableDocument, match="version 0"):
        await revisions.manifest(key, 7)


async def test_the_first_evaluation_of_a_version_stays(revisions: Revisions, key: JobKey) -> None:
    def scored(accuracy: float) -> EvaluationDocument:
        return EvaluationDocument(
            key=key,
            version=3,
            prompts=1,
            samples=2,
            accuracy=accuracy,
            greedy_accuracy=0.0,
            reward_mean=None,
            failed_samples=0,
            greedy_completions=((1, 2),),
        )

    assert await revisions.evaluation(key, 3) is None
    assert await revisions.put_evaluation(scored(0.5)) == scored(0.5)
    assert await revisions.put_evaluation(scored(0.75)) == scored(0.5) == await revisions.evaluation(key, 3)
