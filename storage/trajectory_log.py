"""The trajectory log: a job's trajectories and scored groups on its JetStream stream, each exactly once."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Self, TypeVar

from nats.js.api import DiscardPolicy, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError, NotFoundError

from ..schemas.contract import BlobRef, Document
from ..schemas.names import JobKey
from ..schemas.trajectory import ScoredGroup, Trajectory
from .documents import decode
from .jetstream import JetStream, StreamFull, StreamMissing
from .object_store import ObjectStore

D = TypeVar("D", bound=Document)

_WRONG_LAST_SEQUENCE = {10071, 10164}
_IN_USE_DIFFERENTLY = 10058
_LARGEST_BODY = 512 * 1024
"""Bytes that a message may have: half of what nats-server takes unless it is configured otherwise."""
_ELSEWHERE = "Marlaas-Body"
"""Header of a message whose body stands in the object store; its value is `blob`."""


class _Elsewhere(Document):
    """The body of a message that is too large for the stream."""

    blob: BlobRef


class TrajectoryLog:
    """One stream per job; one subject per trajectory and per scored group; one message per subject.

    Every method waits out an outage of the server, up to a bound. All of them raise `LogUnavailable`
    and `LogRefused`, and those without `Stream` in their name `StreamMissing`.

    Args:
        jetstream: an open connection.
        store: takes the bodies that are too large for the stream, in the tenant's bucket.
        max_stream_bytes: quota of a stream that is created. The server counts it in full against its
            own limit (`max_file_store`) as long as the stream exists.
    """

    def __init__(self, jetstream: JetStream, store: ObjectStore, *, max_stream_bytes: int) -> None:
        self._jetstream = jetstream
        self._store = store
        self._max_stream_bytes = max_stream_bytes

    @classmethod
    async def connect(
        cls, url: str, store: ObjectStore, *, max_stream_bytes: int = 1 << 30, patience: float = 60.0
    ) -> Self:
        """Opens the log; see `JetStream` for the URL and the patience."""
        jetstream = JetStream(url, patience)
        await jetstream.open()
        return cls(jetstream, store, max_stream_bytes=max_stream_bytes)

    async def close(self) -> None:
        await self._jetstream.close()

    async def ensure_stream(self, key: JobKey) -> None:
        """Creates the job's stream. One that exists stays as it is.

        Raises:
            StreamFull: when the server has no storage left to promise; says how many streams have it.
        """
        config = StreamConfig(
            name=key.stream,
            subjects=[key.subjects],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_bytes=self._max_stream_bytes,
            allow_direct=True,
        )

        async def create(js: JetStreamContext) -> None:
            try:
                await js.add_stream(config)  # pyright: ignore[reportUnknownMemberType]
            except BadRequestError as error:
                if error.err_code != _IN_USE_DIFFERENTLY:
                    raise

        try:
            await self._jetstream.call("create it", key.stream, create)
        except StreamFull as error:
            account = await self._jetstream.call("look around", key.stream, lambda js: js.account_info())
            raise StreamFull(
                f"{error}. {account.streams} jobs have a stream there, and each counts with its whole quota. "
                "A job's stream goes at the job's end; that of a job that was terminated stays until "
                "`nats stream rm marlaas_TENANT_JOB`"
            ) from error

    async def delete_stream(self, key: JobKey) -> None:
        """Deletes the job's stream and all that is in it, if it exists."""
        try:
            await self._jetstream.call("delete it", key.stream, lambda js: js.delete_stream(key.stream))
        except StreamMissing:
            return

    async def publish(self, key: JobKey, message: Trajectory | ScoredGroup) -> int:
        """Publishes a message, unless its subject holds one already.

        The first writer wins, whatever the others bring: a caller that did not write itself reads what
        is there. After its group was purged, a late message is stored anew; such a stray is of a group
        that no selection asks for again, and the next purge takes it away.

        Returns:
            The stream sequence of the message that the subject holds, at least 1.

        Raises:
            StreamFull: when the stream has no room until the patience ends.
            StoreUnavailable: when a large body cannot be stored.
        """
        if isinstance(message, Trajectory):
            subject = key.trajectory_subject(message.group, message.sample)
        else:
            subject = key.scored_subject(message.group, message.round)
        body, headers = await self._pack(key, message)

        async def once(js: JetStreamContext) -> int:
            while True:
                # Not Nats-Msg-Id: the server forgets that after two minutes, and a retry may come later.
                expected = {"Nats-Expected-Last-Subject-Sequence": "0", **headers}
                try:
                    return (await js.publish(subject, body, stream=key.stream, headers=expected)).seq
                except BadRequestError as error:
                    if error.err_code not in _WRONG_LAST_SEQUENCE:
                        raise
                with contextlib.suppress(NotFoundError):  # purged since: publish again
                    return _sequence(await js.get_msg(key.stream, subject=subject))

        return await self._jetstream.call(f"publish {subject}", key.stream, once)

    async def trajectories(self, key: JobKey, group: str, samples: int) -> dict[int, tuple[int, Trajectory]]:
        """The group's trajectories that are on the stream, by sample and in their order.

        Returns:
            Per sample its stream sequence and the trajectory. Samples without one are left out.
        """
        subjects = [key.trajectory_subject(group, sample) for sample in range(samples)]
        found = await asyncio.gather(*(self._read(key, subject, Trajectory) for subject in subjects))
        return {sample: entry for sample, entry in enumerate(found) if entry is not None}

    async def scored(self, key: JobKey, group: str, round: int = 0) -> ScoredGroup | None:
        """The group as a round of scoring left it; None when it is not on the stream."""
        found = await self._read(key, key.scored_subject(group, round), ScoredGroup)
        return found[1] if found else None

    async def last_scored(self, key: JobKey, group: str, round: int) -> ScoredGroup | None:
        """The group as the last of the rounds up to `round` left it that scored it; None when none did."""
        for number in range(round, -1, -1):
            found = await self.scored(key, group, number)
            if found is not None:
                return found
        return None

    async def present_samples(self, key: JobKey, group: str) -> set[int]:
        """The samples of a group that have a trajectory on the stream, without reading them."""
        matching = key.trajectory_filter(group)
        info = await self._jetstream.call(
            f"look up {matching}", key.stream, lambda js: js.stream_info(key.stream, subjects_filter=matching)
        )
        return {int(subject.rpartition(".")[2]) for subject in info.state.subjects or ()}

    async def purge_groups(self, key: JobKey, groups: Iterable[str], rounds: int = 1) -> None:
        """Removes the trajectories and scores of groups. What is not there, stream included, is purged.

        Args:
            rounds: in which the groups were scored.
        """

        async def purge(matching: str) -> None:
            await self._jetstream.call(
                f"purge {matching}", key.stream, lambda js: js.purge_stream(key.stream, subject=matching)
            )

        filters = [
            matching
            for group in groups
            for matching in (
                key.trajectory_filter(group),
                *(key.scored_subject(group, round) for round in range(rounds)),
            )
        ]
        try:
            await asyncio.gather(*(purge(matching) for matching in filters))
        except StreamMissing:
            return

    async def count(self, key: JobKey) -> int:
        """Number of messages on the job's stream."""
        info = await self._jetstream.call("count", key.stream, lambda js: js.stream_info(key.stream))
        return info.state.messages

    async def _pack(self, key: JobKey, message: Document) -> tuple[bytes, dict[str, str]]:
        body = message.model_dump_json().encode()
        if len(body) <= _LARGEST_BODY:
            return body, {}
        blob = await self._store.put_blob(key.bucket, body)
        return _Elsewhere(blob=blob).model_dump_json().encode(), {_ELSEWHERE: "blob"}

    async def _read(self, key: JobKey, subject: str, model: type[D]) -> tuple[int, D] | None:
        async def last(js: JetStreamContext) -> RawStreamMsg | None:
            try:
                return await js.get_msg(key.stream, subject=subject, direct=True)
            except NotFoundError:
                return None

        stored = await self._jetstream.call(f"read {subject}", key.stream, last)
        if stored is None:
            return None
        body = stored.data or b""
        if stored.headers and _ELSEWHERE in stored.headers:  # pyright: ignore[reportUnknownMemberType]
            body = await self._store.get_blob(key.bucket, decode(_Elsewhere, body, subject).blob)
        return _sequence(stored), decode(model, body, subject)


def _sequence(message: RawStreamMsg) -> int:
    assert message.seq is not None, "the server numbers every message"
    return message.seq
