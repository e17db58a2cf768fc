"""A watched job as plain lines, for pipes and log files: one for each thing that happens."""

from collections.abc import Iterator

from ..jobs.snapshot import JobSnapshot
from .words import held_out, number, outcome, position, set_to, step_report


class NewsLines:
    """Says what is new in each snapshot after the one before."""

    def __init__(self) -> None:
        self._state = ""
        self._version: int | None = None
        self._evaluated: set[int] = set()
        self._set = 0
        self._problems: set[tuple[str, str]] = set()

    def news(self, snapshot: JobSnapshot) -> Iterator[str]:
        """The lines that a snapshot adds."""
        name = snapshot.job
        if snapshot.state != self._state and not snapshot.is_over:
            self._state = snapshot.state
            yield f"{name} {snapshot.state}, step {position(snapshot)}"
        yield from (f"{name} {line}" for line in self._settings(snapshot))
        yield from (f"{name} {line}" for line in self._commits(snapshot))
        yield from (f"{name} {line}" for line in self._evaluations(snapshot))
        yield from (f"{name} {line}" for line in self._new_problems(snapshot))
        if snapshot.is_over:
            yield f"{name} {outcome(snapshot)}"

    def _commits(self, snapshot: JobSnapshot) -> Iterator[str]:
        newest, known = snapshot.version, self._version
        if newest is None or newest == known:
            return
        self._version = newest
        last = snapshot.progress.last if snapshot.progress else None
        # What was committed before the watch began is not news.
        for version in range(newest if known is None else known + 1, newest + 1):
            if last is not None and last.revision.version == version:
                yield f"version {version}: {step_report(last)}"
            elif version > 0 and len(snapshot.rewards) > newest - version:
                yield f"version {version}: reward {number(snapshot.rewards[version - newest - 1])}"

    def _settings(self, snapshot: JobSnapshot) -> Iterator[str]:
        settings = snapshot.progress.settings if snapshot.progress else ()
        yield from map(set_to, settings[self._set :])
        self._set = max(self._set, len(settings))

    def _evaluations(self, snapshot: JobSnapshot) -> Iterator[str]:
        for one in snapshot.evaluations:
            if one.version not in self._evaluated:
                self._evaluated.add(one.version)
                yield f"held-out accuracy of {held_out(one)}"

    def _new_problems(self, snapshot: JobSnapshot) -> Iterator[str]:
        current = {(problem.kind, problem.where): problem for problem in snapshot.problems}
        for key, problem in current.items():
            if key not in self._problems:
                yield str(problem)
        for kind, where in sorted(self._problems - current.keys()):
            yield f"no more {kind}: {where}"
        self._problems = set(current)
