"""Steps from files to files: repeatable, resumable, one job's never touched by another's."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel, UnusableModel
from marlaas.engines.trainer import Trainer
from marlaas.tests.engines.plain_peft import slow_loss, with_adapter
from marlaas.tests.engines.trainer_bench import SPEC, Bench, Revision, batch_number
from marlaas.tests.engines.training_batches import Sample, make_batch, make_spec
from marlaas.tests.tiny_model import write_tiny_model
from safetensors.torch import load_file, save_file
from transformers import GraniteConfig, GraniteForCausalLM

OTHER = make_spec(
    job="other", lora={"rank": 2, "targets": ["q_proj", "up_proj"]}, optimizer={"learning_rate": 0.1}
)


# --- version 0


def test_version_0_is_the_base_model_and_a_function_of_its_seed(bench: Bench) -> None:
    first, again, other = bench.start(seed=5), bench.start(seed=5), bench.start(seed=6)
    assert first.digests == again.digests
    assert first.digests[0] != other.digests[0]
    for name, tensor in first.tensors.items():
        assert tensor.dtype == torch.float32
        assert bool(tensor.any()) == (".lora_A." in name)


def test_a_target_that_is_no_layer_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(UnusableModel, match=r"no linear layer named bogus_proj; it has .*q_proj"):
        bench.start(make_spec(lora={"targets": ["q_proj", "bogus_proj"]}))


def test_a_model_that_changes_its_logits_after_the_head_is_refused(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    config = GraniteConfig(
        vocab_size=259, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, logits_scaling=8.0, tie_word_embeddings=True,
    )  # fmt: skip
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UnusableModel, match="GraniteForCausalLM changes its logits"):
        Trainer(base_model.load(tmp_path))


# --- repeatability


def test_equal_inputs_give_equal_bytes_also_in_a_new_trainer(bench: Bench, tiny: BaseModel) -> None:
    start, batch = bench.start(), batch_number(0)
    first, _ = bench.step(start, batch)
    again, _ = bench.step(start, batch)
    elsewhere, _ = Bench(Trainer(tiny), bench.fresh()).step(start, batch)
    assert first.digests == again.digests == elsewhere.digests
    assert first.digests[0] != start.digests[0]


def test_equal_inputs_give_equal_bytes_in_a_fresh_process(
    bench: Bench, tiny: BaseModel, tmp_path: Path
) -> None:
    start, batch = bench.start(), batch_number(0)
    here, _ = bench.step(start, batch)
    (tmp_path / "batch").write_bytes(batch.to_bytes())
    (tmp_path / "spec").write_text(SPEC.model_dump_json())
    out = bench.fresh()
    script = """
import sys
import tracemalloc
from pathlib import Path
from marlaas.engines import base_model
from marlaas.engines.trainer import Trainer
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
model, root, adapter, optimizer, out = map(Path, sys.argv[1:])
spec = JobSpec.model_validate_json((root / "spec").read_text())
batch = Batch.from_bytes((root / "batch").read_bytes())
Trainer(base_model.load(model)).train(spec, batch, 0, adapter, optimizer, out)
"""
    arguments = [str(path) for path in (tiny.folder, tmp_path, start.adapter, start.optimizer, out)]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    assert Revision(out).digests == here.digests


def test_steps_of_another_job_in_between_change_no_byte(bench: Bench) -> None:
    """CASES 94 and 88: another rank and other layers; each job's files are as if it were alone."""
    start, first, second = bench.start(), batch_number(0), batch_number(1)
    alone, _ = bench.step(bench.step(start, first)[0], second)
    other_start = bench.start(OTHER)
    other_alone, _ = bench.step(bench.step(other_start, first, OTHER)[0], second, OTHER)

    middle, _ = bench.step(start, first)
    other_middle, _ = bench.step(other_start, first, OTHER)
    end, _ = bench.step(middle, second)
    other_end, _ = bench.step(other_middle, second, OTHER)

    assert end.digests == alone.digests
    assert other_end.digests == other_alone.digests


def test_a_job_of_the_same_shape_in_between_changes_no_byte(bench: Bench) -> None:
    """CASES 101: Each job's bytes are its own."""
    start, neighbour, batch = bench.start(seed=0), bench.start(seed=1), batch_number(0)
    alone, _ = bench.step(start, batch)
    bench.step(neighbour, batch_number(1))
    assert bench.step(start, batch)[0].digests == alone.digests


def test_the_inputs_and_the_base_model_are_left_as_they_are(bench: Bench, tiny: BaseModel) -> None:
    """CASES 44."""
    start = bench.start()
    before = start.digests
    ids = torch.arange(3, 20)[None]
    logits = tiny.model(input_ids=ids).logits
    bench.step(start, batch_number(0))
    assert torch.equal(tiny.model(input_ids=ids).logits, logits)
    assert start.digests == before
    assert not [name for name, _ in tiny.model.named_modules() if "lora" in name]


def test_memory_is_flat_over_many_steps(tiny: BaseModel, tmp_path: Path) -> None:
    """CASES 89: in a process of its own: whatever else lives in this one allocates as it likes."""
    command = [sys.executable, "-m", "marlaas.tests.engines.training_memory", str(tiny.folder), str(tmp_path)]
    grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert int(grown) < 16 * 1024


# --- the optimizer and its state


