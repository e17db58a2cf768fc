"""Servers that the tests share. A test that kills a server starts its own."""

import signal
from collections.abc import Iterator

import pytest
from marlaas.tests.servers import NatsServer, S3Server

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # As in a background job of a script. What the tests start would inherit it, and never be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()
