"""The connection to NATS JetStream, which outlives outages of the server up to a bound."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

import nats.errors
from nats.aio.client import Client
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

T = TypeVar("T")

_log = logging.getLogger(__name__)

_STREAM_NOT_FOUND = 10059
_NO_SPACE = {10023, 10028, 10047, 10077}
"""Error codes of a stream, account or disk that is full."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
"""Seconds between tries; each pause is twice the one before."""
_ANSWER_SECONDS = 5.0
_IN_FLIGHT = 32
"""Requests at once. With messages of at most half a megabyte their answers stay below what the server
holds for a slow reader."""


class LogUnavailable(Exception):
    """JetStream did not answer for as long as the caller was willing to wait."""


class LogRefused(Exception):
    """JetStream refused the request; the same request will be refused again."""


class StreamFull(Exception):
    """The stream, or the server's disk, had no room for as long as the caller was willing to wait."""


class StreamMissing(Exception):
    """The job has no stream: it has ended, or has no version 0 yet."""

    def __init__(self, what: str, stream: str) -> None:
        super().__init__(
            f"cannot {what}: stream {stream} does not exist. A job has one from its version 0 to its end"
        )


class JetStream:
    """Runs requests against JetStream, again while their failure may pass.

    Args:
        url: `nats://host:port`, with `user:password@` where needed; several with commas between.
        patience: seconds without success after which a request is given up.
    """

    def __init__(self, url: str, patience: float) -> None:
        self._url = url
        self._patience = patience
        self._client: Client | None = None
        self._context: JetStreamContext | None = None
        self._connecting = asyncio.Lock()
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)
        self._waits: set[asyncio.Timeout] = set()
        self._trouble: str | None = None

    async def open(self) -> None:
        """Connects.

        Raises:
            LogUnavailable: when no server answers.
        """
        try:
            async with asyncio.timeout(self._patience):
                await self._connect()
        except (TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"cannot connect to NATS at {self._place}: {self._cause(error)}") from error

    async def close(self) -> None:
        """Drops the connection. No call may follow or be under way."""
        if self._client is not None:
            await self._client.close()

    async def call(self, what: str, stream: str, operation: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        """Runs an operation on a stream. It must be safe to repeat: an answer may have been lost.

        Raises:
            StreamMissing: when the stream does not exist.
            StreamFull: when there is no room.
            LogUnavailable: when the server cannot serve the request.
            LogRefused: when it refuses the request for good.
        """
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        pause = _FIRST_PAUSE
        while True:
            try:
                # Held for one try only: those that wait for room must not hold up those that make it.
                async with self._in_flight, self._until_disconnected():
                    return await operation(await self._connected())
            except APIError as error:
                if error.err_code == _STREAM_NOT_FOUND:
                    raise StreamMissing(what, stream) from error
                if error.code is not None and error.code < 500 and error.code != 429:
                    raise LogRefused(f"cannot {what} in stream {stream}: {error}") from error
                failure = error
            except (nats.errors.Error, OSError) as error:
                failure = error
            if isinstance(failure, NoStreamResponseError | nats.errors.NoRespondersError):
                await self._check_exists(what, stream)
            deadline = deadline or loop.time() + self._patience
            if loop.time() + pause > deadline:
                raise self._given_up(f"cannot {what} in stream {stream}", failure) from failure
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    @contextlib.asynccontextmanager
    async def _until_disconnected(self) -> AsyncGenerator[None]:
        """Ends what waits for an answer with a `TimeoutError` when the connection that it came by ends."""
        async with asyncio.timeout(None) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)

    async def _connected(self) -> JetStreamContext:
        async with self._connecting:
            # A server's refusal, such as too many connections, makes the client close itself for good.
            if self._client is None or self._client.is_closed:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await self._connect()
        assert self._client is not None
        assert self._context is not None
        if not self._client.is_connected:
            # It would keep the request and send it after the reconnect, long after it was given up.
            raise nats.errors.ConnectionReconnectingError
        return self._context

    async def _connect(self) -> None:
        client = Client()
        await client.connect(
            self._url.split(","),
            name="marlaas",
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            ping_interval=10,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
        )
        self._client = client
        self._context = client.jetstream(timeout=_ANSWER_SECONDS)  # pyright: ignore[reportUnknownMemberType]

    async def _check_exists(self, what: str, stream: str) -> None:
        """Tells a stream that is not there from a server that is not ready, which nothing else does."""
        try:
            await (await self._connected()).stream_info(stream)
        except NotFoundError as error:
            raise StreamMissing(what, stream) from error
        except (nats.errors.Error, OSError):
            return

    def _given_up(self, what: str, failure: Exception) -> LogUnavailable | StreamFull:
        place = f"{what} at {self._place} for {self._patience:g} seconds"
        if isinstance(failure, APIError) and failure.err_code in _NO_SPACE:
            return StreamFull(
                f"{place}: {failure.description}. Room comes from steps that commit; else raise the "
                "stream's quota or free disk space on the server"
            )
        return LogUnavailable(f"{place}: {self._cause(failure)}")

    @property
    def _place(self) -> str:
        """The servers, without their passwords."""
        return ", ".join(server.rpartition("@")[2] for server in self._url.split(","))

    def _cause(self, failure: Exception) -> str:
        """A timeout has its reason elsewhere: refused permissions reach the error callback alone."""
        described = f"{type(failure).__name__} {failure}".strip()
        return f"{described}; last trouble of the connection: {self._trouble}" if self._trouble else described

    async def _on_error(self, error: Exception) -> None:
        trouble = f"{type(error).__name__} {error}".strip()
        if trouble != self._trouble:
            _log.warning("NATS at %s: %s", self._place, trouble)
        self._trouble = trouble

    async def _on_disconnected(self) -> None:
        for wait in self._waits:
            wait.reschedule(0)
        if self._client is not None and not self._client.is_closed:
            _log.warning("lost the connection to NATS at %s; reconnecting", self._place)

    async def _on_reconnected(self) -> None:
        _log.warning("reconnected to NATS at %s", self._place)
        self._trouble = None
