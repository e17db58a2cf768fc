"""Exported adapters: PEFT loads them, and a folder appears whole or not at all."""
# PEFT and transformers are hardly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from marlaas.client import Client, Job
from marlaas.engines.base_model import load
from marlaas.engines.lora import initial_adapter, target_layers, tensor_names
from marlaas.jobs.errors import ExportRefused, JobError, JobNotFound
from marlaas.schemas.events import Candidate
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.names import blob_key
from marlaas.storage.object_store import MissingBlob
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import manifest_of
from marlaas.tests.noop_activities import FINGERPRINT, METRICS
from marlaas.tests.tiny_model import write_tiny_model
from peft import PeftModel
from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict
from safetensors.torch import save
from transformers import AutoModelForCausalLM

Spec = Callable[..., dict[str, Any]]
LORA = {"rank": 4, "alpha": 12.0, "targets": ["q_proj", "down_proj"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def trained_adapter(model: Path, spec: JobSpec, seed: int) -> dict[str, torch.Tensor]:
    """An adapter in the trainer's form, with every tensor away from zero."""
    layers = target_layers(load(model).model, spec.lora)
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in initial_adapter(layers, spec.lora, seed).items()
    }


async def committed_job(client: Client, spec: JobSpec, adapters: list[dict[str, torch.Tensor]]) -> Job:
    """A job with these versions in the object store, which Temporal has never heard of."""
    await client.store.ensure_bucket(spec.key.bucket)
    parent = None
    for version, tensors in enumerate(adapters):
        blob = await client.store.put_blob(spec.key.bucket, save(tensors))
        candidate = Candidate(
            version=version,
            parent=parent,
            adapter=blob,
            optimizer=blob,
            batch=blob if version else None,
            metrics=METRICS if version else None,
            fingerprint=FINGERPRINT,
        )
        revision, _ = await client.revisions.commit(manifest_of(spec, candidate))
        parent = revision.manifest
    return client.job(spec.key)


async def test_peft_loads_what_was_exported(
    marlaas: CommandLine, client: Client, spec: Spec, model: Path
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    adapters = [trained_adapter(model, checked, seed) for seed in (0, 1, 2)]
    job = await committed_job(client, checked, adapters)
    out = marlaas.folder / "adapters" / "sums"
    ended = await marlaas("export", str(job.key), "adapters/sums")
    assert (ended.code, ended.err) == (0, "")
    assert "version 2" in ended.out

    base = AutoModelForCausalLM.from_pretrained(model)
    loaded = PeftModel.from_pretrained(base, str(out))
    keys = set_peft_model_state_dict(loaded, load_peft_weights(str(out)))
    assert not keys.unexpected_keys
    assert not [key for key in keys.missing_keys if "lora" in key]
    assert sum("lora_" in name for name, _ in loaded.named_parameters()) == len(adapters[2]) == 8

    tokens = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        found = cast(torch.Tensor, loaded.eval()(tokens).logits)
        expected = cast(torch.Tensor, merged(model, checked, adapters[2])(tokens).logits)
        plain = cast(torch.Tensor, AutoModelForCausalLM.from_pretrained(model)(tokens).logits)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-2)


def merged(model: Path, spec: JobSpec, adapter: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The base model with (alpha / rank) · B · A added to its weights."""
    base = cast(torch.nn.Module, AutoModelForCausalLM.from_pretrained(model))
    for layer, linear in target_layers(base, spec.lora).items():
        a, b = (adapter[name] for name in tensor_names(layer))
        linear.weight.data += spec.lora.scale * b @ a
    return base


async def test_a_version_is_exported_with_where_it_comes_from(
    client: Client, spec: Spec, model: Path, tmp_path: Path
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, seed) for seed in (0, 1, 2)])
    exported = await job.export(tmp_path / "out", 1)
    revision = await client.revisions.revision(job.key, 1)
    assert revision is not None
    assert (exported.version, exported.adapter) == (1, revision.adapter.digest)
    written = json.loads((tmp_path / "out" / "marlaas.json").read_text())
    assert written["job"] == {"tenant": job.key.tenant, "job": "sums"}
    assert (written["manifest"], written["spec_digest"]) == (revision.manifest, checked.digest)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


async def test_a_folder_with_other_content_is_left_alone(
    marlaas: CommandLine, client: Client, spec: Spec, model: Path, tmp_path: Path
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, seed) for seed in (0, 1)])
    out = tmp_path / "out"
    out.mkdir()
    await job.export(out, 0)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    await job.export(out, 0)  # the same again
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(ExportRefused, match="is not empty and does not hold this export"):
        await job.export(out, 1)
    ended = await marlaas("export", str(job.key), str(out), "--version", "1")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {out} is not empty")
    (out / "extra").touch()
    with pytest.raises(ExportRefused):
        await job.export(out, 0)
    (tmp_path / "file").touch()
    with pytest.raises(ExportRefused, match="is a file"):
        await job.export(tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "file"}


async def test_two_exports_at_once_leave_one_whole_folder(
    client: Client, spec: Spec, model: Path, tmp_path: Path
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, 0)])
    await asyncio.gather(*(job.export(tmp_path / "out") for _ in range(4)))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    assert len(list((tmp_path / "out").iterdir())) == 3


async def test_what_is_not_there_is_named_and_nothing_is_written(
    client: Client, spec: Spec, model: Path, tmp_path: Path, tenant: str
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, 0)])
    with pytest.raises(JobError, match=r"version 5 of job .* is not committed; the newest is 0"):
        await job.export(tmp_path / "out", 5)
    with pytest.raises(JobNotFound):
        await client.job(f"{tenant}/none").export(tmp_path / "out")
    revision = await client.revisions.revision(job.key, 0)
    assert revision is not None
    key = blob_key(revision.adapter.digest)
    client.store._minio.remove_object(job.key.bucket, key)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(MissingBlob, match=key):
        await job.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())
