"""Merges an adapter into a copy of its base model in a child process, which alone loads torch."""

import os
from pathlib import Path
from typing import Any

from ..schemas.engine_calls import MergeCall
from .child_process import ChildProcess
from .child_runtime import Channel, serve
from .engine_processes import engine_environment


async def merge_in_child(call: MergeCall, models: Path) -> None:
    """Writes the merged model, on the CPU.

    Args:
        models: folder in which base models are kept.

    Raises:
        ChildError: when the base model can't be had or is another, or the adapter does not fit it.
        ChildDied: when the process was lost.
    """
    process = ChildProcess.start(
        f"{__name__}:run", env=engine_environment(os.cpu_count() or 1, models, "cpu")
    )
    try:
        await process.call("merge", call)
    finally:
        await process.close()


def run(channel: Channel) -> None:
    """Serves `merge`, whose payload is a `MergeCall`."""
    serve(channel, {"merge": _merge})


def _merge(payload: Any) -> None:
    from ..engines.base_model import UnusableModel
    from ..engines.merging import write_merged
    from ..engines.resident_models import ResidentModel

    call = MergeCall.model_validate(payload, strict=False)
    base = ResidentModel.from_environment(os.environ).get(call.model, call.precision, None)
    if base.digest != call.base:
        raise UnusableModel(
            f"model {call.model} here is another than the adapter was trained on: its digest is "
            f"{base.digest}, not {call.base}. Name the right folder with --base"
        )
    write_merged(base, Path(call.adapter_path), call.lora, Path(call.out))
