"""What a row holds, and that the documentation names exactly that."""

import json
import re
from pathlib import Path

import pytest
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.manifest import EvaluationDocument, HeldOutScores, Manifest, PhaseSeconds
from marlaas.schemas.metric_row import (
    EVALUATION_FIGURES,
    REWARD_PART,
    STEP_FIGURES,
    documented_name,
    evaluation_row,
    step_row,
)
from marlaas.schemas.names import JobKey
from marlaas.tests.noop_activities import FINGERPRINT, METRICS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
KEY = JobKey(tenant="acme", job="sums")
BLOB = BlobRef(digest="1" * 64, size=1)
PHASES = PhaseSeconds(
    rollout=8.0, reward=1.0, turn=0.0, select=0.1, train=5.0, sampling=2.0, scoring=0.5, training=4.0
)
FULL = METRICS.model_copy(
    update={
        "learning_rate": 1e-4,
        "entropy": 1.5,
        "kl": 0.01,
        "samples": 4,
        "prompt_tokens": 40,
        "completion_tokens": 100,
        "train_seconds": 4.0,
    }
)
MANIFEST = Manifest(
    key=KEY,
    version=3,
    parent="0" * 64,
    spec_digest="0" * 64,
    adapter=BLOB,
    optimizer=BLOB,
    batch=BLOB,
    metrics=FULL,
    phases=PHASES,
    time=12.5,
    fingerprint=FINGERPRINT,
)
DOCUMENT = EvaluationDocument(
    key=KEY,
    version=3,
    prompts=2,
    samples=4,
    accuracy=0.5,
    greedy_accuracy=1.0,
    reward_mean=0.25,
    failed_samples=0,
    greedy_completions=(),
    time=13.0,
    pass_at={1: 0.5, 2: 0.75, 4: 1.0},
    by_environment={
        name: HeldOutScores(prompts=1, accuracy=right, greedy_accuracy=1.0, reward_mean=right / 2, pass_at={})
        for name, right in (("sums", 0.0), ("greedy", 1.0))
    },
)


def test_a_whole_step_reports_every_figure_in_its_unit() -> None:
    row = step_row(MANIFEST)
    assert row is not None
    assert list(row.figures) == list(STEP_FIGURES)
    assert row.figures["length/completion_mean"] == 25.0
    assert row.figures["length/prompt_mean"] == 10.0
    assert row.figures["throughput/sampling_tokens_per_s"] == 50.0
    assert row.figures["throughput/scoring_tokens_per_s"] == 200.0
    assert row.figures["throughput/training_tokens_per_s"] == 35.0
    assert row.figures["sampler_gap/max"] == FULL.logprob_gap_max


def test_parts_of_a_reward_are_reported_by_their_names() -> None:
    parts = {"right": 0.5, "style.short": -1.0}
    row = step_row(MANIFEST.model_copy(update={"metrics": FULL.model_copy(update={"reward_parts": parts})}))
    assert row is not None
    extra = {"reward/parts/right": 0.5, "reward/parts/style.short": -1.0}
    assert list(row.figures) == [*STEP_FIGURES, *extra]
    assert {name: row.figures[name] for name in extra} == extra
    assert f"`{REWARD_PART}`" in PAGE.read_text()


def test_an_evaluation_reports_every_figure() -> None:
    figures = evaluation_row(DOCUMENT).figures
    assert list(dict.fromkeys(map(documented_name, figures))) == list(EVALUATION_FIGURES)
    assert [figures[f"eval/pass@{k}"] for k in (1, 2, 4)] == [0.5, 0.75, 1.0]
    assert (figures["eval/sums/accuracy"], figures["eval/greedy/accuracy"]) == (0.0, 1.0)
    assert figures["eval/greedy/reward_mean"] == 0.5
    assert figures["eval/greedy_accuracy"] == 1.0


def test_an_evaluation_of_before_has_fewer_figures() -> None:
    content = json.loads(DOCUMENT.model_dump_json())
    del content["pass_at"], content["by_environment"]
    old = EvaluationDocument.model_validate_json(json.dumps(content))
    assert set(evaluation_row(old).figures) == set(list(EVALUATION_FIGURES)[:5])
    assert EvaluationDocument.model_validate_json(DOCUMENT.model_dump_json()) == DOCUMENT


def test_a_documented_name_of_a_step_is_itself() -> None:
    assert list(map(documented_name, STEP_FIGURES)) == list(STEP_FIGURES)


@pytest.mark.parametrize(
    ("change", "missing"),
    [
        (
            {"metrics": FULL.model_copy(update={"skipped": True})},
            {
                "policy/loss",
                "policy/entropy",
                "policy/kl",
                "policy/ratio_mean",
                "policy/clipped_share",
                "sampler_gap/mean",
                "sampler_gap/max",
                "optimizer/grad_norm",
                "optimizer/learning_rate",
            },
        ),
        (
            {"phases": None},
            {name for name in STEP_FIGURES if name.startswith("seconds/")} - {"seconds/training"}
            | {"throughput/sampling_tokens_per_s", "throughput/scoring_tokens_per_s"},
        ),
    ],
    ids=["skipped", "old manifest"],
)
def test_what_a_step_does_not_have_is_left_out(change: dict[str, object], missing: set[str]) -> None:
    row = step_row(MANIFEST.model_copy(update=change))
    assert row is not None
    assert set(STEP_FIGURES) - set(row.figures) == missing


def test_version_0_has_no_step() -> None:
    assert step_row(MANIFEST.model_copy(update={"version": 0, "metrics": None})) is None


def test_the_page_names_every_figure_and_no_other() -> None:
    found = dict(re.findall(r"^\| `([^`]+/[^`]+)` \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    assert found == {**STEP_FIGURES, **EVALUATION_FIGURES}


def test_the_page_explains_a_loss_near_zero() -> None:
    """CASES 76: people take it for a fault."""
    text = " ".join(PAGE.read_text().split())
    assert "A loss near 0 is no fault" in text
    for figure in ("reward/mean", "policy/clipped_share", "group/zero_variance_share"):
        assert figure in STEP_FIGURES
        assert f"`{figure}`" in text.partition("A loss near 0 is no fault")[2][:600]
