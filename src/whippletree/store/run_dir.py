"""One run's directory: `config.toml`, `run.sqlite`, `checkpoints/`, `report.html`, `figures/`.

Invariant: everything of a training step is committed in one transaction, after its checkpoint is on the disk, so that
a process killed at any moment leaves a run that resumes after its last complete step.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from whippletree.errors import StoreError
from whippletree.store import checkpoints as cp
from whippletree.store import records, words
from whippletree.store.disk import MIN_FREE_BYTES, check_free_space, storing, sync_path, sync_tree
from whippletree.store.lock import WriteLock
from whippletree.store.schema import create_database, open_database
from whippletree.store.where import Where
from whippletree.types import Json, ModelCall, Purpose, Rollout, Score

KEEP_LAST = 2
"""Checkpoints that are kept beside those marked to be kept."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one training step leaves beside its rollouts."""

    step: int
    policy_version: int
    wall_s: float
    cpu_s: float
    scheduler_state: Json = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])


class ResumePoint(NamedTuple):
    next_step: int
    """0 for a run without a resumable step."""
    checkpoint: Path | None
    scheduler_state: Json


class Evaluation(NamedTuple):
    """The cells stored under one name for one policy after one step."""

    name: str
    label: str
    step: int
    num_cells: int


class RunStore:
    """Reads and writes one run directory; a context manager. Calls must not overlap."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: WriteLock | None) -> None:
        self.path = path
        self._db = connection
        self._lock = lock
        self._tool_lists: dict[bytes, words.Tools] = {}
        """Those that were read."""

    @classmethod
    def create(
        cls, path: Path, config_toml: str, meta: Mapping[str, Json], *, min_free_bytes: int = MIN_FREE_BYTES
    ) -> Self:
        """Make a new run directory at `path`, which must be absent or empty, and open it for writing."""
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            hint = "resume it or choose another path" if (path / "run.sqlite").exists() else "choose another path"
            raise StoreError(f"{path} exists already: {hint}")
        check_free_space(path, min_free_bytes)
        target = path.absolute()
        building = target.with_name(f".{target.name}.creating-{os.getpid()}")
        try:
            for folder in ("checkpoints", "figures"):
                (building / folder).mkdir(parents=True)
            (building / "config.toml").write_text(config_toml, encoding="utf-8")
            connection = create_database(building / "run.sqlite")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", [(k, json.dumps(v)) for k, v in meta.items()])
            connection.close()
            sync_tree(building)
            building.rename(target)  # the directory appears as a whole or not at all
            sync_path(target.parent)
        except (OSError, sqlite3.OperationalError) as error:
            shutil.rmtree(building, ignore_errors=True)
            raise StoreError(f"{path} cannot be created ({error}): check the path and its permissions") from error
        return cls.open(path, min_free_bytes=min_free_bytes)

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False, min_free_bytes: int = MIN_FREE_BYTES) -> Self:
        """Open an existing run: to write, alone; or to read, at any time, also while it is being written."""
        if not path.exists():
            raise StoreError(f"{path} does not exist: check the path, `whippletree runs` lists the runs")
        if not (path / "run.sqlite").is_file():
            raise StoreError(f"{path} is not a run directory, it has no run.sqlite: give the directory of a run")
        if read_only:
            return cls(path, open_database(path / "run.sqlite", read_only=True), None)
        check_free_space(path, min_free_bytes)
        lock = WriteLock(path)
        try:
            store = cls(path, open_database(path / "run.sqlite", read_only=False), lock)
        except StoreError:
            lock.release()
            raise
        cp.remove_unfinished(store._checkpoints)
        return store

    def close(self) -> None:
        """Safe to call twice."""
        self._db.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ------------------------------------------------------------------------------------------------

    def write_checkpoint(self, step: int, write: Callable[[Path], None], *, keep: bool = False) -> Path:
        """Store what `write` puts into the directory it is given; comes before the step's `commit_step`.

        The checkpoint is whole or absent, whenever the process ends. `keep` excepts it from pruning.
        """
        self._must_write()
        try:
            with storing(self.path, f"the checkpoint of step {step}"):
                return cp.write_checkpoint(self._checkpoints, step, write, keep=keep)
        except BaseException:
            cp.remove_unfinished(self._checkpoints)  # gives a full disk its room back
            raise

    def keep_checkpoint(self, step: int) -> None:
        """Except a written checkpoint from pruning."""
        self._must_write()
        path = cp.checkpoint_path(self._checkpoints, step)
        if not path.exists():
            raise StoreError(f"{self.path} has no checkpoint of step {step}: there are {sorted(self.checkpoints())}")
        cp.mark_kept(path)

    def commit_step(self, record: StepRecord, rollouts: Iterable[Rollout]) -> None:
        """Store one training step in one transaction, then prune the older checkpoints."""
        step = record.step
        with self._transaction(f"step {step}"):
            if self._db.execute("SELECT 1 FROM steps WHERE step = ?", (step,)).fetchone():
                raise StoreError(f"{self.path} holds step {step} already: truncate the run after step {step - 1} first")
            state = json.dumps(record.scheduler_state)
            row = (step, record.policy_version, record.wall_s, record.cpu_s, state)
            self._db.execute("INSERT INTO steps VALUES (?, ?, ?, ?, ?)", row)
            metrics = [(step, name, float(value)) for name, value in record.metrics.items()]
            self._db.executemany("INSERT INTO metrics VALUES (?, ?, ?)", metrics)
            self._insert_rollouts(rollouts)
        # A commit outlives the process but, until the log is flushed, not a power cut; the older checkpoints must
        # stay until the step that replaces them is safe from both.
        sync_path(self.path / "run.sqlite-wal")
        cp.prune_checkpoints(self._checkpoints, step, KEEP_LAST)

    def commit_scores(
        self, name: str, label: str, step: int, scores: Iterable[Score], rollouts: Iterable[Rollout] = ()
    ) -> None:
        """Store a chunk of finished cells of evaluation `name` of the policy `label` after `step`."""
        with self._transaction(f"a chunk of evaluation {name!r}"):
            rows = [(name, label, step, *records.score_row(score)) for score in scores]
            self._db.executemany(
                f"INSERT OR REPLACE INTO scores (name, label, step, {records.SCORE_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)",
                rows,
            )
            # A cell of two sets, or one that is evaluated again, gives the same rollout again.
            known = {
                rollout_id for (rollout_id,) in self._db.execute("SELECT id FROM rollouts WHERE purpose != 'train'")
            }
            self._insert_rollouts(rollout for rollout in rollouts if rollout.id not in known)

    def truncate_after(self, step: int) -> None:
        """Forget everything later than `step`: rows, checkpoints, and unfinished checkpoints."""
        with self._transaction(f"the truncation after step {step}"):
            for table in ("steps", "rollouts", "metrics", "scores"):  # calls go with their rollouts
                self._db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))
        cp.remove_unfinished(self._checkpoints)
        for later, path in self.checkpoints().items():
            if later > step:
                cp.remove_checkpoint(path)

    def set_meta(self, key: str, value: Json) -> None:
        with self._transaction(f"meta {key!r}"):
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def write_file(self, name: str, content: str | bytes) -> Path:
        """Write `report.html`, `figures/curves.png` and the like, whole or not at all."""
        path = self.path / name
        temporary = path.with_name(f".{path.name}.writing")
        with storing(self.path, name):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
            temporary.replace(path)
        return path

    # ---- reading ------------------------------------------------------------------------------------------------

    @property
    def config_toml(self) -> str:
        return (self.path / "config.toml").read_text(encoding="utf-8")

    def meta(self) -> dict[str, Json]:
        return {key: json.loads(value) for key, value in self._db.execute("SELECT key, value FROM meta")}

    def checkpoints(self) -> dict[int, Path]:
        """Complete checkpoints by step, in order."""
        return cp.list_checkpoints(self._checkpoints)

    def resume_point(self) -> ResumePoint:
        """After the last committed step that has a checkpoint; `truncate_after(next_step - 1)` clears the rest."""
        for step, path in reversed(self.checkpoints().items()):
            row = self._db.execute("SELECT scheduler_state FROM steps WHERE step = ?", (step,)).fetchone()
            if row is not None:
                return ResumePoint(step + 1, path, json.loads(row[0]))
        return ResumePoint(0, None, None)

    def num_steps(self) -> int:
        return self._db.execute("SELECT count(*) FROM steps").fetchone()[0]

    def last_metrics(self) -> dict[str, float]:
        """All metrics of the last committed step; empty before the first."""
        query = "SELECT name, value FROM metrics WHERE step = (SELECT max(step) FROM steps)"
        return {name: _number(value) for name, value in self._db.execute(query)}

    def steps(self) -> list[StepRecord]:
        """All committed steps in order, with their metrics."""
        metrics: dict[int, dict[str, float]] = {}
        for step, name, value in self._db.execute("SELECT step, name, value FROM metrics ORDER BY name"):
            metrics.setdefault(step, {})[name] = _number(value)
        rows = self._db.execute("SELECT step, policy_version, wall_s, cpu_s, scheduler_state FROM steps ORDER BY step")
        return [StepRecord(s, v, wall, cpu, json.loads(state), metrics.get(s, {})) for s, v, wall, cpu, state in rows]

    def rollouts(
        self, *, step: int | None = None, purpose: Purpose | None = None, with_calls: bool = False
    ) -> list[Rollout]:
        """Rollouts in the order in which they were stored; `calls` is empty unless `with_calls`."""
        clause, values = _where(step=step, purpose=purpose)
        return list(self._rollouts(clause, values, with_calls))

    def select(self, conditions: Where, *, with_calls: bool = True) -> Iterator[Rollout]:
        """Rollouts that meet the conditions, in the order in which they were stored, read one after the other."""
        return self._rollouts(f"WHERE {conditions.sql}", conditions.values, with_calls)

    def rollout(self, id: str) -> Rollout:
        """One rollout with its calls."""
        for found in self.select(Where("id = ?", (id,))):
            return found
        raise StoreError(f"{self.path} has no rollout {id!r}: `rollouts()` gives the ids")

    def calls(self, rollout_id: str) -> tuple[ModelCall, ...]:
        """The calls of one rollout in order."""
        return self.rollout(rollout_id).calls

    def metric_names(self) -> list[str]:
        return [name for (name,) in self._db.execute("SELECT DISTINCT name FROM metrics ORDER BY name")]

    def metric(self, name: str) -> list[tuple[int, float]]:
        """(step, value) in order of step; empty for an unknown name."""
        rows = self._db.execute("SELECT step, value FROM metrics WHERE name = ? ORDER BY step", (name,))
        return [(step, _number(value)) for step, value in rows]

    def evaluations(self) -> list[Evaluation]:
        """What `scores` can be asked for."""
        rows = self._db.execute("SELECT name, label, step, count(*) FROM scores GROUP BY name, label, step")
        return [Evaluation(*row) for row in rows]

    def scores(self, name: str, label: str | None = None, step: int | None = None) -> list[Score]:
        """Cells of an evaluation: of one policy and step, or of all."""
        where, values = _where(name=name, label=label, step=step)
        query = f"SELECT {records.SCORE_COLUMNS} FROM scores {where} ORDER BY label, step, harness, task_id"
        return [records.score_of(row) for row in self._db.execute(query, values)]

    def finished_cells(self, name: str, label: str, step: int | None = None) -> set[tuple[str, str]]:
        """(harness, task id) of the cells that need not be evaluated again, at `step` or at any."""
        where, values = _where(name=name, label=label, step=step)
        return set(self._db.execute(f"SELECT harness, task_id FROM scores {where}", values))

    # ---- inside -------------------------------------------------------------------------------------------------

    @property
    def _checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def _must_write(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path} is open for reading only: open it for writing")

    @contextmanager
    def _transaction(self, what: str) -> Generator[None]:
        self._must_write()
        with storing(self.path, what):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()  # does nothing where SQLite has rolled back by itself
                raise

    def _insert_rollouts(self, rollouts: Iterable[Rollout]) -> None:
        last = self._db.execute("SELECT coalesce(max(key), 0) FROM rollouts").fetchone()[0]
        for key, rollout in enumerate(rollouts, last + 1):
            self._db.execute(
                f"INSERT INTO rollouts (key, {records.ROLLOUT_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                (key, *records.rollout_row(rollout)),
            )
            lists = words.tool_lists(rollout.calls)
            self._db.executemany("INSERT OR IGNORE INTO tool_lists VALUES (?, ?)", [found[1:] for found in lists])
            self._db.executemany(
                f"INSERT INTO calls (rollout, {records.CALL_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                records.call_rows(key, rollout.calls, lists),
            )

    def _rollouts(self, clause: str, values: Iterable[str | float], with_calls: bool) -> Iterator[Rollout]:
        query = f"SELECT key, {records.ROLLOUT_COLUMNS} FROM rollouts {clause} ORDER BY key"
        for key, *row in self._db.execute(query, tuple(values)).fetchall():
            yield records.rollout_of(tuple(row), self._calls(key) if with_calls else ())

    def _calls(self, key: int) -> tuple[ModelCall, ...]:
        query = f"SELECT {records.CALL_COLUMNS} FROM calls WHERE rollout = ? ORDER BY position"
        return records.calls_of(self._db.execute(query, (key,)), self._tools)

    def _tools(self, hash: bytes) -> words.Tools:
        if hash not in self._tool_lists:
            (blob,) = self._db.execute("SELECT tools FROM tool_lists WHERE hash = ?", (hash,)).fetchone()
            self._tool_lists[hash] = words.tools_of(blob)
        return self._tool_lists[hash]


def _where(**columns: str | int | None) -> tuple[str, list[str | int]]:
    given = {column: value for column, value in columns.items() if value is not None}
    clause = " AND ".join(f"{column} = ?" for column in given)
    return f"WHERE {clause}" if clause else "", list(given.values())


def _number(value: float | None) -> float:
    return float("nan") if value is None else value  # SQLite keeps NaN as NULL
