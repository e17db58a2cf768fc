"""Workflows under the names of the real ones, whose code is broken."""

from typing import Any

from marlaas.schemas.events import StepInput, StepResult
from temporalio import workflow


@workflow.defn(name="TrainJob")
class BrokenJob:
    @workflow.run
    async def run(self, spec: Any, state: Any = None) -> None:
        raise RuntimeError("no attribute [frobnicate]")


@workflow.defn(name="TrainStep")
class BrokenStep:
    @workflow.run
    async def run(self, data: StepInput) -> StepResult:
        raise RuntimeError("the step's code is broken")
