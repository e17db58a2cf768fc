"""A real HTTP server for rewards and judges, which answers as a test says."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]
"""Status and body."""


@dataclass
class RewardServer:
    """What the server was asked, and what it answers.

    Attributes:
        answer: of the body of a request; None holds the request until the server ends.
        asked: path, headers (by lower-case name) and body of each request.
    """

    answer: Callable[[Any], Answer | None]
    url: str = ""
    asked: list[tuple[str, dict[str, str], Any]] = field(default_factory=list[Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    ended: threading.Event = field(default_factory=threading.Event)


def as_json(value: object, status: int = 200) -> Answer:
    return status, json.dumps(value).encode()


def reply(text: object) -> Answer:
    """As an OpenAI-compatible server answers."""
    return as_json({"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})


@contextmanager
def reward_server(answer: Callable[[Any], Answer | None]) -> Generator[RewardServer]:
    """A server on a port of its own, until the end of the block."""
    server = RewardServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.asked.append((self.path, headers, body))
            given = server.answer(body)
            if given is None:
                server.ended.wait()
                self.close_connection = True
                return
            status, content = given
            self.send_response(status)
            for name, value in {**server.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    server.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
