"""Experiment trackers that a job may report to.

A tenant names no address, path or key here: those are the worker's, in its environment.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .contract import Contract

_Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_. -]{0,127}$")]


class TensorBoardTracker(Contract):
    """TensorBoard's event files, in the worker's data folder."""

    kind: Literal["tensorboard"]
    """Says which tracker this is."""


class WandbTracker(Contract):
    """Weights & Biases; `WANDB_API_KEY` and `WANDB_BASE_URL` are of the workers' environment."""

    kind: Literal["wandb"]
    """Says which tracker this is."""
    project: _Name
    """Made when there is none of this name."""
    entity: _Name | None = None
    """A team or user; None is the key's own."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes folders for `wandb sync` into the worker's data folder."""


class MlflowTracker(Contract):
    """MLflow; the server is `MLFLOW_TRACKING_URI` of the workers' environment.

    Without one it is an SQLite file in the worker's data folder.
    """

    kind: Literal["mlflow"]
    """Says which tracker this is."""
    experiment: _Name = "marlaas"
    """The tenant's name and a slash are put before it."""


class PrometheusTracker(Contract):
    """The newest figures, pushed to the Pushgateway that `MARLAAS_PUSH_GATEWAY` names to the workers."""

    kind: Literal["prometheus"]
    """Says which tracker this is."""


Tracker = Annotated[
    TensorBoardTracker | WandbTracker | MlflowTracker | PrometheusTracker, Field(discriminator="kind")
]
