"""Exported adapters: PEFT loads them, and a folder appears whole or not at all."""
# PEFT and transformers are hardly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from marlaas.client import Client
from marlaas.engines.base_model import digest_of, load
from marlaas.engines.lora import initial_adapter, target_layers, tensor_names
from marlaas.job import Job
from marlaas.jobs.errors import ExportRefused, JobError, JobNotFound
from marlaas.jobs.model_card import public
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.manifest import EvaluationDocument, Fingerprint
from marlaas.schemas.names import blob_key
from marlaas.storage.object_store import MissingBlob
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import stored_job
from marlaas.tests.noop_activities import FINGERPRINT
from marlaas.tests.tiny_model import write_tiny_model
from peft import PeftModel
from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict
from safetensors.torch import load_file, save
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

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


async def committed_job(
    client: Client,
    spec: JobSpec,
    adapters: list[dict[str, torch.Tensor]],
    fingerprint: Fingerprint = FINGERPRINT,
) -> Job:
    """A job with these versions in the object store, which Temporal has never heard of."""
    return await stored_job(client.connection, spec, [save(tensors) for tensors in adapters], fingerprint)


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
    revision = await client.connection.revisions.revision(job.key, 1)
    assert revision is not None
    assert (exported.version, exported.adapter) == (1, revision.adapter.digest)
    written = json.loads((tmp_path / "out" / "marlaas.json").read_text())
    assert written["job"] == {"tenant": job.key.tenant, "job": "sums"}
    assert (written["manifest"], written["spec_digest"]) == (revision.manifest, checked.digest)
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


async def test_the_best_version_is_read_from_the_evaluations(
    marlaas: CommandLine, client: Client, spec: Spec, model: Path
) -> None:
    figures = {0: (0.25, 0.9, None), 1: (0.5, 0.5, 0.7), 2: (0.5, 0.9, 0.6), 3: (0.375, 0.25, 0.7)}

    async def job(name: str, best: str | None) -> Job:
        chosen = {} if best is None else {"evaluation": {"prompts": 2, "best": best}}
        checked = parse_job_spec(spec(model=str(model), lora=LORA, job=name, **chosen))
        adapters = [trained_adapter(model, checked, seed) for seed in range(5)]
        made = await committed_job(client, checked, adapters)
        for version, (accuracy, greedy, reward) in figures.items() if best else ():
            document = EvaluationDocument(
                key=made.key,
                version=version,
                prompts=2,
                samples=8,
                accuracy=accuracy,
                greedy_accuracy=greedy,
                reward_mean=reward,
                failed_samples=0,
                greedy_completions=(),
            )
            await client.connection.revisions.put_evaluation(document)
        return made

    for best, version in (("accuracy", 1), ("greedy_accuracy", 0), ("reward_mean", 1)):
        made = await job(best.replace("_", "-"), best)
        ended = await marlaas("export", str(made.key), best, "--version", "best")
        assert (ended.code, ended.err) == (0, "")
        assert f"version {version} of job" in ended.out
    never = await job("never", None)
    ended = await marlaas("export", str(never.key), "never", "--version", "best")
    assert (ended.code, ended.out) == (1, "")
    assert "has no version with a held-out accuracy, so none is the best: `evaluation.prompts`" in ended.err
    for wrong in ("newest", "1.5", "²"):
        ended = await marlaas("export", str(never.key), "never", "--version", wrong)
        assert ended.code == 2
        assert f"'{wrong}' is neither a number of" in " ".join(ended.err.split())
    assert not (marlaas.folder / "never").exists()


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
    assert len(list((tmp_path / "out").iterdir())) == 4


async def test_what_is_not_there_is_named_and_nothing_is_written(
    client: Client, spec: Spec, model: Path, tmp_path: Path, tenant: str
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, 0)])
    with pytest.raises(JobError, match=r"version 5 of job .* is not committed; the newest is 0"):
        await job.export(tmp_path / "out", 5)
    with pytest.raises(JobNotFound):
        await client.job(f"{tenant}/none").export(tmp_path / "out")
    revision = await client.connection.revisions.revision(job.key, 0)
    assert revision is not None
    key = blob_key(revision.adapter.digest)
    client.connection.store._minio.remove_object(job.key.bucket, key)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(MissingBlob, match=key):
        await job.export(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def on_model(model: Path) -> Fingerprint:
    return FINGERPRINT.model_copy(update={"base": digest_of(model)})


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
async def test_a_merged_model_computes_what_base_and_adapter_do(
    marlaas: CommandLine, client: Client, spec: Spec, model: Path, tmp_path: Path, tied: bool
) -> None:
    """CASES 44 and 46: the delta is there once, and the base model is left as it is."""
    if not tied:
        folder = tmp_path / "untied"
        shutil.copytree(model, folder)
        config = LlamaConfig.from_pretrained(model, tie_word_embeddings=False)
        LlamaForCausalLM(config).save_pretrained(folder)
        model = folder
    checked = parse_job_spec(spec(model=str(model), lora=LORA))
    adapters = [trained_adapter(model, checked, seed) for seed in (0, 1)]
    job = await committed_job(client, checked, adapters, on_model(model))
    before = digest_of(model)
    ended = await marlaas("export", str(job.key), "out/sums", "--merge")
    assert (ended.code, ended.err) == (0, "")
    assert "version 1" in ended.out
    assert "merged into its base model" in ended.out
    assert digest_of(model) == before

    out = marlaas.folder / "out" / "sums"
    await job.export(tmp_path / "adapter")
    tokens = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(model)
        plain = cast(torch.Tensor, base(tokens).logits)
        expected = cast(
            torch.Tensor, PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()(tokens).logits
        )
        full = AutoModelForCausalLM.from_pretrained(out)
        found = cast(torch.Tensor, full(tokens).logits)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, plain, atol=1e-2)
    assert ("lm_head.weight" in load_file(out / "model.safetensors")) is not tied
    ours, its = (AutoTokenizer.from_pretrained(str(folder)) for folder in (out, model))
    assert ours.decode([5, 6]) == its.decode([5, 6])
    assert ours.chat_template == its.chat_template
    assert json.loads((out / "marlaas.json").read_text())["merged"] is True
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]

    again = await marlaas("export", str(job.key), "out/sums", "--merge")
    assert again.code == 1
    assert "is not empty" in again.err


