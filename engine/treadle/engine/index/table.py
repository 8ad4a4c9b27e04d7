"""The index itself: a table of the runs in a database of this process, gone with it.

It holds what listings select, sort and count by. SQLite, because it is in Python, finds a page of
a hundred thousand rows in about a millisecond, and moves to a file of its own when memory is short.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from treadle.engine.index.queries import NONE_BELOW, Sql, label_row, selection
from treadle.sdk.listing.facts import Facts
from treadle.sdk.listing.wire import ANSWERED_MAX, RunFound, RunsAsked, RunsFound

CACHE_KIB = 64 * 1024
"""Pages kept in memory; what is more is in a temporary file."""
RARE_MAX = 2_000
"""So many runs are sorted in about a millisecond."""
DELETED = ""
"""Status of a key that holds a deletion: a message like any other, and no run."""
_DELETION = Facts(run="", workflow="", definition="", status=DELETED)

_SCHEMA = """
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    sequence INTEGER NOT NULL,
    first INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    status TEXT NOT NULL,
    requested_ms INTEGER NOT NULL,
    requested INTEGER NOT NULL,
    lane TEXT NOT NULL,
    parent TEXT NOT NULL,
    labels BLOB NOT NULL
);
CREATE TABLE label (
    run INTEGER NOT NULL, key TEXT NOT NULL, kind TEXT NOT NULL, value NOT NULL
);
"""
_INDEXES = """
CREATE INDEX run_at ON run (requested_ms, key);
CREATE INDEX run_of_workflow ON run (workflow, status, requested_ms, key);
CREATE INDEX run_of_status ON run (status, requested_ms, key);
CREATE INDEX run_of_lane ON run (lane, status, requested) WHERE lane != '';
CREATE INDEX run_of_parent ON run (parent, requested_ms, key) WHERE parent != '';
CREATE INDEX run_sequence ON run (sequence);
CREATE INDEX label_value ON label (key, kind, value, run);
CREATE INDEX label_run ON label (run, key, kind, value);
"""
_KNOWN = "SELECT id, labels FROM run WHERE key = ?"
_INSERT = """
INSERT INTO run (key, sequence, first, workflow, status, requested_ms, requested, lane, parent,
    labels)
VALUES (?1, ?2, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
"""
_UPDATE = """
UPDATE run SET sequence = ?2, workflow = ?3, status = ?4, requested_ms = ?5, requested = ?6,
    lane = ?7, parent = ?8, labels = ?9
WHERE key = ?1
"""


class Table:
    """The runs of a namespace up to a sequence of their bucket."""

    def __init__(self) -> None:
        # No file that anybody could name: the pages of an unnamed database spill into one.
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)
        self._is_ready = False
        self.position = 0
        """Everything up to this sequence is in the table."""

    def be_ready(self) -> None:
        """Prepare for questions: half the work if it is done after the first reading."""
        if not self._is_ready:
            self._db.executescript(_INDEXES)
            self._is_ready = True

    def close(self) -> None:
        """Give the memory back."""
        self._db.close()

    def put(self, runs: Iterable[tuple[str, int, Facts | None]]) -> None:
        """Take documents: key, sequence, and what they say; None is a deletion."""
        self._db.execute("BEGIN")
        for key, sequence, facts in runs:
            self._put(key, sequence, facts)
            self.position = max(self.position, sequence)
        self._db.execute("COMMIT")

    def _put(self, key: str, sequence: int, facts: Facts | None) -> None:
        run = facts or _DELETION
        labels = msgspec.json.encode(run.metadata) if run.metadata else b""
        at_ms, requested = run.requested_ms, run.place
        parent = run.parent.run if run.parent else ""
        of_run = (run.workflow, run.status, at_ms, requested, run.lane, parent)
        values = (key, sequence, *of_run, labels)
        known = self._db.execute(_KNOWN, (key,)).fetchone()
        if known is None:
            id = self._db.execute(_INSERT, values).lastrowid or 0
        else:
            id, before = known
            self._db.execute(_UPDATE, values)
            if labels == before:
                return
            self._db.execute("DELETE FROM label WHERE run = ?", (id,))
        if run.metadata:
            rows = [label_row(id, *item) for item in run.metadata.items()]
            self._db.executemany("INSERT INTO label VALUES (?, ?, ?, ?)", rows)

    def remove(self, keys: Iterable[tuple[str, int]]) -> int:
        """Forget keys that are still what they were at these sequences; return how many."""
        count = 0
        self._db.execute("BEGIN")
        for each in keys:
            gone = self._db.execute(
                "DELETE FROM run WHERE key = ? AND sequence = ? RETURNING id", each
            ).fetchall()
            self._db.executemany("DELETE FROM label WHERE run = ?", gone)
            count += len(gone)
        self._db.execute("COMMIT")
        return count

    def count_first_seen(self, up_to: int) -> int:
        """Return how many keys were first seen at a sequence up to that one."""
        return self._count("first <= ?", up_to)

    def between(self, after: int, up_to: int) -> dict[str, int]:
        """Return the keys last stored in a range of sequences, with these."""
        rows = self._db.execute(
            "SELECT key, sequence FROM run WHERE sequence > ? AND sequence <= ?", (after, up_to)
        )
        return dict(rows.fetchall())

    # ---------------------------------------------------------------- questions

    def answer(self, asked: RunsAsked) -> RunsFound:
        """Return what the table knows."""
        self.be_ready()
        limit = min(asked.limit, ANSWERED_MAX)
        where, values = selection(asked.filter, self._is_rare)
        runs: list[RunFound] = []
        is_more = False
        if limit:
            below = asked.below or NONE_BELOW
            rows = self._db.execute(
                f"SELECT key, requested_ms, status, lane, requested FROM run WHERE {where} "
                "AND (requested_ms, key) < (?, ?) ORDER BY requested_ms DESC, key DESC LIMIT ?",
                (*values, *below, limit + 1),
            ).fetchall()
            is_more = len(rows) > limit
            runs = [self._found(*row) for row in rows[:limit]]
        counts: dict[str, int] = {}
        if asked.counts:
            counts = dict(
                self._db.execute(
                    f"SELECT status, count(*) FROM run WHERE {where} GROUP BY status", values
                ).fetchall()
            )
        known = tuple(key for key in asked.known if self._has(key))
        return RunsFound(
            position=self.position, runs=tuple(runs), is_more=is_more, known=known, counts=counts
        )

    def _found(
        self, key: str, requested_ms: int, status: str, lane: str, requested: int
    ) -> RunFound:
        if status != "queued" or not lane:
            return RunFound(key, requested_ms)
        of_lane = "lane = ? AND lane != '' AND requested < ? AND status"
        before = self._count(f"{of_lane} = 'queued'", lane, requested)
        active = self._db.execute(
            f"SELECT key FROM run WHERE {of_lane} IN ('running', 'paused', 'parked') "
            "ORDER BY requested",
            (lane, requested),
        ).fetchall()
        return RunFound(key, requested_ms, before + len(active), active[0][0] if active else "")

    def _has(self, key: str) -> bool:
        row = self._db.execute("SELECT status FROM run WHERE key = ?", (key,)).fetchone()
        return row is not None and row[0] != DELETED

    def _is_rare(self, condition: str, values: list[Sql]) -> bool:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM label WHERE {condition} LIMIT {RARE_MAX})"
        return int(self._db.execute(sql, values).fetchone()[0]) < RARE_MAX

    def _count(self, sql: str, *values: str | int) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM run WHERE {sql}", values).fetchone()
        return int(count)
