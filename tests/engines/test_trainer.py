"""Steps from files to files: repeatable, resumable, one job's never touched by another's."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import gc
import hashlib
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from marlaas.engines import base_model
from marlaas.engines.base_model import BaseModel, UnusableModel
from marlaas.engines.policy_gradient import accumulate_policy_gradient, find_signal
from marlaas.engines.trainer import ADAPTER_FILE, OPTIMIZER_FILE, Trainer
from marlaas.schemas.batch import Batch
from marlaas.schemas.job_spec import JobSpec
from marlaas.schemas.manifest import StepMetrics
from marlaas.tests.engines.training_batches import Sample, make_batch, make_spec, random_batch
from marlaas.tests.tiny_model import write_tiny_model
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import GraniteConfig, GraniteForCausalLM, PreTrainedModel

SPEC = make_spec(lora={"rank": 4}, optimizer={"learning_rate": 0.01})
OTHER = make_spec(
    job="other", lora={"rank": 2, "targets": ["q_proj", "up_proj"]}, optimizer={"learning_rate": 0.1}
)


@dataclass(frozen=True)
class Revision:
    """A folder with a policy version."""

    folder: Path

    @property
    def adapter(self) -> Path:
        return self.folder / ADAPTER_FILE

    @property
    def optimizer(self) -> Path:
        return self.folder / OPTIMIZER_FILE

    @property
    def digests(self) -> tuple[str, str]:
        return digest(self.adapter), digest(self.optimizer)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return load_file(self.adapter)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Bench:
    """A trainer, and a fresh folder for everything that it writes."""

    trainer: Trainer
    root: Path
    folders: int = 0

    def fresh(self) -> Path:
        self.folders += 1
        folder = self.root / str(self.folders)
        folder.mkdir()
        return folder

    def start(self, spec: JobSpec = SPEC, seed: int = 0) -> Revision:
        revision = Revision(self.fresh())
        self.trainer.initialise(spec.lora, seed, revision.folder)
        return revision

    def step(
        self, revision: Revision, batch: Batch, spec: JobSpec = SPEC, version: int = 0
    ) -> tuple[Revision, StepMetrics]:
        written = Revision(self.fresh())
        metrics = self.trainer.train(
            spec, batch, version, revision.adapter, revision.optimizer, written.folder
        )
        return written, metrics


@pytest.fixture(scope="module")
def trainer(tiny: BaseModel) -> Trainer:
    return Trainer(tiny)


@pytest.fixture
def bench(trainer: Trainer, tmp_path: Path) -> Bench:
    return Bench(trainer, tmp_path)


def batch_number(seed: int, groups: int = 3) -> Batch:
    batch = random_batch(seed, groups=groups, samples=4, prompt=(3, 9), completion=(1, 8), vocabulary=259)
    return replace(batch, logprobs=np.where(batch.mask == 1, np.float32(-5.5), np.float32(0)))  # near uniform


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
    """Another rank and other layers; each job's files are as if it were alone."""
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
    start, neighbour, batch = bench.start(seed=0), bench.start(seed=1), batch_number(0)
    alone, _ = bench.step(start, batch)
    bench.step(neighbour, batch_number(1))
    assert bench.step(start, batch)[0].digests == alone.digests


def test_the_inputs_and_the_base_model_are_left_as_they_are(bench: Bench, tiny: BaseModel) -> None:
    start = bench.start()
    before = start.digests
    ids = torch.arange(3, 20)[None]
    logits = tiny.model(input_ids=ids).logits
    bench.step(start, batch_number(0))
    assert torch.equal(tiny.model(input_ids=ids).logits, logits)
    assert start.digests == before
    assert not [name for name, _ in tiny.model.named_modules() if "lora" in name]


def test_memory_is_flat_over_many_steps(bench: Bench) -> None:
    start, batch, out = bench.start(), batch_number(0), bench.fresh()

    def steps(count: int) -> int:
        for _ in range(count):
            bench.trainer.train(SPEC, batch, 0, start.adapter, start.optimizer, out)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        steps(10)
        warm = steps(10)
        assert steps(40) - warm < 16 * 1024
    finally:
        tracemalloc.stop()


# --- the optimizer and its state


