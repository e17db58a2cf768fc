"""Builds a job's dataset in a child process: a task's generator can hang, or eat the machine's memory."""

import resource
from typing import Any

from ..environments.datasets import build_dataset
from ..environments.invalid import InvalidEnvironment
from ..schemas.dataset import Dataset
from ..schemas.job_spec import JobSpec
from .child_process import ChildError, ChildProcess
from .child_runtime import Channel, serve
from .child_variables import tenant_variables

_MEMORY_MB = 8192


async def build_dataset_in_child(spec: JobSpec) -> Dataset:
    """`build_dataset` in a process of its own, which a cancellation ends.

    Raises:
        InvalidEnvironment: as `build_dataset` does, and when the dataset is too big for one.
        ChildDied: when the process was lost.
        ChildError: when building failed for a reason that may pass.
    """
    process = ChildProcess.start(f"{__name__}:run", env=tenant_variables())
    try:
        return Dataset.model_validate_json(await process.call("build", {"spec": spec.model_dump_json()}))
    except ChildError as fault:
        match fault.type:
            case InvalidEnvironment.__name__:
                raise InvalidEnvironment.parse(fault.message) from fault
            case "MemoryError" | "FrameTooLong":
                problem = f"the dataset is too big: {fault} (at most {_MEMORY_MB} MB are used to build it)"
                raise InvalidEnvironment("environment", problem) from fault
            case _:
                raise
    finally:
        process.kill()


def run(channel: Channel) -> None:
    """Serves `build`: of a spec as JSON text, the dataset as JSON text."""
    limit = _MEMORY_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(channel, {"build": _build})


def _build(payload: Any) -> str:
    return build_dataset(JobSpec.model_validate_json(payload["spec"])).model_dump_json()
