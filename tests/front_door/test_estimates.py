"""Estimates of what a job needs, against the engines themselves; and `marlaas validate`."""
# PEFT and transformers are hardly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from marlaas.client import Client
from marlaas.engines.base_model import load
from marlaas.engines.batched_decoder import BatchedDecoder
from marlaas.engines.packing import attention_mask
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer, _make_slot
from marlaas.jobs.estimates import estimate_memory, step_time, step_tokens
from marlaas.jobs.model_shape import UnknownShape, find_model, read_shape
from marlaas.schemas.job_spec import JobSpec, parse_job_spec
from marlaas.schemas.metric_row import MetricRow
from marlaas.tests.front_door.command_line import CommandLine
from marlaas.tests.front_door.stubs import stored_job
from marlaas.tests.tiny_model import write_tiny_model
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

Spec = Callable[..., dict[str, Any]]
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def make_spec(model: Path, **changes: Any) -> JobSpec:
    return parse_job_spec(
        {
            "tenant": "acme",
            "job": "sums",
            "model": str(model),
            "steps": 10,
            "environment": {"kind": "reasoning-gym", "task": "chain_sum"},
            "sampling": {
                "groups_per_step": 4,
                "samples_per_group": 4,
                "max_prompt_tokens": 40,
                "max_tokens": 20,
                "slots": 16,
            },
            **changes,
        }
    )


@pytest.mark.parametrize("targets", [ALL, ("q_proj",), ("v_proj", "down_proj")], ids=str)
@pytest.mark.parametrize("rank", [1, 6])
def test_the_adapter_has_as_many_parameters_as_pefts(
    model: Path, targets: tuple[str, ...], rank: int
) -> None:
    spec = make_spec(model, lora={"rank": rank, "targets": list(targets)})
    found = estimate_memory(spec, read_shape(model))
    peft = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model), LoraConfig(r=rank, target_modules=list(targets))
    )
    trainable, every = peft.get_nb_trainable_parameters()
    assert found.adapter_parameters == trainable
    assert found.base_bytes == 4 * (every - trainable)