def test_three_steps_with_files_between_equal_adamw_in_one_go(tiny_double: BaseModel, tmp_path: Path) -> None:
    """Clipped gradients, weight decay; float64, so that only the files' float32 differs."""
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
        accumulate_policy_gradient(peft.get_base_model(), spec, batch, find_signal(spec, batch))
        expected_norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.01)))
        adamw.step()

    assert min(norms) > 0.01
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    expected = {name.replace(".default", ""): p for name, p in peft.named_parameters() if p.requires_grad}
    assert expected.keys() == revision.tensors.keys()
    for name, tensor in revision.tensors.items():
        np.testing.assert_allclose(tensor.numpy(), expected[name].detach().numpy(), rtol=1e-6, atol=1e-7)


def with_adapter(model: PreTrainedModel, spec: JobSpec, tensors: dict[str, torch.Tensor]) -> Any:
    """The model under plain PEFT, with an adapter file's tensors; every one of them must find its place."""
    config = LoraConfig(
        r=spec.lora.rank, lora_alpha=cast(int, spec.lora.alpha), target_modules=list(spec.lora.targets)
    )
    peft = get_peft_model(cast(Any, model), config).eval()
    result = set_peft_model_state_dict(peft, tensors)
    assert not result.unexpected_keys
    assert not [key for key in result.missing_keys if "lora" in key]
    return peft


def test_peft_takes_the_written_adapter_and_it_is_the_trained_policy(bench: Bench, tiny: BaseModel) -> None:
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


# --- steps that do not happen


def without_reward(batch: Batch) -> Batch:
    return replace(batch, valid=np.zeros_like(batch.valid))


def without_variance(batch: Batch) -> Batch:
    return replace(batch, rewards=np.full_like(batch.rewards, 0.7))


def without_tokens(batch: Batch) -> Batch:
    return replace(batch, mask=np.zeros_like(batch.mask))


def with_logprob(value: float) -> Callable[[Batch], Batch]:
    def change(batch: Batch) -> Batch:
        logprobs = batch.logprobs.copy()
        logprobs[np.flatnonzero(batch.mask)[0]] = value
        return replace(batch, logprobs=logprobs)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_reward, "no sample has a reward"),
        (without_variance, "every advantage is 0"),
        (without_tokens, "no sample with an advantage has a token of the policy"),
        (with_logprob(np.inf), "the sampler's log-probability of a token of sequence 0 is inf"),
        (with_logprob(-np.inf), "the sampler's log-probability of a token of sequence 0 is -inf"),
        (with_logprob(np.nan), "the sampler's log-probability of a token of sequence 0 is nan"),
    ],
)
def test_a_batch_without_a_usable_signal_skips_the_step(
    bench: Bench, change: Callable[[Batch], Batch], reason: str
) -> None:
    revision, _ = bench.step(bench.start(), batch_number(0))
    after, metrics = bench.step(revision, change(batch_number(1)), version=1)
    assert (metrics.skipped, metrics.skip_reason) == (True, reason)
    assert (metrics.loss, metrics.grad_norm, metrics.ratio_mean) == (0.0, 0.0, 0.0)
    assert after.digests == revision.digests


@pytest.mark.parametrize(
    ("reward", "reason"), [(0.0, "the loss is inf"), (2.0, "the norm of the gradient is nan")]
)
def test_a_ratio_that_overflows_skips_the_step(bench: Bench, reward: float, reason: str) -> None:
    """A finite log-probability that no policy can reach: exp(new - behaviour) is infinite."""
    revision, _ = bench.step(bench.start(), batch_number(0))
    batch = with_logprob(-1e4)(batch_number(1))
    rewards = batch.rewards.copy()
    rewards[0] = reward  # below and above all others
    after, metrics = bench.step(revision, replace(batch, rewards=rewards), version=1)
    assert metrics.skip_reason == reason
    assert after.digests == revision.digests


def test_after_a_step_that_was_not_finite_the_next_is_as_if_it_had_not_been(bench: Bench) -> None:
    start = bench.start()
    expected, _ = bench.step(start, batch_number(0))
    batch = batch_number(1)
    skipped, metrics = bench.step(start, replace(with_logprob(-1e4)(batch), rewards=1 - batch.rewards))
    assert metrics.skipped
    assert bench.step(skipped, batch_number(0))[0].digests == expected.digests


# --- what counts


