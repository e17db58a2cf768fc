"""The blob cache: one download, no file that is not whole, and nothing evicted that is in use."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.names import JobKey
from marlaas.storage.blob_cache import BlobCache
from marlaas.storage.object_store import MissingBlob, ObjectStore
from marlaas.tests.servers import S3Server
from marlaas.tests.storage.proxy import Proxy

KB = 1000


async def put(store: ObjectStore, key: JobKey, count: int) -> list[BlobRef]:
    return [await store.put_blob(key.bucket, os.urandom(100 * KB)) for _ in range(count)]


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*/*")}


async def test_concurrent_readers_share_one_download(
    store: ObjectStore, s3_server: S3Server, key: JobKey, tmp_path: Path
) -> None:
    (ref,) = await put(store, key, 1)
    with Proxy(s3_server.endpoint, lambda method, path: None) as proxy:
        watched = ObjectStore(proxy.endpoint, s3_server.access_key, s3_server.secret_key, secure=False)
        cache = BlobCache(watched, tmp_path, 1000 * KB)
        paths = await asyncio.gather(*(cache.path(key.bucket, ref) for _ in range(20)))
        assert set(paths) == {tmp_path / key.bucket / ref.digest}
        assert paths[0].read_bytes() == await store.get_blob(key.bucket, ref)
        await BlobCache(watched, tmp_path, 1000 * KB).path(key.bucket, ref)
        watched.close()
    assert sum(ref.digest in path for _, path in proxy.seen) == 1


async def test_the_files_used_longest_ago_go_first(store: ObjectStore, key: JobKey, tmp_path: Path) -> None:
    refs = await put(store, key, 4)
    cache = BlobCache(store, tmp_path, 300 * KB)
    for ref in (*refs[:3], refs[0], refs[3]):
        await cache.path(key.bucket, ref)
    assert files(tmp_path) == {refs[0].digest, refs[2].digest, refs[3].digest}


async def test_what_is_pinned_stays_also_for_another_cache_on_the_folder(
    store: ObjectStore, key: JobKey, tmp_path: Path
) -> None:
    refs = await put(store, key, 4)
    cache, other = BlobCache(store, tmp_path, 150 * KB), BlobCache(store, tmp_path, 150 * KB)
    async with cache.pinned(key.bucket, refs[0]) as first, cache.pinned(key.bucket, refs[0]):
        async with cache.pinned(key.bucket, refs[1]) as second:
            for ref in refs[2:]:
                await other.path(key.bucket, ref)
            assert files(tmp_path) == {first.name, second.name, refs[3].digest}
        await other.path(key.bucket, refs[2])
        assert files(tmp_path) == {first.name, refs[2].digest}
    await other.path(key.bucket, refs[3])
    assert files(tmp_path) == {refs[3].digest}


@pytest.mark.parametrize("damage", [b"", bytes(100 * KB)], ids=["truncated", "zeroed"])
async def test_a_damaged_file_is_downloaded_again(
    store: ObjectStore, key: JobKey, tmp_path: Path, damage: bytes
) -> None:
    (ref,) = await put(store, key, 1)
    path = await BlobCache(store, tmp_path, 1000 * KB).path(key.bucket, ref)
    path.write_bytes(damage)
    path = await BlobCache(store, tmp_path, 1000 * KB).path(key.bucket, ref)
    assert path.read_bytes() == await store.get_blob(key.bucket, ref)
    assert files(tmp_path) == {ref.digest}


async def test_a_tenant_gets_nothing_that_its_own_bucket_does_not_hold(
    store: ObjectStore, key: JobKey, tmp_path: Path
) -> None:
    (ref,) = await put(store, key, 1)
    cache = BlobCache(store, tmp_path, 1000 * KB)
    await cache.path(key.bucket, ref)
    await store.ensure_bucket("marlaas-storage-two")
    with pytest.raises(MissingBlob):
        await cache.path("marlaas-storage-two", ref)


async def test_abandoned_partial_downloads_are_removed_and_live_ones_kept(
    store: ObjectStore, key: JobKey, tmp_path: Path
) -> None:
    (ref,) = await put(store, key, 1)
    (tmp_path / key.bucket).mkdir()
    for name, age in (("old.part", 7200), ("live.part", 60)):
        partial = tmp_path / key.bucket / name
        partial.write_bytes(b"half")
        os.utime(partial, (time.time() - age, time.time() - age))
    await BlobCache(store, tmp_path, 1000 * KB).path(key.bucket, ref)
    assert files(tmp_path) == {ref.digest, "live.part"}


PROCESS = """
import asyncio, hashlib, random, sys
from pathlib import Path
from marlaas.schemas.contract import BlobRef
from marlaas.storage.blob_cache import BlobCache
from marlaas.storage.object_store import ObjectStore

endpoint, access, secret, folder, bucket, *digests = sys.argv[1:]

async def use(cache, digest):
    async with cache.pinned(bucket, BlobRef(digest=digest, size=100_000)) as path:
        for _ in range(3):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
            await asyncio.sleep(0.002)

async def main():
    cache = BlobCache(ObjectStore(endpoint, access, secret, secure=False), Path(folder), 250_000)
    for _ in range(25):
        await asyncio.gather(*(use(cache, random.choice(digests)) for _ in range(2)))

asyncio.run(main())
"""


async def test_processes_that_share_a_small_folder_never_lose_a_pinned_file(
    store: ObjectStore, s3_server: S3Server, key: JobKey, tmp_path: Path
) -> None:
    """CASES 10: What is being read stays."""
    refs = await put(store, key, 6)
    arguments = [s3_server.endpoint, s3_server.access_key, s3_server.secret_key, str(tmp_path), key.bucket]
    arguments += [ref.digest for ref in refs]
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", PROCESS, *arguments) for _ in range(4)
    ]
    assert [await process.wait() for process in processes] == [0, 0, 0, 0]
    assert not any(name.endswith(".part") for name in files(tmp_path))


async def test_a_file_that_is_put_is_stored_and_needs_no_download(
    store: ObjectStore, key: JobKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = BlobCache(store, tmp_path / "cache", 1 << 20)
    source = tmp_path / "made"
    source.write_bytes(b"weights" * 1000)
    ref = await cache.put(key.bucket, source)
    assert not source.exists()
    assert await store.get_blob(key.bucket, ref) == b"weights" * 1000

    async def refuse(*_: object) -> None:
        raise AssertionError("downloaded")

    monkeypatch.setattr(store, "download_blob", refuse)
    assert (await cache.path(key.bucket, ref)).read_bytes() == b"weights" * 1000


async def test_a_file_may_be_put_twice(store: ObjectStore, key: JobKey, tmp_path: Path) -> None:
    cache = BlobCache(store, tmp_path / "cache", 1 << 20)
    refs: list[BlobRef] = []
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(b"same")
        refs.append(await cache.put(key.bucket, tmp_path / name))
    assert refs[0] == refs[1]
    assert [path.name for path in (tmp_path / "cache" / key.bucket).iterdir()] == [refs[0].digest]
