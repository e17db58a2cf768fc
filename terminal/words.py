"""Figures and states as people read them."""

from datetime import timedelta

from ..jobs.snapshot import JobSnapshot, OpenEvaluation, OpenStep
from ..schemas.events import EvaluationResult, StepProgress, StepResult
from ..schemas.settings import Setting


def number(value: float | None, digits: int = 3) -> str:
    """A figure, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def count(value: float) -> str:
    """A count with thousands apart."""
    return f"{value:,.0f}".replace(",", " ")


def duration(time: timedelta | float) -> str:
    """Seconds, or minutes and seconds, or hours and minutes."""
    seconds = round(time.total_seconds() if isinstance(time, timedelta) else time)
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def position(snapshot: JobSnapshot) -> str:
    """How many of its steps a job has committed."""
    done = "–" if snapshot.version is None else str(snapshot.version)
    return f"{done}/{'–' if snapshot.steps is None else snapshot.steps}"


def step_phase(step: OpenStep) -> str:
    """What an open step is at, with its groups."""
    if step.progress is None or step.progress.phase in ("rollout", "reward"):
        return groups_done(step)
    return f"waits for version {step.step}" if step.progress.phase == "turn" else step.progress.phase


def groups_done(work: OpenStep | OpenEvaluation) -> str:
    """How many groups of a set are sampled and scored."""
    if work.progress is None:
        return "does not answer"
    phase = work.progress.phase if isinstance(work.progress, StepProgress) else "sampling"
    return (
        f"{phase}: {work.groups_sampled} sampled, {work.progress.groups_scored} scored "
        f"of {work.progress.groups} groups"
    )


def step_report(result: StepResult) -> str:
    """What a step has come to, in one line."""
    metrics, seconds = result.metrics, result.seconds
    parts = [
        f"reward {number(metrics.reward_mean)}",
        f"{count(metrics.completion_tokens)} tokens",
        f"staleness {metrics.staleness_max}",
        f"{seconds.total:.1f} s (rollout {seconds.rollout:.1f}, reward {seconds.reward:.1f}, "
        f"train {seconds.train:.1f})",
    ]
    if metrics.failed_samples:
        parts.append(f"{metrics.failed_samples} of {metrics.samples} samples failed")
    if metrics.skipped:
        parts.append(f"no update: {metrics.skip_reason}")
    return ", ".join(parts)


def held_out(result: EvaluationResult) -> str:
    """The accuracy of a version, and its mean reward where that says more."""
    graded = f", reward {result.reward_mean:.3f}" if is_graded(result) else ""
    return f"version {result.version}: {result.accuracy:.3f} (greedy {result.greedy_accuracy:.3f}){graded}"


def is_graded(result: EvaluationResult) -> bool:
    """Whether there are rewards between those of right and wrong answers, which accuracy takes for wrong."""
    return result.reward_mean not in (None, result.accuracy)


def outcome(snapshot: JobSnapshot) -> str:
    """How a job ended, in one line."""
    if snapshot.result is None:
        why = f": {snapshot.failure}" if snapshot.failure not in (None, snapshot.status) else ""
        return f"{snapshot.status}{why}"
    return f"{snapshot.state} at version {snapshot.version}"


def set_to(setting: Setting) -> str:
    """What was set while a job ran, and from where on it acts."""
    return f"{setting.path} is {setting.value} from step {setting.from_step} on"
