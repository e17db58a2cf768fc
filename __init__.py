"""MARLaaS: multi-tenant asynchronous RL post-training of LLMs as durable workflows."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Client, connect
    from .job import Job
    from .jobs.snapshot import JobSnapshot
    from .schemas.job_spec import InvalidJobSpec, JobSpec
    from .workers.settings import load_settings

__all__ = ["Client", "InvalidJobSpec", "Job", "JobSnapshot", "JobSpec", "connect", "load_settings"]

_HOMES = {
    "Client": ".client",
    "InvalidJobSpec": ".schemas.job_spec",
    "Job": ".job",
    "JobSnapshot": ".jobs.snapshot",
    "JobSpec": ".schemas.job_spec",
    "connect": ".client",
    "load_settings": ".workers.settings",
}


def __getattr__(name: str) -> Any:
    """Loads a name of the SDK when it is first asked for; importing the package loads nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'marlaas' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)