async def test_a_bfloat16_base_is_merged_as_it_was_trained_on(
    client: Client, spec: Spec, model: Path, tmp_path: Path
) -> None:
    checked = parse_job_spec(spec(model=str(model), lora=LORA, precision="bfloat16"))
    adapter = trained_adapter(model, checked, 1)
    job = await committed_job(client, checked, [adapter], on_model(model))
    await job.export_merged(tmp_path / "out", models=tmp_path)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    base = load_file(model / "model.safetensors")
    for name, found in weights.items():
        rounded = base[name].bfloat16().float()
        a, b = (adapter.get(one) for one in tensor_names(name.removesuffix(".weight")))
        expected = rounded if a is None or b is None else rounded + checked.lora.scale * (b @ a)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert found.dtype == torch.float32


async def test_another_base_model_is_not_merged(
    marlaas: CommandLine, client: Client, spec: Spec, model: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other", seed=1)
    checked = parse_job_spec(spec(model="/gpu/only/tiny", lora=LORA))
    job = await committed_job(client, checked, [trained_adapter(model, checked, 0)], on_model(model))
    ended = await marlaas("export", str(job.key), "out", "--merge", "--base", str(other))
    assert (ended.code, ended.out) == (1, "")
    assert "is another than the adapter was trained on" in ended.err
    assert {path.name for path in marlaas.folder.iterdir()} == {"other"}
    ended = await marlaas("export", str(job.key), "out", "--merge", "--base", str(model))
    assert ended.code == 0
    wrong = await marlaas("export", str(job.key), "out2", "--base", str(model))
    assert wrong.code == 2


@pytest.mark.parametrize("merge", [False, True], ids=["adapter", "merged"])
async def test_the_card_says_where_it_comes_from_and_nothing_of_the_worker(
    client: Client, spec: Spec, model: Path, tmp_path: Path, merge: bool
) -> None:
    environment = {"kind": "jsonl", "path": "/srv/secret-place/rows.jsonl", "reward": "rewards:exact"}
    checked = parse_job_spec(spec(model=str(model), lora=LORA, environment=environment))
    adapters = [trained_adapter(model, checked, seed) for seed in (0, 1)]
    job = await committed_job(client, checked, adapters, on_model(model))
    for version, accuracy in ((0, 0.125), (1, 0.625)):
        await client.connection.revisions.put_evaluation(
            EvaluationDocument(
                key=job.key,
                version=version,
                prompts=16,
                samples=4,
                accuracy=accuracy,
                greedy_accuracy=0.5,
                reward_mean=None,
                failed_samples=0,
                greedy_completions=(),
            )
        )
    out = tmp_path / "out"
    await (job.export_merged(out, models=tmp_path) if merge else job.export(out))
    card = (out / "README.md").read_text()
    revision = await client.connection.revisions.revision(job.key, 1)
    assert revision is not None
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "tiny"
    assert front["library_name"] == ("transformers" if merge else "peft")
    for said in (
        f"# {job.key}, version 1",
        checked.digest,
        revision.manifest,
        revision.adapter.digest,
        digest_of(model),
        "| 0 | 16 | 0.125 | 4 | 0.500 | – |",
        "| 1 | 16 | 0.625 | 4 | 0.500 | – |",
        '"path": "rows.jsonl"',
        '"learning_rate"',
        "from_pretrained",
    ):
        assert said in card
    texts = "".join(path.read_text() for path in out.iterdir() if path.suffix in (".json", ".md"))
    assert "secret-place" not in texts
    assert str(model.parent) not in texts
    assert str(tmp_path) not in texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/models/tiny/", "tiny"),
        ("~/rows.jsonl", "rows.jsonl"),
        ("../rows.jsonl", "rows.jsonl"),
        ("org/model", "org/model"),
        ("https://me:key@host:80/score?token=1", "https://host"),
        ("/no_think", "/no_think"),
        ("Use / or ~/ as you like", "Use / or ~/ as you like"),
    ],
)
def test_what_a_card_shows_of_a_text(text: str, shown: str) -> None:
    assert public(text) == shown