def test_state_is_as_large_as_the_trainer_writes_it(model: Path, tmp_path: Path) -> None:
    spec = make_spec(model, lora={"rank": 3})
    Trainer(load(model)).initialise(spec.lora, 0, tmp_path)
    found = estimate_memory(spec, read_shape(model))
    assert found.adapter_bytes == sum(one.nbytes for one in load_file(tmp_path / ADAPTER_FILE).values())
    moments = {k: v for k, v in load_file(tmp_path / OPTIMIZER_FILE).items() if "." in k}
    assert found.optimizer_bytes == sum(one.nbytes for one in moments.values())
    assert found.stored_bytes == 11 * (found.adapter_bytes + found.optimizer_bytes) + 10 * (
        9 * 4 * 4 * 60 + 34 * 16
    )


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_cache_is_as_large_as_the_samplers(model: Path, precision: str, dtype: torch.dtype) -> None:
    spec = make_spec(model, precision=precision)
    decoder = BatchedDecoder(load(model, dtype=dtype), spec.sampling.slots, spec.sampling.context)
    real = sum(part.nbytes for layer in decoder.cache._states for part in layer)
    assert estimate_memory(spec, read_shape(model)).kv_cache_bytes == real


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_what_a_forward_pass_keeps_is_nearly_what_is_estimated(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    """Counted where autograd saves tensors, in a model whose blocks are most of it."""
    write_tiny_model(tmp_path)
    config = LlamaConfig.from_pretrained(
        tmp_path, hidden_size=192, intermediate_size=512, num_hidden_layers=6, head_dim=48
    )
    base = LlamaForCausalLM(config)
    base.save_pretrained(tmp_path)
    base.requires_grad_(False)
    spec = make_spec(tmp_path, precision=precision, lora={"rank": 8}, optimizer={"micro_batch_tokens": 60})
    slot = _make_slot(cast(Any, base).to(dtype), spec.lora, False)
    weights = {one.untyped_storage().data_ptr() for one in slot.model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            kept[place] = tensor  # alive, so that no other gets its place
        return tensor

    body: Any = slot.model.base_model
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        body(
            input_ids=torch.zeros(1, 60, dtype=torch.long),
            position_ids=torch.arange(60)[None],
            attention_mask=attention_mask(torch.zeros(1, 60, dtype=torch.int32)),
            use_cache=False,
        )
    counted = sum(one.untyped_storage().nbytes() for one in kept.values())
    estimated = estimate_memory(spec, read_shape(tmp_path)).activation_bytes
    assert 0.97 < estimated / counted < 1.03


def test_what_options_do_to_the_estimates(model: Path) -> None:
    shape = read_shape(model)
    plain = estimate_memory(make_spec(model), shape)
    assert plain.training_bytes > plain.base_bytes + 4 * plain.adapter_bytes + plain.activation_bytes
    assert plain.sampler_bytes == plain.base_bytes + plain.kv_cache_bytes + plain.adapter_bytes
    checkpointed = estimate_memory(make_spec(model, optimizer={"gradient_checkpointing": True}), shape)
    assert checkpointed.activation_bytes < plain.activation_bytes
    small = estimate_memory(make_spec(model, optimizer={"micro_batch_tokens": 100}), shape)
    assert small.activation_bytes < plain.activation_bytes


def test_tokens_of_a_step_count_every_refill(model: Path) -> None:
    tokens = step_tokens(make_spec(model))
    assert (tokens.sequences, tokens.completion, tokens.total) == (16, 320, 960)
    refilled = step_tokens(make_spec(model, objective={"name": "grpo", "refill_limit": 0.3}))
    assert refilled.sequences == (4 + 2) * 4


def test_a_model_is_found_where_workers_keep_it(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "tiny-instruct")
    hub = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(model, hub / "snapshots" / "abc")
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("abc")
    assert find_model(str(model), tmp_path) == model
    assert find_model("tiny-instruct", tmp_path) == tmp_path / "tiny-instruct"
    assert find_model("org/tiny", tmp_path) == hub / "snapshots" / "abc"
    with pytest.raises(UnknownShape, match="org/other is not on this machine"):
        find_model("org/other", tmp_path)


def test_shapes_that_cannot_be_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownShape, match="no layer named c_attn"):
        estimate_memory(make_spec(model, lora={"targets": ["q_proj", "c_attn"]}), read_shape(model))
    broken = shutil.copytree(model, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(UnknownShape, match="broken"):
        read_shape(broken)
    (broken / "model.safetensors").unlink()
    with pytest.raises(UnknownShape, match="has no"):
        read_shape(broken)
    (broken / "config.json").write_text('{"num_attention_heads": 4}')
    shutil.copy(model / "model.safetensors", broken)
    with pytest.raises(UnknownShape, match="has no 'hidden_size'"):
        read_shape(broken)


def row(spec: JobSpec, version: int, time: float | None) -> MetricRow:
    return MetricRow(key=spec.key, version=version, kind="step", time=time, figures={})


def test_time_is_the_median_of_the_other_jobs_steps(model: Path) -> None:
    spec = make_spec(model)
    other = make_spec(model, steps=5, job="before", optimizer={"learning_rate": 1.0})
    rows = [row(other, version, time) for version, time in enumerate([100.0, 103.0, 105.0, 900.0], 1)]
    found = step_time(spec, other, rows)
    assert found is not None
    assert (found.seconds, found.total_seconds, found.steps) == (3.0, 30.0, 3)
    assert found.differing == ("optimizer.learning_rate: 1.0, not 0.0001",)
    assert step_time(spec, other, rows[:1]) is None
    assert step_time(spec, other, [row(other, 1, None), row(other, 2, None)]) is None


def written(folder: Path, content: dict[str, Any]) -> str:
    (folder / "job.json").write_text(json.dumps(content))
    return "job.json"


async def test_validate_explains_without_a_server(spec: Spec, model: Path, tmp_path: Path) -> None:
    marlaas = CommandLine(tmp_path, {"MARLAAS_DATA": str(tmp_path / "none")})
    file = written(tmp_path, spec(model=str(model), objective={"name": "gspo"}))
    plain = await marlaas("validate", file)
    assert (plain.code, plain.err) == (0, "")
    assert plain.out.startswith("job.json is valid: job ")
    explained = await marlaas("validate", file, "--explain")
    assert explained.code == 0
    for shown in ("clip_high: 0.0004", "ratio: sequence", "precision: float32", "sampler's KV cache"):
        assert shown in explained.out
    assert "Time: unknown: name a job" in explained.out
    found = json.loads((await marlaas("validate", file, "--json")).out)
    checked = parse_job_spec(spec(model=str(model), objective={"name": "gspo"}))
    assert parse_job_spec(found["spec"]) == checked
    assert found["estimate"]["memory"] == estimate_memory(checked, read_shape(model)).model_dump()
    assert found["estimate"]["time"] is None


async def test_validate_says_what_it_cannot_know_and_what_is_wrong(spec: Spec, tmp_path: Path) -> None:
    marlaas = CommandLine(tmp_path, {"MARLAAS_DATA": str(tmp_path / "none")})
    explained = await marlaas("validate", written(tmp_path, spec(model="org/none")), "--explain")
    assert explained.code == 0
    assert "Memory and storage: unknown: model org/none is not on this machine" in explained.out
    assert "at most 16 samples" in explained.out
    wrong = await marlaas("validate", written(tmp_path, spec(steps=0)))
    assert (wrong.code, wrong.out) == (2, "")
    assert "job.json: the job spec is not valid" in wrong.err
    assert "steps is 0" in wrong.err


async def test_time_like_that_of_a_job_in_the_store(
    marlaas: CommandLine, client: Client, spec: Spec, tenant: str
) -> None:
    checked = parse_job_spec(spec(job="before"))
    await stored_job(client.connection, checked, [b"state"] * 4, times=[0.0, 10.0, 14.0, 18.0])
    file = written(marlaas.folder, spec(steps=200))
    explained = await marlaas("validate", file, "--explain", "--like", f"{tenant}/before")
    assert (explained.code, explained.err) == (0, "")
    assert f"Time: 4 s a step, 13 min 20 s in all, if steps take as long as those of {tenant}/before" in (
        " ".join(explained.out.split())
    )
    unknown = await marlaas("validate", file, "--like", f"{tenant}/none")
    assert (unknown.code, unknown.out) == (1, "")
    assert "the object store has no version" in unknown.err
