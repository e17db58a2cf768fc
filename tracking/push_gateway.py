"""Prometheus: the newest figures of a job, on a Pushgateway."""
# The library is partly typed.
# pyright: reportUnknownVariableType=false

import os
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Gauge, push_to_gateway

from ..schemas.metric_row import EVALUATION_FIGURES, REWARD_PART, STEP_FIGURES, MetricRow, documented_name
from ..schemas.names import JobKey
from ..schemas.tracker_calls import Position
from .sink import TrackerUnavailable

ADDRESS = "MARLAAS_PUSH_GATEWAY"
_SECONDS = 10
_MEANINGS = {**STEP_FIGURES, **EVALUATION_FIGURES}


class PushGateway:
    """The group of the job on the gateway, which every push replaces whole: nothing can double."""

    def __init__(self, key: JobKey) -> None:
        address = os.environ.get(ADDRESS)
        if not address:
            raise TrackerUnavailable(f"the worker knows no Pushgateway: set {ADDRESS}=host:port there")
        self._address = address
        self._key = key

    def position(self) -> Position:
        return Position(newest_only=True)

    def append(self, rows: Sequence[MetricRow], *, final: bool) -> None:
        registry = CollectorRegistry()
        parts = Gauge("marlaas_reward_part", "mean, before weighting", ["part"], registry=registry)
        for row in rows:
            Gauge(f"marlaas_{row.kind}_version", "of the row", registry=registry).set(row.version)
            by_environment: dict[str, Gauge] = {}
            for figure, value in row.figures.items():
                if figure.startswith(REWARD_PART):
                    parts.labels(figure.removeprefix(REWARD_PART)).set(value)
                    continue
                documented = documented_name(figure)
                if (name := documented.replace("<environment>", "environment")) == documented:
                    Gauge(_name(figure), _MEANINGS[documented], registry=registry).set(value)
                    continue
                if name not in by_environment:
                    meaning = _MEANINGS[documented]
                    by_environment[name] = Gauge(_name(name), meaning, ["environment"], registry=registry)
                by_environment[name].labels(figure.split("/")[1]).set(value)
        group = {"tenant": self._key.tenant, "training_job": self._key.job}
        push_to_gateway(self._address, "marlaas", registry, group, timeout=_SECONDS)


def _name(figure: str) -> str:
    return f"marlaas_{figure.replace('/', '_').replace('@', '_at_')}"
