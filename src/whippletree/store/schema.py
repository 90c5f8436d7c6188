"""The tables of `run.sqlite`, and how a connection to them is opened.

Invariant: a database is used only when its application id and schema version are ours. An older one is brought to this
version when it is opened for writing, and reads as if it had been: version 1 knew no words and no counts, version 2 no
parts of calls, version 3 no updates within them.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from whippletree.errors import StoreError

SCHEMA_VERSION = 4
APPLICATION_ID = 0x57484950  # "WHIP"

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, policy_version INTEGER NOT NULL, wall_s REAL NOT NULL, cpu_s REAL NOT NULL,
    scheduler_state TEXT NOT NULL);
CREATE TABLE rollouts (
    key INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task_id TEXT NOT NULL, task_kind TEXT NOT NULL,
    harness TEXT NOT NULL, step INTEGER NOT NULL, purpose TEXT NOT NULL, reward REAL, reward_parts TEXT,
    stop_reason TEXT NOT NULL, error TEXT, num_turns INTEGER NOT NULL, timings_s TEXT NOT NULL,
    counts TEXT NOT NULL DEFAULT '{}');
CREATE INDEX rollouts_by_step ON rollouts (step, purpose);
CREATE TABLE calls (
    rollout INTEGER NOT NULL REFERENCES rollouts (key) ON DELETE CASCADE, position INTEGER NOT NULL,
    "index" INTEGER NOT NULL, kind TEXT NOT NULL, shared INTEGER NOT NULL, prompt_tail BLOB NOT NULL,
    completion_ids BLOB NOT NULL, logprobs BLOB NOT NULL, policy_version INTEGER NOT NULL, finish_reason TEXT NOT NULL,
    temperature REAL NOT NULL, parse_error TEXT, cached_tokens INTEGER NOT NULL, exchange BLOB, tools BLOB,
    parts BLOB, updates TEXT);
CREATE UNIQUE INDEX calls_by_rollout ON calls (rollout, position);
CREATE TABLE tool_lists (hash BLOB PRIMARY KEY, tools BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE metrics (
    step INTEGER NOT NULL, name TEXT NOT NULL, value REAL, PRIMARY KEY (name, step)) WITHOUT ROWID;
CREATE TABLE scores (
    name TEXT NOT NULL, label TEXT NOT NULL, step INTEGER NOT NULL, harness TEXT NOT NULL, task_id TEXT NOT NULL,
    task_kind TEXT NOT NULL, passes TEXT NOT NULL, rewards TEXT NOT NULL,
    PRIMARY KEY (name, label, step, harness, task_id)) WITHOUT ROWID;
"""

UPGRADE_3 = "ALTER TABLE calls ADD COLUMN updates TEXT;"
UPGRADE_2 = f"ALTER TABLE calls ADD COLUMN parts BLOB; {UPGRADE_3}"
UPGRADE_1 = f"""
ALTER TABLE rollouts ADD COLUMN counts TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE calls ADD COLUMN exchange BLOB;
ALTER TABLE calls ADD COLUMN tools BLOB;
CREATE TABLE tool_lists (hash BLOB PRIMARY KEY, tools BLOB NOT NULL) WITHOUT ROWID;
{UPGRADE_2}
"""
UPGRADES = {1: UPGRADE_1, 2: UPGRADE_2, 3: UPGRADE_3}
"""From a version to this one."""

VIEWS = {
    1: """
PRAGMA temp_store=MEMORY;
CREATE TEMP VIEW rollouts AS SELECT *, '{}' AS counts FROM main.rollouts;
CREATE TEMP VIEW calls AS SELECT *, NULL AS exchange, NULL AS tools, NULL AS parts, NULL AS updates FROM main.calls;
""",
    2: """
PRAGMA temp_store=MEMORY;
CREATE TEMP VIEW calls AS SELECT *, NULL AS parts, NULL AS updates FROM main.calls;
""",
    3: """
PRAGMA temp_store=MEMORY;
CREATE TEMP VIEW calls AS SELECT *, NULL AS updates FROM main.calls;
""",
}
"""Makes a connection that may only read see an older version as this one; nothing is written."""


def create_database(path: Path) -> sqlite3.Connection:
    """A new database at `path` with empty tables, open for writing."""
    connection = _connect(path, "rwc")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.executescript(
        f"BEGIN; {TABLES} PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
    )
    return connection


def open_database(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open an existing database; raises StoreError where it is not one of ours or of a version that is not known."""
    try:
        connection = _connect(path, "ro" if read_only else "rw")
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path} cannot be read as a run's database ({error}): restore it from a copy") from error
    if found == APPLICATION_ID and version in UPGRADES:
        upgrade = f"BEGIN; {UPGRADES[version]} PRAGMA user_version={SCHEMA_VERSION}; COMMIT;"
        connection.executescript(VIEWS[version] if read_only else upgrade)
        version = SCHEMA_VERSION
    if found == APPLICATION_ID and version == SCHEMA_VERSION:
        return connection
    connection.close()
    if found != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: give the directory of a run")
    raise StoreError(
        f"{path} has schema version {version}, this program knows version {SCHEMA_VERSION}: "
        "use the version of whippletree that wrote the run" + (", or a newer one" if version > SCHEMA_VERSION else "")
    )


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    if mode == "ro" and not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists():
        uri += "&immutable=1"  # a reader of WAL needs to make an index file, which a read-only disk forbids
    # Transactions are begun and ended by hand; calls may come from several threads, but never at the same time.
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=NORMAL")
    except sqlite3.Error:
        connection.close()
        raise
    return connection
