"""An HTTP proxy before the object store, which fails on demand and remembers what was asked."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import urllib3


class Proxy:
    """Hands requests to the real server.

    Args:
        target: `host:port` of the server.
        fault: the status to answer instead, given method and path; None lets the request through.
        after: whether the server gets the request all the same, so that only its answer is lost.
    """

    def __init__(self, target: str, fault: Callable[[str, str], int | None], *, after: bool = False) -> None:
        pool = urllib3.PoolManager(retries=False)
        seen = self.seen = list[tuple[str, str]]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.partition("?")[0]
                seen.append((self.command, path))
                status = fault(self.command, path)
                if status is None or after:
                    answer = pool.request(
                        self.command, f"http://{target}{self.path}", body=body, headers=dict(self.headers)
                    )
                    if status is None:
                        self._answer(answer.status, dict(answer.headers), answer.data)
                        return
                self._answer(status or 500, {}, b"the proxy is out of order")

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding"):
                        self.send_header(name, value)
                length = headers.get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = _serve  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
