"""What is drawn of snapshots, without any server."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from marlaas.jobs.snapshot import JobSnapshot, OpenStep, Problem
from marlaas.schemas.contract import BlobRef
from marlaas.schemas.events import (
    EvaluationResult,
    JobProgress,
    JobResult,
    StepProgress,
    StepResult,
    StepSeconds,
)
from marlaas.schemas.manifest import AdapterRevision, EvaluationDocument
from marlaas.schemas.names import JobKey
from marlaas.terminal.lines import NewsLines
from marlaas.terminal.live import display
from marlaas.terminal.plot import reward_plot, sparkline
from marlaas.terminal.report import JobReport, print_report
from marlaas.terminal.tables import jobs_table
from marlaas.terminal.words import count, duration
from marlaas.tests.noop_activities import METRICS
from rich.console import Console

BLOB = BlobRef(digest="0" * 64, size=1)
SECONDS = StepSeconds(
    total=10.0,
    rollout=5.0,
    reward=1.0,
    turn=0.0,
    select=0.5,
    train=3.0,
    snapshot=0.5,
    sampling=4.5,
    scoring=0.9,
    training=2.9,
)


def step_result(version: int) -> StepResult:
    revision = AdapterRevision(version=version, manifest="1" * 64, adapter=BLOB, optimizer=BLOB)
    return StepResult(step=version - 1, revision=revision, metrics=METRICS, seconds=SECONDS)


def snapshot(version: int | None = None, **changes: Any) -> JobSnapshot:
    last = step_result(version) if version else None
    progress = JobProgress(
        state="training", steps=9, version=version, open_steps=(), evaluations=(), last=last
    )
    fields: dict[str, Any] = {
        "job": JobKey(tenant="acme", job="sums"),
        "status": "running",
        "steps": 9,
        "started": datetime.now(UTC),
        "ended": None,
        "progress": progress,
        "open_steps": (),
        "open_evaluations": (),
        "pending": (),
        "problems": (),
        "result": None,
        "committed": None,
        "failure": None,
        **changes,
    }
    return JobSnapshot(**fields)


def drawn(renderable: Any, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_say_each_version_once_also_those_between_two_looks() -> None:
    news = NewsLines()
    first, *_ = news.news(snapshot(2, rewards=(0.1, 0.2)))
    assert first == "acme/sums training, step 2/9"
    assert list(news.news(snapshot(2, rewards=(0.1, 0.2)))) == []
    lines = list(news.news(snapshot(5, rewards=(0.1, 0.2, 0.3, None, 0.5))))
    assert lines[0] == "acme/sums version 3: reward 0.300"
    assert lines[1] == "acme/sums version 4: reward –"
    assert lines[2].startswith("acme/sums version 5: reward 0.500, 1 tokens, staleness 0, 10.0 s")


def test_lines_say_when_a_problem_begins_and_ends() -> None:
    problem = Problem(kind="no worker", where="marlaas-cpu", message="none")
    news = NewsLines()
    list(news.news(snapshot()))
    assert list(news.news(snapshot(problems=(problem,)))) == ["acme/sums no worker: marlaas-cpu: none"]
    assert list(news.news(snapshot(problems=(problem,)))) == []
    assert list(news.news(snapshot())) == ["acme/sums no more no worker: marlaas-cpu"]


def test_the_display_shows_open_steps_and_problems_and_takes_brackets_as_text() -> None:
    progress = StepProgress(
        step=4, generating_version=3, phase="rollout", groups=8, groups_sampled=4, groups_scored=2
    )
    problem = Problem(kind="stuck", where="acme/sums", message="[TMPRL1100] [bold]nondeterminism")
    shown = drawn(
        display(
            snapshot(
                4,
                open_steps=(OpenStep(step=4, progress=progress, groups_sampled=6),),
                problems=(problem,),
                rewards=(0.1, 0.4),
            ),
            100,
        )
    )
    assert "acme/sums  stuck" in shown
    assert "4/9 steps" in shown
    assert "rollout: 6 sampled, 2 scored of 8 groups" in shown
    assert "! stuck: acme/sums: [TMPRL1100] [bold]nondeterminism" in shown
    assert "▁█  0.400" in shown


@pytest.mark.parametrize(
    ("rewards", "line", "note"),
    [
        ((None, None), "version 9: 0.500 (greedy 0.750)", "held-out 0.250 → 0.500"),
        ((0.25, 0.5), "version 9: 0.500 (greedy 0.750)", "held-out 0.250 → 0.500"),
        ((0.3, 0.6), "version 9: 0.500 (greedy 0.750), reward 0.600", "held-out reward 0.300 → 0.600"),
    ],
    ids=["old", "right or wrong", "graded"],
)
def test_graded_rewards_are_shown_beside_the_accuracy(
    rewards: tuple[float | None, float | None], line: str, note: str
) -> None:
    evaluations = tuple(
        EvaluationResult(
            version=version, accuracy=share, greedy_accuracy=0.75, failed_samples=0, reward_mean=reward
        )
        for version, share, reward in zip((0, 9), (0.25, 0.5), rewards, strict=True)
    )
    result = JobResult(outcome="completed", revision=step_result(9).revision, evaluations=evaluations)
    ended = snapshot(9, status="completed", result=result)
    assert f"acme/sums held-out accuracy of {line}" in list(NewsLines().news(ended))
    assert note in drawn(jobs_table([ended]), width=200)


def test_a_narrow_terminal_is_enough() -> None:
    shown = drawn(display(snapshot(4, rewards=tuple(0.01 * i for i in range(60))), 40), width=40)
    assert max(map(len, shown.splitlines())) <= 40


def test_a_job_without_answers_is_listed() -> None:
    silent = snapshot(progress=None, steps=None)
    failed = snapshot(progress=None, status="failed", failure="Broken: line 1\n  line 2 [x]")
    shown = drawn(jobs_table([silent, failed]), width=200).splitlines()
    assert "–/–" in shown[1]
    assert "failed: Broken: line 1 line 2 [x]" in shown[2]


@pytest.mark.parametrize(
    ("values", "drawing"),
    [([], ""), ([1.0, 1.0], "▁▁"), ([0.0, None, 1.0], "▁ █"), ([-1.0, 0.0, 1.0], "▁▅█")],
)
def test_sparkline(values: list[float | None], drawing: str) -> None:
    assert sparkline(values) == drawing


@pytest.mark.parametrize(
    "rewards", [{1: 0.5}, {1: 0.0, 2: 0.0}, {7: -3.0, 8: 5.0}, {i: 0.1 * i for i in range(1, 200)}]
)
def test_the_plot_spans_its_values(rewards: dict[int, float]) -> None:
    plot = reward_plot(rewards)
    assert f"{max(1.0, *rewards.values()):.2f} |" in plot
    assert any("\u2801" <= character <= "\u28ff" for character in plot)


def test_words() -> None:
    assert [duration(one) for one in (0.4, 59, 60, timedelta(hours=2, minutes=3))] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "2 h 03 min",
    ]
    assert count(1234567.8) == "1 234 568"


def test_the_report_adds_up_and_ends_with_a_line_for_scripts() -> None:
    metrics = {version: METRICS.model_copy(update={"staleness_max": 1}) for version in (1, 2)}
    report = JobReport(
        before=None,
        after=None,
        metrics=metrics,
        steps={0: step_result(1), 1: step_result(2)},
        wall={"servers and workers": 5.0, "start of the job": 5.0, "training": 90.0},
    )
    console = Console(file=io.StringIO(), width=100)
    print_report(report, console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["rollout", "10.0", "5.00", "50", "%", "9.0"] in rows
    assert ["total", "20.0", "10.00", "100", "%"] in rows
    assert ["training", "90.0", "90", "%"] in rows
    assert ["total", "100.0", "100", "%"] in rows
    assert ["largest", "staleness", "1"] in rows
    assert report.result_line == (
        "RESULT held_out_before=none held_out_after=none greedy_before=none greedy_after=none "
        "steps=2 train_minutes=1.50"
    )


@pytest.mark.parametrize(("rewards", "shown"), [((0.25, 0.5), False), ((0.3, 0.65), True)])
def test_the_mean_reward_is_shown_where_it_is_not_the_accuracy(
    rewards: tuple[float, float], shown: bool
) -> None:
    before, after = (
        EvaluationDocument(
            key=JobKey(tenant="acme", job="sums"),
            version=version,
            prompts=2,
            samples=4,
            accuracy=accuracy,
            greedy_accuracy=0.5,
            reward_mean=reward,
            failed_samples=0,
            greedy_completions=(),
        )
        for version, accuracy, reward in ((0, 0.25, rewards[0]), (1, 0.5, rewards[1]))
    )
    console = Console(file=io.StringIO(), width=100)
    print_report(JobReport(before=before, after=after, metrics={}, steps={}, wall={}), console)
    assert isinstance(console.file, io.StringIO)
    rows = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["accuracy", "avg@4,", "2", "prompts", "0.250", "0.500", "+0.250"] in rows
    assert (["mean", "reward,", "avg@4", "0.300", "0.650", "+0.350"] in rows) == shown
