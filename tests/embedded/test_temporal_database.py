"""A Temporal server that was killed in its very first start must not keep the stack from ever starting."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from marlaas.tests.embedded.harness import UpProcess
from marlaas.workers.temporal_database import discard_unfinished

UNFINISHED = {
    "nothing": (),
    "other tables": ("CREATE TABLE tasks (x)",),
    "no namespace": ("CREATE TABLE namespaces (x)",),
}


def write(database: Path, *statements: str) -> None:
    database.parent.mkdir(parents=True, exist_ok=True)
    database.touch()
    with closing(sqlite3.connect(database)) as connection:
        for statement in ("PRAGMA journal_mode=wal", *statements):
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("state", UNFINISHED)
def test_the_stack_starts_on_a_database_that_was_not_finished(
    run_up: Callable[..., UpProcess], data: Path, state: str
) -> None:
    write(data / "temporal" / "temporal.db", *UNFINISHED[state])
    assert b"addresses" in run_up().answer()


def test_a_database_that_has_served_or_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    served, broken = tmp_path / "served.db", tmp_path / "broken.db"
    write(served, "CREATE TABLE namespaces (x)", "INSERT INTO namespaces VALUES (1)")
    broken.write_bytes(b"no database" * 1000)
    for database in (served, broken, tmp_path / "none.db"):
        before = database.read_bytes() if database.exists() else None
        discard_unfinished(database)
        assert (database.read_bytes() if database.exists() else None) == before