def test_a_failed_sample_leaves_the_step_as_if_it_had_not_been_drawn(bench: Bench) -> None:
    start, prompt = bench.start(), [3, 4, 5]
    samples = [Sample([10, 11, 2], 1.0), Sample([12, 13], 0.0), Sample([14, 2], 0.5)]
    failed = Sample([15, 16, 17, 18], None)
    other = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 0.0)])
    without, _ = bench.step(start, make_batch([(prompt, samples), other]))
    with_failure, metrics = bench.step(
        start, make_batch([(prompt, [samples[0], failed, *samples[1:]]), other])
    )
    assert with_failure.digests == without.digests
    assert (metrics.failed_samples, metrics.failed_groups) == (1, 0)


def test_a_group_without_variance_dilutes_the_step_and_a_failed_one_does_not(bench: Bench) -> None:
    start = bench.start()
    signal = ([3, 4, 5], [Sample([10, 11, 2], 1.0), Sample([12, 13], 0.0)])
    solved = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 1.0)])
    failed = ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], None)])
    norms = [
        bench.step(start, make_batch(groups))[1].grad_norm
        for groups in ([signal], [signal, solved], [signal, failed])
    ]
    assert norms[1] == pytest.approx(norms[0] / 2, rel=1e-5)
    assert norms[2] == norms[0]


def test_metrics_count_what_is_in_the_batch(bench: Bench) -> None:
    batch = make_batch(
        [
            ([3, 4, 5], [Sample([10, 11, 2], 1.0), Sample([12] * 9, 0.0, truncated=True), Sample([2], None)]),
            ([6, 7], [Sample([8, 2], 1.0), Sample([9, 2], 1.0), Sample([], 1.0)]),
            ([6, 7], [Sample([8, 2], None), Sample([9, 2], None), Sample([9, 2], 0.5)]),
        ],
        version=4,
    )
    _, metrics = bench.step(bench.start(), batch, version=6)
    assert metrics.reward_mean == pytest.approx(0.8)
    assert metrics.reward_std == pytest.approx(0.4)
    assert (metrics.groups, metrics.failed_groups, metrics.samples, metrics.failed_samples) == (3, 1, 9, 4)
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (3 * 3 + 6 * 2, 13 + 4 + 6)
    assert metrics.truncated_share == pytest.approx(1 / 9)
    assert metrics.zero_variance_share == pytest.approx(1 / 2)
    assert metrics.staleness_max == 2
    assert not metrics.skipped
    assert metrics.skip_reason is None


def test_metrics_of_the_update_are_over_the_trained_tokens(bench: Bench, tiny: BaseModel) -> None:
    """Version 0 is the base model, so its plain forward pass gives the expected log-probabilities."""
    batch = batch_number(7)
    spec = make_spec(lora={"rank": 4}, objective={"clip_low": 0.1, "clip_high": 0.05})
    _, metrics = bench.step(bench.start(spec), batch, spec)

    ratios: list[float] = []
    gaps: list[float] = []
    clipped = 0
    advantages = find_signal(spec, batch).advantages
    for i in range(len(batch.valid)):
        ids = torch.from_numpy(batch.token_ids[batch.offsets[i] : batch.offsets[i + 1]].astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(tiny.model(input_ids=ids[None]).logits[0], -1)
        for t in range(1, len(ids)):
            place = batch.offsets[i] + t
            if batch.mask[place]:
                gap = float(logprobs[t - 1, ids[t]]) - float(batch.logprobs[place])
                ratio = np.exp(gap)
                gaps.append(abs(gap))
                ratios.append(ratio)
                clipped += bool(ratio > 1.05 if advantages[i] > 0 else ratio < 0.9)
    assert metrics.ratio_mean == pytest.approx(np.mean(ratios), rel=1e-5)
    assert metrics.logprob_gap_mean == pytest.approx(np.mean(gaps), abs=1e-5)
    assert metrics.logprob_gap_max == pytest.approx(max(gaps), abs=1e-5)
    assert metrics.clipped_share == clipped / len(gaps)
    assert 0 < metrics.clipped_share < 1
    assert metrics.zero_variance_share == 0.0


def test_micro_batches_change_the_step_by_rounding_only(bench: Bench) -> None:
    start, batch = bench.start(), batch_number(0, groups=6)
    norms = [
        bench.step(start, batch, make_spec(lora={"rank": 4}, optimizer={"micro_batch_tokens": budget}))[
            1
        ].grad_norm
        for budget in (4096, 60, 1)
    ]
    assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)
