"""Jobs that start from an adapter that is there already: what they go on with, and what is refused."""
# PEFT and transformers are hardly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from marlaas.engines.base_model import BaseModel, UnusableModel
from marlaas.engines.starting_adapter import read_peft_folder, starting_adapter
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer
from marlaas.schemas.engine_calls import InitialiseCall
from marlaas.schemas.job_spec import JobSpec, LoraSpec
from marlaas.tests.engines.trainer_bench import Bench, batch_number, digest
from marlaas.tests.engines.training_batches import make_spec
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

LORA = LoraSpec(rank=4, alpha=12.0, targets=("q_proj", "down_proj"))
TOKENS = torch.arange(3, 43).reshape(2, 20)


def peft_folder(tiny: BaseModel, folder: Path, **options: Any) -> Path:
    """An adapter as PEFT itself writes it, with every tensor away from zero."""
    given: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"]}
    given |= {"task_type": "CAUSAL_LM", **options}
    config = LoraConfig(**given)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny.folder), config)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.save_pretrained(str(folder))
    return folder


def logits(tiny: BaseModel, folder: Path) -> torch.Tensor:
    base = AutoModelForCausalLM.from_pretrained(tiny.folder)
    with torch.no_grad():
        return cast(torch.Tensor, PeftModel.from_pretrained(base, str(folder)).eval()(TOKENS).logits)


def test_version_0_is_the_adapter_that_peft_wrote(tiny: BaseModel, tmp_path: Path) -> None:
    """CASES 17: one adapter, as it was, with moments of 0; and it can be trained on."""
    folder = peft_folder(tiny, tmp_path / "peft")
    spec = make_spec(
        lora=LORA.model_dump(), start={"adapter": str(folder)}, optimizer={"learning_rate": 0.01}
    )
    bench = Bench(Trainer(tiny), tmp_path)
    out = bench.fresh()
    bench.trainer.initialise(spec.lora, spec.seed, out, starting_adapter(call(spec), tiny))
    ours, its = load_file(out / ADAPTER_FILE), load_file(folder / "adapter_model.safetensors")
    assert ours.keys() == its.keys()
    assert all(torch.equal(ours[name], its[name]) for name in its)
    moments = [one for name, one in load_file(out / OPTIMIZER_FILE).items() if "." in name]
    assert len(moments) == 2 * len(its)
    assert not any(one.any() for one in moments)

    again = tmp_path / "again"
    again.mkdir()
    (again / "adapter_config.json").write_text((folder / "adapter_config.json").read_text())
    save_file(ours, again / "adapter_model.safetensors")
    assert torch.equal(logits(tiny, again), logits(tiny, folder))
    metrics = bench.trainer.train(
        spec, batch_number(0), 0, out / ADAPTER_FILE, out / OPTIMIZER_FILE, bench.fresh()
    )
    assert metrics.grad_norm > 0


def call(spec: JobSpec, **fields: Any) -> InitialiseCall:
    return InitialiseCall(spec=spec, dataset_path="", out="", **fields)


def test_version_0_is_the_other_jobs_version_to_the_byte(tiny: BaseModel, tmp_path: Path) -> None:
    """CASES 16: it is not an adapter of step 0."""
    bench = Bench(Trainer(tiny), tmp_path)
    trained, _ = bench.step(bench.start(), batch_number(0))
    spec = make_spec(lora={"rank": 4}, start={"job": "acme/before", "version": 1})
    start = starting_adapter(
        call(spec, start_adapter_path=str(trained.adapter), start_base=tiny.digest), tiny
    )
    out = bench.fresh()
    bench.trainer.initialise(spec.lora, 1, out, start)
    assert digest(out / ADAPTER_FILE) == digest(trained.adapter) != digest(bench.start().adapter)
    with pytest.raises(UnusableModel, match="other job's base model has the digest 000"):
        starting_adapter(call(spec, start_adapter_path=str(trained.adapter), start_base="0" * 64), tiny)


def test_without_a_start_the_adapter_is_new(tiny: BaseModel) -> None:
    assert starting_adapter(call(make_spec(lora={"rank": 4})), tiny) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \[.lm_head.\]"),
        ({"lora_dropout": 0.1}, "lora_dropout is 0.1"),
        ({"use_rslora": True}, "use_rslora is true"),
        ({"use_dora": True}, "use_dora is true"),
        ({"bias": "lora_only"}, "bias is .lora_only."),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern is"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern is"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is .pissa."),
        ({"r": 8}, "r is 8, and lora.rank is 4"),
        ({"lora_alpha": 4}, r"lora_alpha is 4, and lora.alpha is 12.0"),
    ],
    ids=lambda one: "" if isinstance(one, str) else next(iter(one)),
)
def test_options_that_sampling_could_not_honour_are_named(
    tiny: BaseModel, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    """CASES 32."""
    folder = peft_folder(tiny, tmp_path / "peft", **options)
    with pytest.raises(UnusableModel, match=said):
        read_peft_folder(folder, LORA)


def test_an_option_of_a_newer_peft_is_named(tiny: BaseModel, tmp_path: Path) -> None:
    folder = peft_folder(tiny, tmp_path / "peft")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "twist": 0.5, "turn": None}))
    with pytest.raises(UnusableModel, match=r"twist is 0.5, which") as found:
        read_peft_folder(folder, LORA)
    assert "turn" not in str(found.value)


def drop(tensors: dict[str, torch.Tensor], name: str) -> None:
    del tensors[name]


def widen(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = torch.zeros(4, 33)


def add(tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name.replace("q_proj", "v_proj")] = tensors[name].clone()


@pytest.mark.parametrize(
    ("change", "said"),
    [(drop, "missing {}"), (widen, r"{} has shape \(4, 33\), expected \(4, 32\)"), (add, "unknown {}")],
    ids=["missing", "shape", "unknown"],
)
def test_tensors_that_do_not_fit_are_named(
    tiny: BaseModel,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor], str], None],
    said: str,
) -> None:
    """CASES 100."""
    folder = peft_folder(tiny, tmp_path / "peft")
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(one for one in tensors if "q_proj.lora_A" in one)
    change(tensors, name)
    save_file(tensors, folder / "adapter_model.safetensors")
    shown = name.replace("q_proj", "v_proj") if change is add else name
    with pytest.raises(UnusableModel, match=said.format(shown)):
        Trainer(tiny).initialise(LORA, 0, tmp_path, read_peft_folder(folder, LORA))


def test_what_is_no_adapter_is_named(tiny: BaseModel, tmp_path: Path) -> None:
    with pytest.raises(UnusableModel, match="is no folder with a PEFT adapter"):
        read_peft_folder(tmp_path / "none", LORA)
    folder = peft_folder(tiny, tmp_path / "peft")
    tensors = load_file(folder / "adapter_model.safetensors")
    name = next(iter(tensors))
    tensors[name][0, 0] = float("nan")
    save_file(tensors, folder / "adapter_model.safetensors")
    with pytest.raises(UnusableModel, match=f"{name} is not finite"):
        read_peft_folder(folder, LORA)
    (folder / "adapter_model.safetensors").write_bytes(b"x" * 9)
    with pytest.raises(UnusableModel, match="is no folder with a PEFT adapter"):
        read_peft_folder(folder, LORA)
