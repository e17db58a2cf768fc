"""The one description of how this system speaks Temporal, for clients, workers and replayers alike."""

import dataclasses

from temporalio.plugin import SimplePlugin
from temporalio.worker import WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from ..activities.liveness import LivenessInterceptor
from .converter import DATA_CONVERTER
from .evaluate import Evaluate
from .train_job import TrainJob
from .train_step import TrainStep

WORKFLOWS = (TrainJob, TrainStep, Evaluate)
"""Every workflow type, for workers of the `marlaas` task queue and for replay."""


def temporal_plugin() -> SimplePlugin:
    """Converter, interceptors and sandbox.

    The sandbox passes through pydantic, which is slow and leaks when it is imported again for each
    run, and our pure modules.
    """
    return SimplePlugin(
        "marlaas",
        data_converter=DATA_CONVERTER,
        interceptors=[LivenessInterceptor()],
        workflow_runner=_workflow_runner,
    )


def _workflow_runner(runner: WorkflowRunner | None) -> WorkflowRunner:
    if not isinstance(runner, SandboxedWorkflowRunner):
        raise TypeError("workflows run in the sandbox")
    restrictions = runner.restrictions.with_passthrough_modules("pydantic", "pydantic_core", "marlaas")
    return dataclasses.replace(runner, restrictions=restrictions)
