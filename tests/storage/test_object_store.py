"""The object store against a real server: what is there is whole, and a failure is said."""

import asyncio
import hashlib
import os
import time
from pathlib import Path

import pytest
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.names import JobKey, blob_key
from marlaas.storage.object_store import (
    CorruptBlob,
    MissingBlob,
    ObjectStore,
    StoreRefused,
    StoreUnavailable,
)
from marlaas.tests.servers import S3Server
from marlaas.tests.storage.proxy import Proxy


def connect(server: S3Server, endpoint: str | None = None, secret: str | None = None) -> ObjectStore:
    return ObjectStore(
        endpoint or server.endpoint, server.access_key, secret or server.secret_key, secure=False
    )


def ref_of(data: bytes) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(data).hexdigest(), size=len(data))


def wait_for_bytes(folder: Path, count: int) -> None:
    while sum(file.stat().st_size for file in folder.glob("*.dat")) < count:
        time.sleep(0.01)


async def fill(store: ObjectStore, bucket: str, refs: list[BlobRef]) -> None:
    while len(refs) < 10:
        refs.append(await store.put_blob(bucket, os.urandom(1_500_000)))


async def test_a_blob_comes_back_from_bytes_and_from_a_file(
    store: ObjectStore, key: JobKey, tmp_path: Path
) -> None:
    data = os.urandom(9_000_000)
    (tmp_path / "blob").write_bytes(data)
    assert await store.put_blob(key.bucket, tmp_path / "blob") == ref_of(data)
    assert await store.put_blob(key.bucket, data) == ref_of(data)
    assert await store.get_blob(key.bucket, ref_of(data)) == data
    await store.download_blob(key.bucket, ref_of(data), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    empty = await store.put_blob(key.bucket, b"")
    assert await store.get_blob(key.bucket, empty) == b""


async def test_a_blob_that_is_there_is_not_sent_again(
    store: ObjectStore, s3_server: S3Server, key: JobKey
) -> None:
    data = os.urandom(1000)
    await store.put_blob(key.bucket, data)
    with Proxy(s3_server.endpoint, lambda method, path: None) as proxy:
        watched = connect(s3_server, proxy.endpoint)
        await watched.put_blob(key.bucket, data)
        await watched.put_blob(key.bucket, os.urandom(1000))
        watched.close()
    assert [method for method, _ in proxy.seen].count("PUT") == 1


async def test_a_file_that_changes_between_hashing_and_sending_is_refused(
    store: ObjectStore, s3_server: S3Server, key: JobKey, tmp_path: Path
) -> None:
    path, data = tmp_path / "changing", os.urandom(1000)
    path.write_bytes(data)

    def change(method: str, _: str) -> None:
        if method == "HEAD":
            path.write_bytes(os.urandom(1000))

    with Proxy(s3_server.endpoint, change) as proxy:
        watched = connect(s3_server, proxy.endpoint)
        with pytest.raises(StoreRefused, match="BadDigest"):
            await watched.put_blob(key.bucket, path)
        watched.close()
    assert await store.size(key.bucket, blob_key(ref_of(data).digest)) is None


@pytest.mark.parametrize(
    "stored", [b"wrong bytes", b"right byte", b""], ids=["altered", "truncated", "empty"]
)
async def test_corruption_is_detected_and_named(
    store: ObjectStore, key: JobKey, tmp_path: Path, stored: bytes
) -> None:
    salt = os.urandom(8)
    ref = ref_of(b"right bytes" + salt)
    name = blob_key(ref.digest)
    assert await store.put_new(key.bucket, name, stored + salt)
    for read in (
        store.get_blob(key.bucket, ref),
        store.download_blob(key.bucket, ref, tmp_path / "blob"),
    ):
        with pytest.raises(CorruptBlob) as caught:
            await read
        message = str(caught.value)
        assert f"{key.bucket}/{name}" in message
        assert f"{ref.size} bytes" in message
        assert ref_of(stored + salt).digest in message
    assert not os.listdir(tmp_path)


async def test_a_missing_blob_is_named(store: ObjectStore, key: JobKey, tmp_path: Path) -> None:
    ref = ref_of(os.urandom(8))
    with pytest.raises(MissingBlob, match=ref.digest):
        await store.get_blob(key.bucket, ref)
    with pytest.raises(MissingBlob, match=ref.digest):
        await store.download_blob("marlaas-nobody", ref, tmp_path / "blob")
    assert not os.listdir(tmp_path)


async def test_one_of_twenty_conditional_puts_wins(store: ObjectStore, key: JobKey) -> None:
    bodies = [f"writer {number}".encode() for number in range(20)]
    won = await asyncio.gather(*(store.put_new(key.bucket, key.job_document, body) for body in bodies))
    assert won.count(True) == 1
    assert await store.get(key.bucket, key.job_document) == bodies[won.index(True)]


async def test_buckets_keys_and_what_is_not_there(store: ObjectStore, key: JobKey) -> None:
    await asyncio.gather(*(store.ensure_bucket("marlaas-storage-two") for _ in range(8)))
    assert await store.get("marlaas-storage-two", "nothing") is None
    assert await store.get("marlaas-nobody", "nothing") is None
    assert await store.size("marlaas-nobody", "nothing") is None
    assert await store.list_keys("marlaas-nobody", "") == []
    with pytest.raises(StoreRefused, match="NoSuchBucket"):
        await store.put_new("marlaas-nobody", "key", b"")
    names = [f"jobs/{key.job}/{number:04d}" for number in range(12)]
    for name in names:
        await store.put_new(key.bucket, name, name.encode())
    assert await store.list_keys(key.bucket, f"jobs/{key.job}/") == names


async def test_wrong_credentials_fail_at_once_and_say_so(s3_server: S3Server, key: JobKey) -> None:
    stranger = connect(s3_server, secret="wrong")
    with pytest.raises(StoreRefused, match=f"{s3_server.endpoint}.*SignatureDoesNotMatch"):
        await stranger.get(key.bucket, "key")
    stranger.close()


async def test_two_answers_of_503_are_ridden_out(s3_server: S3Server, key: JobKey) -> None:
    """CASES 20: A short outage is ridden out."""
    faults = [503, 503]
    with Proxy(s3_server.endpoint, lambda method, path: faults.pop() if faults else None) as proxy:
        shaky = connect(s3_server, proxy.endpoint)
        data = os.urandom(1000)
        ref = await shaky.put_blob(key.bucket, data)
        assert await shaky.get_blob(key.bucket, ref) == data
        shaky.close()
    assert not faults


async def test_503_for_ever_is_an_error_and_commits_nothing(
    store: ObjectStore, s3_server: S3Server, key: JobKey
) -> None:
    """CASES 20: A long one is a failure that is seen."""
    data = os.urandom(1000)
    with Proxy(s3_server.endpoint, lambda method, path: 503 if method == "PUT" else None) as proxy:
        broken = connect(s3_server, proxy.endpoint)
        failures = await asyncio.gather(
            broken.put_blob(key.bucket, data),
            broken.put_new(key.bucket, key.job_document, b"{}"),
            return_exceptions=True,
        )
        for failure in failures:
            assert isinstance(failure, StoreUnavailable)
            assert proxy.endpoint in str(failure)
            assert "HTTP 503" in str(failure)
        broken.close()
    assert await store.size(key.bucket, blob_key(ref_of(data).digest)) is None
    assert await store.get(key.bucket, key.job_document) is None


async def test_a_conditional_put_whose_answer_was_lost_finds_its_own_bytes(
    s3_server: S3Server, key: JobKey
) -> None:
    faults = [504]

    def lose_the_first_put(method: str, path: str) -> int | None:
        return faults.pop() if method == "PUT" and faults else None

    with Proxy(s3_server.endpoint, lose_the_first_put, after=True) as proxy:
        shaky = connect(s3_server, proxy.endpoint)
        assert not await shaky.put_new(key.bucket, key.job_document, b"mine")
        assert await shaky.get(key.bucket, key.job_document) == b"mine"
        shaky.close()


async def test_nobody_there_is_an_error_that_names_the_endpoint(s3_server: S3Server) -> None:
    lost = connect(s3_server, "127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:9\b"):
        await lost.get("marlaas-a", "key")
    lost.close()


async def test_an_upload_survives_kill_9_of_the_server(tmp_path: Path, key: JobKey) -> None:
    """CASES 119: It begins again, under the digest of its content."""
    server = S3Server(tmp_path)
    server.start()
    store = connect(server)
    await store.ensure_bucket(key.bucket)
    kept = await store.put_blob(key.bucket, b"before")
    data = os.urandom(64_000_000)
    upload = asyncio.create_task(store.put_blob(key.bucket, data))
    await asyncio.to_thread(wait_for_bytes, tmp_path, 8_000_000)
    server.kill()
    assert not upload.done()
    half = asyncio.create_task(store.size(key.bucket, blob_key(ref_of(data).digest)))
    server.start()
    try:
        assert await half in (None, len(data))
        assert await upload == ref_of(data)
        assert await store.get_blob(key.bucket, ref_of(data)) == data
        assert await store.get_blob(key.bucket, kept) == b"before"
    finally:
        server.kill()
        store.close()


async def test_a_full_store_says_so_and_keeps_what_it_has(tmp_path: Path, key: JobKey) -> None:
    """CASES 11 and 19: nothing half-written is visible, and the old can still be read."""
    server = S3Server(tmp_path, "-master.volumeSizeLimitMB=1", "-volume.max=1")
    server.start()
    store = connect(server)
    await store.ensure_bucket(key.bucket)
    kept = [await store.put_blob(key.bucket, b"before")]
    try:
        with pytest.raises(StoreUnavailable, match="disk is not full"):
            await fill(store, key.bucket, kept)
        with pytest.raises(StoreUnavailable, match=key.job_document):
            await store.put_new(key.bucket, key.job_document, b"{}")
        assert await store.get(key.bucket, key.job_document) is None
        for ref in kept:
            assert len(await store.get_blob(key.bucket, ref)) == ref.size
    finally:
        server.kill()
        store.close()


async def test_bytes_are_replaced_only_by_whoever_read_them(store: ObjectStore, key: JobKey) -> None:
    name = f"jobs/{key.job}/tagged"
    assert await store.get_tagged(key.bucket, name) is None
    assert await store.put_new(key.bucket, name, b"one")
    found = await store.get_tagged(key.bucket, name)
    assert found is not None
    assert found[0] == b"one"
    won = await asyncio.gather(*(store.put_over(key.bucket, name, b"two %d" % n, found[1]) for n in range(8)))
    assert sum(won) == 1
    assert await store.get(key.bucket, name) == b"two %d" % won.index(True)
