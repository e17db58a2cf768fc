"""Blobs as local files, downloaded once and kept within a size."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BufferedReader
from pathlib import Path
from weakref import WeakValueDictionary

from ..schemas.contract import BlobRef
from .object_store import ObjectStore

_ABANDONED_SECONDS = 3600.0
"""A partial download that has not grown for so long belongs to a process that is gone."""


class BlobCache:
    """Local copies of blobs. Any number of processes may share the folder.

    A file is pinned by a shared lock on it, so pins hold between processes and end with their process.
    Tenants share no file, even of equal content: what a bucket does not hold cannot be read through
    the cache either.

    Args:
        store: where the blobs come from.
        folder: created when it does not exist.
        max_bytes: the files that were used longest ago are deleted beyond this size, unless pinned.
    """

    def __init__(self, store: ObjectStore, folder: Path, max_bytes: int) -> None:
        self._store = store
        self._folder = folder
        self._max_bytes = max_bytes
        self._downloads: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._verified: set[Path] = set()

    async def path(self, bucket: str, ref: BlobRef) -> Path:
        """The blob as a file, for a caller that opens it at once. Use `pinned` to keep it for longer.

        Raises:
            MissingBlob, CorruptBlob, StoreUnavailable: as `ObjectStore.download_blob`.
        """
        async with self.pinned(bucket, ref) as path:
            return path

    @asynccontextmanager
    async def pinned(self, bucket: str, ref: BlobRef) -> AsyncGenerator[Path]:
        """The blob as a file that stays while the context lasts.

        Raises:
            MissingBlob, CorruptBlob, StoreUnavailable: as `ObjectStore.download_blob`.
        """
        path = self._folder / bucket / ref.digest
        file = await self._pin(bucket, ref, path)
        try:
            yield path
        finally:
            file.close()

    async def put(self, bucket: str, path: Path) -> BlobRef:
        """Stores a file as a blob and keeps it as a local copy; the file itself is moved away.

        Raises:
            StoreUnavailable, StoreRefused: as `ObjectStore.put_blob`; the file is where it was then.
        """
        ref = await self._store.put_blob(bucket, path)
        place = self._folder / bucket / ref.digest
        await asyncio.to_thread(self._adopt, path, place)
        return ref

    def _adopt(self, path: Path, place: Path) -> None:
        arrival = _arrival(place)
        arrival.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, arrival)
        self._admit(arrival, place)

    async def _pin(self, bucket: str, ref: BlobRef, path: Path) -> BufferedReader:
        lock = self._downloads.setdefault(path, asyncio.Lock())
        async with lock:
            while (file := await asyncio.to_thread(self._open_pinned, path, ref)) is None:
                arrival = _arrival(path)
                await self._store.download_blob(bucket, ref, arrival)
                await asyncio.to_thread(self._admit, arrival, path)
            return file

    # The file at a path changes in two ways only, so that a pin holds: it is linked where none is,
    # and it is unlinked by a process that holds the exclusive lock on just this file.

    def _open_pinned(self, path: Path, ref: BlobRef) -> BufferedReader | None:
        """The file, pinned; None when it must be downloaded."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_at(file, path):
            if self._is_whole(file, path, ref):
                os.utime(path)
                return file
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(file, path):
                path.unlink()
        file.close()
        return None

    def _is_whole(self, file: BufferedReader, path: Path, ref: BlobRef) -> bool:
        """Compares the size, and the digest when this process sees the file for the first time.

        Downloads are not synced to the disk, so after a power cut a file may be there without its bytes.
        """
        if os.fstat(file.fileno()).st_size != ref.size:
            return False
        if path not in self._verified:
            if hashlib.file_digest(file, "sha256").hexdigest() != ref.digest:
                return False
            self._verified.add(path)
        return True

    def _admit(self, arrival: Path, path: Path) -> None:
        """Moves a verified download to its place, unless another process was faster, and makes room."""
        try:
            path.hardlink_to(arrival)
            self._verified.add(path)
        except FileExistsError:
            pass
        arrival.unlink()
        self._evict(path)

    def _evict(self, newest: Path) -> None:
        """Deletes what was used longest ago until the rest fits. Keeps `newest` and what is pinned."""
        kept: list[tuple[float, int, Path]] = []
        for path in self._folder.glob("*/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix != ".part":
                kept.append((status.st_mtime, status.st_size, path))
            elif status.st_mtime < time.time() - _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        excess = sum(size for _, size, _ in kept) - self._max_bytes
        for _, size, path in sorted(kept):
            if excess <= 0:
                break
            if path != newest and self._delete_unpinned(path):
                excess -= size

    def _delete_unpinned(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, path):
                    path.unlink()
        except FileNotFoundError:
            return True
        except BlockingIOError:
            return False
        self._verified.discard(path)
        return True


def _arrival(path: Path) -> Path:
    """Where a file is put together, by one writer alone, before it appears at its path."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")


def _is_at(file: BufferedReader, path: Path) -> bool:
    """Whether an open file is still the one at its path: it may have been evicted since."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
