"""Real servers for tests: on 127.0.0.1, on ports of their own, dying with the test process."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path

_SCRIPTS = Path(sysconfig.get_path("scripts"))
_PR_SET_PDEATHSIG = 1


class Server:
    """A server process that can be killed and started again with the same ports and data."""

    def __init__(self, command: list[str], folder: Path, port: int, environment: dict[str, str]) -> None:
        self.port = port
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log, preexec_fn=_die_with_parent
            )
        while not self._answers():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._command} ended: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """kill -9, and start again."""
        self.kill()
        self.start()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        self.send(number)
        assert self._process is not None
        self._process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class NatsServer(Server):
    """nats-server with JetStream on disk."""

    def __init__(self, folder: Path) -> None:
        port = _free_ports(1)[0]
        self._config = folder / "nats.conf"
        self._basics = (
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{folder}", sync_interval: always, max_file_store: 1TB }}\n'
        )
        self._config.write_text(self._basics)
        super().__init__([str(_SCRIPTS / "nats-server"), "-c", str(self._config)], folder, port, {})
        self.url = f"nats://127.0.0.1:{port}"

    def configure(self, extra: str) -> None:
        """Has the running server read its configuration again, with further lines."""
        self._config.write_text(self._basics + extra)
        before = self._reloads()
        self.send(signal.SIGHUP)
        while self._reloads() == before:
            time.sleep(0.01)

    def _reloads(self) -> int:
        return self._log.read_text().count("Reloaded server configuration")


class S3Server(Server):
    """`weed mini`; `extra` are further flags."""

    access_key, secret_key = "marlaas", "marlaas-secret"

    def __init__(self, folder: Path, *extra: str) -> None:
        master, volume, filer, s3, admin = _free_ports(5)
        flags = {
            "dir": folder,
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "master.port": master,
            "volume.port": volume,
            "filer.port": filer,
            "s3.port": s3,
            "admin.port": admin,
            "admin.ui": "false",
            "webdav": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "master.telemetry": "false",
            "volume.max": 1000,  # every bucket takes one
        }
        command = [
            str(_SCRIPTS / "weed"),
            "mini",
            *(f"-{name}={value}" for name, value in flags.items()),
            *extra,
        ]
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        super().__init__(command, folder, s3, keys)
        self.endpoint = f"127.0.0.1:{s3}"


def _free_ports(count: int) -> list[int]:
    """Ports below the ephemeral ones, of which the port 10000 higher (weed's gRPC) is free as well."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 22_700), 1000):
        if _is_free(port) and _is_free(port + 10_000):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
