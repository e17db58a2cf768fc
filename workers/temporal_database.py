"""The database file of Temporal's dev server."""

import sqlite3
from contextlib import closing
from pathlib import Path


def discard_unfinished(database: Path) -> None:
    """Deletes a database whose server was killed before it had made it; it would never start on it again.

    The server makes the tables of a file that is not there yet, and then the namespaces. So one without a
    namespace has never served, and holds nothing. A file that cannot be read is left for the server to
    complain of.
    """
    if database.exists() and not _has_namespace(database):
        for file in (database, *(database.with_name(database.name + end) for end in ("-wal", "-shm"))):
            file.unlink(missing_ok=True)


def _has_namespace(database: Path) -> bool:
    try:
        with closing(sqlite3.connect(database)) as connection:
            tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'namespaces'"
            if connection.execute(tables).fetchone() is None:
                return False
            return connection.execute("SELECT 1 FROM namespaces LIMIT 1").fetchone() is not None
    except sqlite3.DatabaseError:
        return True
