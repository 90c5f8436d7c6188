import sqlite3
from pathlib import Path

import pytest
from test_run_dir import SAID, do_step

from whippletree.errors import StoreError
from whippletree.store.run_dir import RunStore
from whippletree.store.where import where


@pytest.fixture
def store(tmp_path):
    with RunStore.create(tmp_path / "run", "", {}) as store:
        yield store


def change_database(path: Path, pragma: str) -> None:
    db = sqlite3.connect(path / "run.sqlite")
    db.execute(f"PRAGMA {pragma}")
    db.close()


def test_a_newer_schema_and_a_foreign_database_are_refused(store):
    store.close()
    change_database(store.path, "user_version=99")
    with pytest.raises(StoreError, match="schema version 99"):
        RunStore.open(store.path)
    change_database(store.path, "application_id=1")
    with pytest.raises(StoreError, match="another program"):
        RunStore.open(store.path)


WITHOUT_UPDATES = "ALTER TABLE calls DROP COLUMN updates; PRAGMA user_version=3;"
WITHOUT_PARTS = f"{WITHOUT_UPDATES} ALTER TABLE calls DROP COLUMN parts; PRAGMA user_version=2;"
DOWNGRADE = f"""
{WITHOUT_PARTS}
ALTER TABLE rollouts DROP COLUMN counts;
ALTER TABLE calls DROP COLUMN exchange;
ALTER TABLE calls DROP COLUMN tools;
DROP TABLE tool_lists;
PRAGMA user_version=1;
"""


def schema_of(path: Path) -> list[tuple]:
    with sqlite3.connect(path / "run.sqlite") as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        found = [(table, *column) for table in tables for column in db.execute(f"PRAGMA table_info({table})")]
    db.close()
    return found


def test_a_run_without_words_is_read_as_it_is_and_written_on_as_a_run_with_words(store):
    do_step(store, 0)
    store.close()
    schema = schema_of(store.path)
    db = sqlite3.connect(store.path / "run.sqlite")
    db.executescript(DOWNGRADE)
    db.close()
    with RunStore.open(store.path, read_only=True) as reader:
        old = reader.rollouts(with_calls=True)
        assert [r.id for r in reader.select(where(["passed=true"]))] == ["0-0", "0-1", "0-2"]
        with RunStore.open(store.path) as writer:
            do_step(writer, 1)
            assert [r.calls[0].exchange for r in writer.rollouts(with_calls=True)] == [None] * 3 + [SAID] * 3
        assert [r.calls[0].exchange for r in reader.rollouts(with_calls=True)] == [None] * 3 + [SAID] * 3
    assert all(r.counts == {} and c.exchange is None for r in old for c in r.calls)
    assert [c.completion_ids.tolist() for c in old[2].calls] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    assert schema_of(store.path) == schema


def test_a_run_without_parts_of_calls_is_read_as_it_is_and_written_on_with_them(store):
    do_step(store, 0)
    store.close()
    schema = schema_of(store.path)
    db = sqlite3.connect(store.path / "run.sqlite")
    db.executescript(WITHOUT_PARTS)
    db.close()
    with RunStore.open(store.path, read_only=True) as reader:
        assert [r.calls[0].exchange for r in reader.rollouts(with_calls=True)] == [SAID] * 3
        assert {call.parts for r in reader.rollouts(with_calls=True) for call in r.calls} == {None}
        with RunStore.open(store.path) as writer:
            do_step(writer, 1)
    assert schema_of(store.path) == schema
