"""The object store: any S3 through the `minio` client. Nothing else here speaks S3."""

import asyncio
import base64
import hashlib
import io
import os
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar
from xml.etree import ElementTree

from minio import Minio
from minio.error import MinioException, S3Error, ServerError
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError

from ..schemas.contract import BlobRef
from ..schemas.names import blob_key

T = TypeVar("T")

_PAUSES = (0.1, 0.3, 0.6, 1.2, 2.4)
"""Seconds between tries: a server that is gone for longer is reported, and the caller's retry goes on."""
_CONNECTIONS = 16
_CHUNK = 1 << 20
_SIGNATURE_LIFE = timedelta(hours=1)


class StoreUnavailable(Exception):
    """The object store did not answer, or could not do it now. Trying again later may help."""


class StoreRefused(Exception):
    """The object store refused the request: wrong credentials, a bucket that is not there, and the like."""


class MissingBlob(Exception):
    """A blob that something refers to is not in the store."""


class CorruptBlob(Exception):
    """The bytes of a blob are not those that its name promises."""


class _Answer(Exception):
    """An HTTP status that the request did not expect, with the server's explanation."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self.status = response.status
        super().__init__(f"HTTP {response.status}{_explanation(response)}")


class ObjectStore:
    """Blobs and documents in buckets.

    The client blocks, so every call runs in a thread of the store's own: an outage of the store then
    holds up no other user of the event loop's threads. Whatever fails in a way that may pass is
    tried again for about five seconds.

    All methods but `close` raise `StoreUnavailable` and `StoreRefused`; both name the endpoint.

    Args:
        endpoint: `host:port`.
        access_key: of an account that may create buckets, read and write.
        secret_key: of the account.
        secure: whether to use TLS.
    """

    def __init__(self, endpoint: str, access_key: str, secret_key: str, *, secure: bool) -> None:
        self._endpoint = endpoint
        # Retries are ours: urllib3 does not repeat a download that breaks off in its body.
        self._http = PoolManager(
            maxsize=_CONNECTIONS, block=True, retries=False, timeout=Timeout(connect=3.0, read=60.0)
        )
        self._minio = Minio(endpoint, access_key, secret_key, secure=secure, http_client=self._http)
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="object-store")

    def close(self) -> None:
        """Drops the connections. Calls that are under way end by themselves."""
        self._threads.shutdown(wait=False)
        self._http.clear()

    async def ensure_bucket(self, bucket: str) -> None:
        """Creates a bucket, unless it exists."""

        def create() -> None:
            try:
                self._minio.make_bucket(bucket)
            except S3Error as error:
                # Whoever creates it at the same time counts as well.
                if error.code not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                    raise

        await self._attempt(f"create bucket {bucket}", create)

    async def put_blob(self, bucket: str, data: bytes | Path) -> BlobRef:
        """Stores bytes, or a file's content, under their digest; nothing is sent when they are there.

        The blob appears whole or not at all. At most 5 GiB, S3's limit for one request.
        """
        ref, headers = await asyncio.get_running_loop().run_in_executor(self._threads, _measure, data)
        key = blob_key(ref.digest)
        if await self.size(bucket, key) != ref.size:
            await self._attempt(f"put {bucket}/{key}", lambda: self._put(bucket, key, data, headers))
        return ref

    async def get_blob(self, bucket: str, ref: BlobRef) -> bytes:
        """The bytes of a blob.

        Raises:
            MissingBlob: when it is not there.
            CorruptBlob: when it has another size or digest.
        """
        data = await self.get(bucket, blob_key(ref.digest))
        if data is None:
            raise _missing(bucket, ref)
        _check(bucket, ref, len(data), hashlib.sha256(data).hexdigest())
        return data

    async def download_blob(self, bucket: str, ref: BlobRef, path: Path) -> None:
        """Puts a blob's bytes at `path`, which appears whole and verified or not at all.

        The partial file beside it is named `<name>.<random>.part`; a killed process leaves it behind.

        Raises:
            MissingBlob: when it is not there.
            CorruptBlob: when it has another size or digest.
        """
        key = blob_key(ref.digest)
        await self._attempt(f"get {bucket}/{key}", lambda: self._download(bucket, ref, path))

    async def put_new(self, bucket: str, key: str, data: bytes) -> bool:
        """Stores bytes at a key where nothing is.

        Returns:
            True when this call stored them. False means only that something is there: read it and
            compare, since it may be the caller's own bytes, stored by a try whose answer was lost.
        """
        return await self._put_if(bucket, key, data, {"If-None-Match": "*"})

    async def put_over(self, bucket: str, key: str, data: bytes, tag: str) -> bool:
        """Replaces the bytes that `get_tagged` gave with this tag.

        Returns:
            False when something else is there by now, which may be the caller's own bytes as in `put_new`.
        """
        return await self._put_if(bucket, key, data, {"If-Match": tag})

    async def get(self, bucket: str, key: str) -> bytes | None:
        """The bytes at a key; None when nothing is there."""
        found = await self.get_tagged(bucket, key)
        return None if found is None else found[0]

    async def get_tagged(self, bucket: str, key: str) -> tuple[bytes, str] | None:
        """The bytes at a key and the tag that names them for `put_over`; None when nothing is there."""

        def get() -> tuple[bytes, str] | None:
            response = self._request("GET", bucket, key, accept=(200, 404))
            return (response.data, response.headers["ETag"]) if response.status == 200 else None

        return await self._attempt(f"get {bucket}/{key}", get)

    async def size(self, bucket: str, key: str) -> int | None:
        """Number of bytes at a key; None when nothing is there."""

        def head() -> int | None:
            response = self._request("HEAD", bucket, key, accept=(200, 404))
            return int(response.headers["Content-Length"]) if response.status == 200 else None

        return await self._attempt(f"look up {bucket}/{key}", head)

    async def list_keys(self, bucket: str, prefix: str) -> list[str]:
        """All keys that begin with `prefix`, in order; none when the bucket does not exist."""

        def listed() -> list[str]:
            try:
                found = list(self._minio.list_objects(bucket, prefix=prefix, recursive=True))
            except S3Error as error:
                if error.code == "NoSuchBucket":
                    return []
                raise
            return sorted(entry.object_name for entry in found if entry.object_name is not None)

        return await self._attempt(f"list {bucket}/{prefix}", listed)

    async def _put_if(self, bucket: str, key: str, data: bytes, condition: dict[str, str]) -> bool:
        headers = {**_measure(data)[1], **condition}

        def put() -> bool:
            try:
                self._put(bucket, key, data, headers)
            except _Answer as answer:
                if answer.status != 412:
                    raise
                return False
            return True

        return await self._attempt(f"put {bucket}/{key}", put)

    def _put(self, bucket: str, key: str, data: bytes | Path, headers: dict[str, str]) -> None:
        with _open(data) as body:
            self._request("PUT", bucket, key, accept=(200,), body=body, headers=headers)

    def _download(self, bucket: str, ref: BlobRef, path: Path) -> None:
        response = self._request("GET", bucket, blob_key(ref.digest), accept=(200, 404), stream=True)
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            if response.status == 404:
                raise _missing(bucket, ref)
            digest, size = hashlib.sha256(), 0
            with partial.open("wb") as file:
                for chunk in response.stream(_CHUNK):
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
            _check(bucket, ref, size, digest.hexdigest())
            os.replace(partial, path)
        finally:
            response.close()
            partial.unlink(missing_ok=True)

    def _request(
        self,
        method: Literal["GET", "HEAD", "PUT"],
        bucket: str,
        key: str,
        *,
        accept: tuple[int, ...],
        body: BinaryIO | None = None,
        headers: dict[str, str] | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        """Sends one request for an object.

        The client signs and we send: its own methods know no conditional put, split uploads into
        parts that a killed process leaves behind, and hide the status of a failure.
        """
        try:
            url = self._minio.get_presigned_url(method, bucket, key, expires=_SIGNATURE_LIFE)
        except S3Error as error:
            # Signing asks for the bucket's region first.
            if error.code == "NoSuchBucket" and 404 in accept:
                return error.response
            raise
        response = self._http.request(
            method, url, body=body, headers=headers, preload_content=not stream, redirect=False
        )
        if response.status not in accept:
            raise _Answer(response)
        return response

    async def _attempt(self, what: str, operation: Callable[[], T]) -> T:
        """Runs a blocking operation in a thread, again while its failure may pass."""
        loop = asyncio.get_running_loop()
        for pause in (*_PAUSES, None):
            try:
                return await loop.run_in_executor(self._threads, operation)
            except (_Answer, MinioException, HTTPError) as error:
                place = f"cannot {what} in the object store at {self._endpoint}"
                if not _may_pass(error):
                    raise StoreRefused(f"{place}: {error}") from error
                if pause is None:
                    raise StoreUnavailable(
                        f"{place}, tried {len(_PAUSES) + 1} times: {error}. Check that it runs and that its "
                        "disk is not full; its log has the cause"
                    ) from error
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")


def _may_pass(error: Exception) -> bool:
    """Whether a failure is the server's state of the moment, not the request's fault."""
    match error:
        case _Answer():
            status = error.status
        case S3Error():
            status = error.response.status
        case ServerError():
            status = error.status_code
        case _:
            # No connection, a broken one, or an answer that is not S3's, as proxies give it.
            return True
    # 409 is a write that met another one under way: its outcome shows next time.
    return status >= 500 or status in (408, 409, 429)


def _explanation(response: BaseHTTPResponse) -> str:
    """What an S3 error document says."""
    try:
        document = ElementTree.fromstring(response.data)
    except ElementTree.ParseError:
        return ""
    return f" {document.findtext('{*}Code')}: {document.findtext('{*}Message')}"


def _open(data: bytes | Path) -> BinaryIO:
    return data.open("rb") if isinstance(data, Path) else io.BytesIO(data)


def _measure(data: bytes | Path) -> tuple[BlobRef, dict[str, str]]:
    """The reference of bytes or a file's content, and the headers that describe it in a request.

    Content-MD5 makes the server refuse what a broken connection cut off, and a file that changed
    after it was read for its digest.
    """
    sha256, md5, size = hashlib.sha256(), hashlib.md5(usedforsecurity=False), 0
    with _open(data) as body:
        while chunk := body.read(_CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
            size += len(chunk)
    headers = {"Content-Length": str(size), "Content-MD5": base64.b64encode(md5.digest()).decode()}
    return BlobRef(digest=sha256.hexdigest(), size=size), headers


def _missing(bucket: str, ref: BlobRef) -> MissingBlob:
    return MissingBlob(f"{bucket}/{blob_key(ref.digest)}: the blob of {ref.size} bytes is not in the store")


def _check(bucket: str, ref: BlobRef, size: int, digest: str) -> None:
    if (size, digest) != (ref.size, ref.digest):
        raise CorruptBlob(
            f"{bucket}/{blob_key(ref.digest)}: expected {ref.size} bytes with sha256 {ref.digest}, "
            f"found {size} bytes with sha256 {digest}"
        )
