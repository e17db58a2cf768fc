"""Bad inputs meet the whole system: what is said, and that nothing half-created is left."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
from marlaas.jobs.errors import JobFailed, JobNotFound
from marlaas.schemas.job_spec import InvalidJobSpec, parse_job_spec
from marlaas.schemas.names import JobKey
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from .bad_inputs import FOUND, REFUSED
from .cluster import Cluster, Workers, finished
from .conftest import Jobs


def changed(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes go into mappings, unless they are of another kind."""
    merged = dict(spec)
    for name, value in changes.items():
        old = merged.get(name)
        same = isinstance(value, dict) and isinstance(old, dict) and "kind" not in value
        merged[name] = {**cast(dict[str, Any], old), **value} if same else value
    return merged


async def nothing_is_left(cluster: Cluster, key: JobKey) -> None:
    connection = cluster.client.connection
    assert await connection.revisions.job(key) is None
    assert not await connection.store.list_keys(key.bucket, f"jobs/{key.job}/")


@pytest.mark.parametrize("name", REFUSED)
async def test_it_is_refused_at_submission(cluster: Cluster, model: Path, rows: Path, name: str) -> None:
    changes, said = REFUSED[name]
    good = Jobs(cluster, model, rows).spec(0)
    with pytest.raises(InvalidJobSpec) as caught:
        await cluster.client.submit(changed(good, changes))
    assert said in str(caught.value)
    key = parse_job_spec(good).key
    with pytest.raises(JobNotFound):
        await cluster.client.job(key).progress()
    await nothing_is_left(cluster, key)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """Models, rows and an adapter that cannot be used."""
    folder = tmp_path_factory.mktemp("bad")
    shutil.copytree(model, folder / "t5")
    (folder / "t5" / "config.json").write_text('{"model_type": "t5", "architectures": ["T5Model"]}')
    shutil.copytree(model, folder / "cut")
    weights = folder / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    lines = {
        "empty": [],
        "broken": ['{"prompt": "a"}', '{"prompt": '],
        "promptless": ['{"text": "a"}'],
        "twice": ['{"prompt": "a", "id": 1}', '{"prompt": "b", "id": 1}'],
        "long": ['{"prompt": "a"}', json.dumps({"prompt": "word " * 500})],
    }
    for name, rows in lines.items():
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    base: Any = AutoModelForCausalLM.from_pretrained(model)  # pyright: ignore[reportUnknownMemberType]
    config = LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    get_peft_model(base, config).save_pretrained(str(folder / "adapter"))
    return folder


def placed(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: placed(inner, folder) for name, inner in cast(dict[str, Any], value).items()}
    return value.replace("{folder}", str(folder)) if isinstance(value, str) else value


@pytest.mark.parametrize("name", FOUND)
async def test_it_fails_the_job_and_leaves_its_name(
    cluster: Cluster, workers: Workers, model: Path, rows: Path, folder: Path, name: str
) -> None:
    changes, said = placed(FOUND[name][0], folder), placed(FOUND[name][1], folder)
    good = Jobs(cluster, model, rows).spec(0)
    job = await cluster.client.submit(changed(good, changes))
    with pytest.raises(JobFailed) as caught:
        await job.result()
    assert said in str(caught.value)
    await nothing_is_left(cluster, job.key)


async def test_the_name_of_a_job_that_failed_so_can_be_used(
    cluster: Cluster, workers: Workers, model: Path, rows: Path
) -> None:
    good = {**Jobs(cluster, model, rows).spec(0), "steps": 1}
    job = await cluster.client.submit(changed(good, {"lora": {"targets": ["w_proj"]}}))
    with pytest.raises(JobFailed):
        await job.result()
    await finished(await cluster.client.submit(good))


async def test_equal_rewards_are_steps_without_signal(
    cluster: Cluster, workers: Workers, model: Path, rows: Path
) -> None:
    good = {**Jobs(cluster, model, rows).spec(0), "steps": 2}
    job = await cluster.client.submit(changed(good, {"environment": {"reward": "rewards:constant"}}))
    await finished(job)
    metrics = await job.metrics()
    assert [one.skipped for one in metrics.values()] == [True, True]
    assert len(set(await cluster.digests(job.key))) == 1


async def test_rewards_that_misbehave_fail_their_samples_and_the_job_goes_on(
    cluster: Cluster, workers: Workers, model: Path, tmp_path: Path
) -> None:
    """One row each of which raises, returns NaN, text or infinity, ends its process, or allocates 50 GB."""
    faults = ["raise", "nan", "text", "infinity", "exit", "allocate", "none", "none"]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"Say {n}.", "fault": f}) for n, f in enumerate(faults)))
    spec = Jobs(cluster, model, path).spec(0)
    changes = {
        "steps": 1,
        "environment": {"reward": "rewards:misbehaves"},
        "sampling": {"groups_per_step": len(faults), "samples_per_group": 2},
        "rewards": {"max_failed_share": 1.0, "attempts": 1},
    }
    job = await cluster.client.submit(changed(spec, changes))
    await finished(job)
    (metrics,) = (await job.metrics()).values()
    assert metrics.failed_samples == 12
