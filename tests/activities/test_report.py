"""Reports with real child processes: what a tracker lacks is added, and what fails is named."""

import http.server
import socket
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from marlaas.activities import report
from marlaas.activities.report import ReportActivities
from marlaas.schemas.events import ReportInput, ReportResult
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.manifest import EvaluationDocument, HeldOutScores, Manifest, StepMetrics
from marlaas.schemas.tracker_calls import TrackerState
from marlaas.schemas.trackers import TensorBoardTracker
from marlaas.tests.noop_activities import FINGERPRINT, METRICS
from marlaas.tests.tracking.readers import tensorboard_points
from marlaas.tracking.sink import TrackerUnavailable, open_sink
from marlaas.workers.tracker_child import TrackerProcesses
from prometheus_client.parser import text_string_to_metric_families
from temporalio.testing import ActivityEnvironment

from .conftest import Job, Storage


def _metrics(version: int) -> StepMetrics:
    parts = {"right": version / 16, "style.short": -1.0}
    return METRICS.model_copy(update={"reward_mean": version / 8, "reward_parts": parts})


class Reporting:
    """A job with committed versions, and its reports to trackers that keep files in a folder."""

    def __init__(self, storage: Storage, job: Job, folder: Path) -> None:
        self._storage, self._job, self.folder = storage, job, folder
        self._parent: str | None = None
        self.key = job.spec.key

    async def commit(self, versions: Sequence[int]) -> None:
        blob = await self._storage.store.put_blob(self.key.bucket, b"tensors")
        for version in versions:
            manifest = Manifest(
                key=self.key,
                version=version,
                parent=self._parent,
                spec_digest=self._job.spec.digest,
                adapter=blob,
                optimizer=blob,
                batch=blob if version else None,
                metrics=_metrics(version) if version else None,
                time=1.7e9 + version,
                fingerprint=FINGERPRINT,
            )
            self._parent = (await self._storage.revisions.commit(manifest))[0].manifest

    async def evaluate(self, version: int) -> None:
        await self._storage.revisions.put_evaluation(
            EvaluationDocument(
                key=self.key,
                version=version,
                prompts=2,
                samples=2,
                accuracy=version / 4,
                greedy_accuracy=0.5,
                reward_mean=0.5,
                failed_samples=0,
                greedy_completions=(),
                pass_at={1: 0.5, 2: 0.75},
                by_environment={
                    name: HeldOutScores(
                        prompts=1, accuracy=right, greedy_accuracy=0.5, reward_mean=None, pass_at={}
                    )
                    for name, right in (("sums", 0.25), ("greedy", 0.125))
                },
            )
        )

    async def report(
        self, trackers: list[dict[str, Any]], newest: int, *, evaluated: int, final: bool = False
    ) -> tuple[TrackerState, ...]:
        spec: JobSpec = parse_job_spec({**self._job.spec.model_dump(mode="json"), "trackers": trackers})
        activities = ReportActivities(
            self._storage.store, self._storage.revisions, TrackerProcesses(self.folder)
        )
        data = ReportInput(spec=spec, since=0, newest=newest, evaluated=evaluated, final=final)
        result: ReportResult = await ActivityEnvironment().run(activities.report, data)
        return result.trackers

    def points(self, name: str) -> dict[int, list[float]]:
        found = tensorboard_points(self.folder / self.key.tenant / self.key.job / "tensorboard")
        return {step: values for (tag, step), values in sorted(found.items()) if tag == name}


@pytest.fixture
def reporting(storage: Storage, job: Job, tmp_path: Path) -> Reporting:
    return Reporting(storage, job, tmp_path / "tracking")


async def test_every_report_adds_what_the_tracker_lacks(reporting: Reporting) -> None:
    trackers = [{"kind": "tensorboard"}]
    await reporting.commit(range(3))
    await reporting.evaluate(0)
    assert await reporting.report(trackers, 2, evaluated=-1) == (TrackerState(kind="tensorboard", version=2),)
    assert reporting.points("eval/accuracy") == {}
    await reporting.commit(range(3, 6))
    await reporting.evaluate(5)
    for _ in range(2):
        (state,) = await reporting.report(trackers, 5, evaluated=5, final=True)
        assert state == TrackerState(kind="tensorboard", version=5)
    assert reporting.points("reward/mean") == {version: [version / 8] for version in range(1, 6)}
    assert reporting.points("eval/accuracy") == {0: [0.0], 5: [1.25]}


async def test_a_tracker_that_hangs_is_left_and_its_neighbours_are_not(
    reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_SECONDS", 8.0)
    await reporting.commit(range(2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        mlflow, tensorboard = await reporting.report(
            [{"kind": "mlflow"}, {"kind": "tensorboard"}], 1, evaluated=1
        )
    assert mlflow.problem == "it did not take its rows within 8 seconds"
    assert tensorboard.problem is None
    assert reporting.points("reward/mean") == {1: [0.125]}


async def test_a_server_that_is_down_is_named(reporting: Reporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_PUSH_GATEWAY", "127.0.0.1:1")
    await reporting.commit(range(2))
    (state,) = await reporting.report([{"kind": "prometheus"}], 1, evaluated=1)
    assert state.problem is not None
    assert "Connection refused" in state.problem


async def test_a_worker_that_knows_no_gateway_says_what_to_set(
    reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARLAAS_PUSH_GATEWAY", raising=False)
    await reporting.commit(range(2))
    (state,) = await reporting.report([{"kind": "prometheus"}], 1, evaluated=1)
    assert state.problem == "the worker knows no Pushgateway: set MARLAAS_PUSH_GATEWAY=host:port there"


def test_a_missing_library_is_named(reporting: Reporting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "marlaas.tracking.tensorboard_files", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with (
        pytest.raises(TrackerUnavailable, match=r"pip install 'marlaas\[tensorboard\]'"),
        open_sink(TensorBoardTracker(kind="tensorboard"), reporting.key, reporting.folder),
    ):
        pass


class _Gateway(http.server.BaseHTTPRequestHandler):
    """Keeps what was put under each path, as a Pushgateway does."""

    groups: ClassVar[dict[str, str]] = {}

    def do_PUT(self) -> None:
        self.groups[self.path] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return None


@contextmanager
def gateway() -> Generator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_a_gateway_has_the_newest_figures(
    reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway() as address:
        monkeypatch.setenv("MARLAAS_PUSH_GATEWAY", address)
        await reporting.commit(range(4))
        await reporting.evaluate(0)
        assert await reporting.report([{"kind": "prometheus"}], 2, evaluated=2) == (
            TrackerState(kind="prometheus", version=2),
        )
        await reporting.report([{"kind": "prometheus"}], 3, evaluated=3)
    (path, text), *others = _Gateway.groups.items()
    assert not others
    assert f"/tenant/{reporting.key.tenant}" in path
    assert f"/training_job/{reporting.key.job}" in path
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    parts = {sample.labels["part"]: sample.value for sample in samples if "part" in sample.labels}
    assert parts == {"right": 0.1875, "style.short": -1.0}
    figures = {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}
    assert figures["marlaas_reward_mean"] == 0.375
    assert figures["marlaas_step_version"] == 3
    assert (figures["marlaas_eval_accuracy"], figures["marlaas_evaluation_version"]) == (0.0, 0)
    assert figures["marlaas_eval_pass_at_2"] == 0.75
    assert figures["marlaas_eval_environment_accuracy sums"] == 0.25
    assert figures["marlaas_eval_environment_accuracy greedy"] == 0.125
