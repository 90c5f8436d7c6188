import json

import pytest

from whippletree.errors import HarnessError
from whippletree.harness.edits import Edit, apply
from whippletree.harness.files import read_edits, read_spec, to_toml
from whippletree.harness.levels import paper_base

TURNS = Edit("limits.max_turns", 30, 40)


def named(name):
    if name != "base":
        raise HarnessError(f"there is no harness '{name}'")
    return paper_base()


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return path

    return write


def test_what_is_written_is_read(write):
    changes = (TURNS, Edit("workflow.plan_missing", paper_base().workflow.plan_missing, "a 'plan', \"'''\\ first\n"))
    for edits in (changes, (TURNS,)):
        found = read_spec(write("patient.toml", to_toml("base", edits, direction='gives up "early"')), named)
        assert found == apply(paper_base(), edits, id="patient", direction='gives up "early"')
    assert read_spec(write("patient.toml", to_toml("base", changes, id="x")), named).id == "x"


def test_a_file_may_be_json_with_edits_as_tables_and_stand_on_another_file(write):
    write("deep/patient.toml", to_toml("base", (TURNS,)))
    tables = [{"path": "context.trigger_turns", "after": 7}]
    found = read_spec(write("both.json", {"base": "deep/patient.toml", "edits": tables}), named)
    assert (found.limits.max_turns, found.context.trigger_turns, found.parent) == (40, 7, "patient")


def test_a_file_may_hold_a_whole_spec(write):
    spec = paper_base()
    data = spec.model_dump(mode="json")
    assert read_spec(write("a.json", data), named) == spec
    assert read_spec(write("b.json", {"hash": spec.content_hash, "spec": data}), named) == spec


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "base = ", ["a.toml is not TOML"]),
        ("a.json", "{", ["a.json is not JSON"]),
        ("a.json", "[]", ["a.json: the spec"]),
        ("a.toml", "base = 'base'", ["a.toml: edits", "required"]),
        ("a.toml", "base = 'base'\nedits = ''\nedit = 3", ["a.toml: edit:"]),
        ("a.toml", "base = 'x'\nedits = ''", ["no harness 'x'"]),
        ("a.toml", "base = 'a.toml'\nedits = ''", ["a.toml is its own base"]),
        ("a.toml", "base = 'b.toml'\nedits = ''", ["cannot read", "b.toml"]),
        ("a.toml", "base = 'base'\nedits = 'limits.max_turns: 20 -> 3'", ["a.toml", "is 30", "expects 20"]),
        ("a.toml", "base = 'base'\nedits = 'limits.max_turn: 30 -> 3'", ["a.toml", "no 'max_turn'"]),
        ("a.toml", "base = 'base'\nedits = 'limits.max_turns: 30'", ["a.toml, line 1", "expected ->"]),
    ],
)
def test_a_bad_file_is_named(write, name, text, words):
    with pytest.raises(HarnessError) as error:
        read_spec(write(name, text), named)
    assert [word for word in words if word not in str(error.value)] == []


def test_edits_alone_are_read(write, tmp_path):
    assert read_edits(write("a.edits", "limits.max_turns: 30 -> 40")) == (TURNS,)
    assert read_edits(write("a.json", [{"path": "limits.max_turns", "before": 30, "after": 40}])) == (TURNS,)
    with pytest.raises(HarnessError, match="cannot read"):
        read_edits(tmp_path / "none.edits")
