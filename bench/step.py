"""Where a step's time goes, and how much of it is orchestration.

    python bench/step.py [--steps N] [--config FILE]

Runs the first steps of the demo's job on a stack of its own, and compares each step's cycle (from one
commit to the next) with the computation that no system could leave out: sampling, scoring, training.
Ends with one RESULT line; exits with 1 when orchestration takes 5 % or more.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import uuid
from pathlib import Path

from marlaas.client import connect
from marlaas.jobs.job_file import read_job_file
from marlaas.schemas.events import StepResult
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.terminal.stack import worker_commands
from marlaas.workers.settings import Settings
from marlaas.workers.supervisor import Supervisor
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
BOUND = 0.05
WARM_UP = 1
"""Steps that are left out: the first loads the base model and compiles nothing, but touches all memory."""


def demo_spec(path: Path, steps: int) -> JobSpec:
    data = read_job_file(path)
    data |= {"job": f"bench-{uuid.uuid4().hex[:8]}", "steps": steps, "evaluation": {"prompts": 0}}
    return parse_job_spec(data)


async def measure(spec: JobSpec, models: Path) -> tuple[list[StepResult], list[float]]:
    """The steps' own figures, and the seconds from each commit to the next."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(models, Path(folder, "models"))  # the base model is dequantised once, not for every run
        supervisor = Supervisor(Settings(data=Path(folder)), worker_commands())
        async with supervisor.running() as addresses, await connect(addresses) as client:
            job = await client.submit(spec)
            await job.result()
            results = await job.step_results(range(spec.steps))
            ends = [
                (
                    await client.connection.temporal.get_workflow_handle(spec.key.step_id(step)).describe()
                ).close_time
                for step in range(spec.steps)
            ]
    times = [end.timestamp() for end in ends if end is not None]
    cycles = [later - earlier for earlier, later in itertools.pairwise(times)]
    return [results[step] for step in range(spec.steps)], cycles


def report(results: list[StepResult], cycles: list[float]) -> float:
    """Prints the table; returns orchestration's share of the cycles."""
    measured = results[WARM_UP:]
    count = len(measured)
    cycle = sum(cycles) / count
    sampling, scoring, training = (
        sum(getattr(result.seconds, name) for result in measured) / count
        for name in ("sampling", "scoring", "training")
    )
    table = Table(title=f"seconds a step, mean of {count}")
    for column in ("phase", "seconds", "of which computation"):
        table.add_column(column, justify="left" if column == "phase" else "right")
    compute = {"rollout": sampling, "reward": scoring, "train": training}
    for phase in ("rollout", "reward", "turn", "select", "train", "snapshot"):
        seconds = sum(getattr(result.seconds, phase) for result in measured) / count
        table.add_row(phase, f"{seconds:.3f}", f"{compute[phase]:.3f}" if phase in compute else "")
    table.add_row("whole cycle", f"{cycle:.3f}", f"{sampling + scoring + training:.3f}")
    Console().print(table)
    share = 1 - (sampling + scoring + training) / cycle
    phases = f"sampling_s={sampling:.3f} scoring_s={scoring:.3f} training_s={training:.3f}"
    print(f"RESULT cycle_s={cycle:.3f} {phases} orchestration_share={share:.4f} bound={BOUND}")  # noqa: T201
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--config", type=Path, default=ROOT / "examples" / "sums.yaml")
    parser.add_argument("--models", type=Path, default=ROOT / ".marlaas" / "models")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    spec = demo_spec(arguments.config, arguments.steps)
    results, cycles = asyncio.run(measure(spec, arguments.models))
    sys.exit(report(results, cycles) >= BOUND)


if __name__ == "__main__":
    main()
