"""Datasets are built in a process of their own."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from marlaas.environments.datasets import build_dataset
from marlaas.environments.invalid import InvalidEnvironment
from marlaas.schemas.environment import Environment, JsonlEnvironment, ReasoningGymEnvironment
from marlaas.schemas.job_spec import EvaluationSpec, JobSpec, SamplingSpec
from marlaas.workers.child_process import ChildError
from marlaas.workers.dataset_child import build_dataset_in_child


def spec(environment: Environment, **fields: Any) -> JobSpec:
    sampling = SamplingSpec(groups_per_step=1, samples_per_group=2)
    return JobSpec(
        tenant="a", job="b", model="tiny", steps=1, environment=environment, sampling=sampling, **fields
    )


def rows(folder: Path, count: int) -> JsonlEnvironment:
    lines = (f'{{"messages": [{{"role": "user", "content": "{index}?"}}]}}\n' for index in range(count))
    (folder / "rows.jsonl").write_text("".join(lines))
    return JsonlEnvironment(kind="jsonl", path=str(folder / "rows.jsonl"), reward="rewards:reward")


async def test_the_dataset_is_the_same_as_in_process(tmp_path: Path) -> None:
    wanted = spec(rows(tmp_path, 200), evaluation=EvaluationSpec(prompts=20))
    assert await build_dataset_in_child(wanted) == build_dataset(wanted)


async def test_a_dataset_too_big_for_one_message_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from marlaas.workers import child_runtime\nchild_runtime.MAX_FRAME = 10_000\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with pytest.raises(InvalidEnvironment, match="the dataset is too big: FrameTooLong"):
        await build_dataset_in_child(spec(rows(tmp_path, 200)))


async def test_a_wrong_environment_crosses_as_itself(tmp_path: Path) -> None:
    with pytest.raises(InvalidEnvironment, match="did you mean") as caught:
        await build_dataset_in_child(spec(ReasoningGymEnvironment(kind="reasoning-gym", task="chain_sun")))
    assert caught.value.path == "environment.task"
    (tmp_path / "rows.jsonl").write_text('\n{"messages": []}\n')
    bad = JsonlEnvironment(kind="jsonl", path=str(tmp_path / "rows.jsonl"), reward="rewards:reward")
    with pytest.raises(InvalidEnvironment, match="line 2: messages is an empty list"):
        await build_dataset_in_child(spec(bad))


async def test_a_dataset_too_big_for_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from marlaas.workers import dataset_child\ndataset_child._MEMORY_MB = 1600\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    wanted = spec(rows(tmp_path, 1))
    os.truncate(tmp_path / "rows.jsonl", 2**30)  # takes no room on the disk
    with pytest.raises(InvalidEnvironment, match="the dataset is too big: MemoryError"):
        await build_dataset_in_child(wanted)
    os.truncate(tmp_path / "rows.jsonl", 2**30 + 1)
    with pytest.raises(InvalidEnvironment, match="has 1,073,741,825 bytes; at most 1,073,741,824 are read"):
        await build_dataset_in_child(wanted)


async def test_a_disk_fault_may_pass() -> None:
    path = JsonlEnvironment(kind="jsonl", path="/proc/self/mem", reward="rewards:reward")
    with pytest.raises(ChildError, match="OSError"):
        await build_dataset_in_child(spec(path))


async def test_a_cancellation_ends_the_process() -> None:
    endless = ReasoningGymEnvironment(kind="reasoning-gym", task="chain_sum", pool=1_000_000)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await build_dataset_in_child(spec(endless))