def test_three_steps_with_files_between_equal_adamw_in_one_go(tiny_double: BaseModel, tmp_path: Path) -> None:
    """CASES 97: clipped gradients, weight decay; float64, so that only the files' float32 differs."""
    spec = make_spec(
        lora={"rank": 4},
        optimizer={"learning_rate": 0.01, "weight_decay": 0.1, "max_grad_norm": 0.01, "epsilon": 1e-4},
    )
    bench = Bench(Trainer(tiny_double), tmp_path)
    batches = [batch_number(seed) for seed in range(3)]
    revision = start = bench.start(spec)
    norms: list[float] = []
    for version, batch in enumerate(batches):
        revision, metrics = bench.step(revision, batch, spec, version)
        norms.append(metrics.grad_norm)

    model = base_model.load(tiny_double.folder, dtype=torch.float64).model
    peft = with_adapter(model, spec, start.tensors)
    parameters = [p for p in peft.parameters() if p.requires_grad]
    adamw = torch.optim.AdamW(
        parameters, lr=0.01, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1, fused=False, foreach=False
    )
    expected_norms: list[float] = []
    for batch in batches:
        adamw.zero_grad()
        slow_loss(peft, spec, batch).backward()
        expected_norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.01)))
        adamw.step()

    assert min(norms) > 0.01
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    expected = {name.replace(".default", ""): p for name, p in peft.named_parameters() if p.requires_grad}
    assert expected.keys() == revision.tensors.keys()
    for name, tensor in revision.tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name].detach().numpy(), rtol=1e-6, atol=1e-7)


def test_peft_takes_the_written_adapter_and_it_is_the_trained_policy(bench: Bench, tiny: BaseModel) -> None:
    """CASES 46."""
    revision, _ = bench.step(bench.start(), batch_number(0))
    peft = with_adapter(base_model.load(tiny.folder).model, SPEC, revision.tensors)
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        trained = torch.log_softmax(peft(input_ids=ids).logits[0, :-1], -1)
        assert not torch.allclose(
            trained, torch.log_softmax(tiny.model(input_ids=ids).logits[0, :-1], -1), atol=1e-3
        )
    # The next step starts from the same policy: on samples of it, every ratio is 1.
    batch = make_batch([([3], [Sample(list(range(4, 20)), 1.0), Sample([4], 0.0)])])
    logprobs = np.zeros(len(batch.mask), np.float32)
    logprobs[1:17] = trained.gather(1, ids[0, 1:, None])[:, 0].numpy()
    logprobs[-1] = logprobs[1]
    _, metrics = bench.step(revision, replace(batch, logprobs=logprobs), version=1)
    assert metrics.logprob_gap_max < 1e-5
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)


def test_a_step_at_learning_rate_0_changes_no_weight_and_remembers_its_gradient(bench: Bench) -> None:
    """CASES 97."""
    revision, _ = bench.step(bench.start(), batch_number(0))
    still = make_spec(lora={"rank": 4}, optimizer={"learning_rate": 0.0, "weight_decay": 0.5})
    after, metrics = bench.step(revision, batch_number(1), still)
    assert not metrics.skipped
    assert after.digests[0] == revision.digests[0]
    assert after.digests[1] != revision.digests[1]


def test_the_optimizer_state_matters(bench: Bench) -> None:
    """A step from the right weights with the moments of version 0 is another step."""
    start = bench.start()
    revision, _ = bench.step(start, batch_number(0))
    right, _ = bench.step(revision, batch_number(1))
    wrong = bench.fresh()
    bench.trainer.train(SPEC, batch_number(1), 1, revision.adapter, start.optimizer, wrong)
    assert Revision(wrong).digests[0] != right.digests[0]


def test_training_makes_rewarded_samples_more_likely(bench: Bench, tiny: BaseModel) -> None:
    good, bad = [5, 6, 7, *range(10, 16)], [5, 6, 7, *range(20, 26)]
    batch = make_batch([(good[:3], [Sample(good[3:], 1.0), Sample(bad[3:], 0.0)])])
    batch = replace(batch, logprobs=np.where(batch.mask == 1, np.float32(-5.5), np.float32(0)))
    spec = make_spec(lora={"rank": 4}, objective={"clip_high": 50.0}, optimizer={"learning_rate": 0.05})
    revision = bench.start(spec)
    for version in range(20):
        revision, _ = bench.step(revision, batch, spec, version)

    trained = with_adapter(base_model.load(tiny.folder).model, spec, revision.tensors)
    gains: list[float] = []
    for sequence in (good, bad):
        ids = torch.tensor([sequence])
        with torch.no_grad():
            before, after = (
                torch.log_softmax(model(input_ids=ids).logits[0, 2:-1], -1)
                .gather(1, ids[0, 3:, None])
                .mean()
                .item()
                for model in (tiny.model, trained)
            )
        gains.append(after - before)
    assert gains[0] > 0.2
    assert gains[1] < 0  # the clip ends its fall


# --- files that do not fit


def test_an_adapter_of_another_shape_is_refused_and_the_next_step_works(bench: Bench) -> None:
    """CASES 100."""
    start, other, batch = bench.start(), bench.start(OTHER), batch_number(0)
    expected, _ = bench.step(start, batch)
    out = bench.fresh()
    with pytest.raises(
        UnusableModel, match=r"up_proj\.lora_A\.weight has shape \(2, 32\), expected \(4, 32\).*missing "
    ):
        bench.trainer.train(SPEC, batch, 0, other.adapter, start.optimizer, out)
    with pytest.raises(UnusableModel, match=r"optimizer\.safetensors does not fit the adapter"):
        bench.trainer.train(SPEC, batch, 0, start.adapter, other.optimizer, out)
    assert not list(out.iterdir())
    assert bench.step(start, batch)[0].digests == expected.digests


def test_an_optimizer_file_of_an_unknown_format_is_refused(bench: Bench) -> None:
    start = bench.start()
    tensors = {name: tensor.clone() for name, tensor in load_file(start.optimizer).items()}
    save_file({**tensors, "format": torch.tensor([2])}, start.optimizer)
    with pytest.raises(UnusableModel, match="has format 2; this version of marlaas reads format 1"):
        bench.step(start, batch_number(0))
