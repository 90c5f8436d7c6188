import pytest

from whippletree.errors import HarnessError
from whippletree.harness.levels import paper_base, patched
from whippletree.harness.spec import HarnessSpec, parse_spec
from whippletree.harness.texts import fill


def test_round_trips_through_json():
    spec = paper_base()
    again = HarnessSpec.model_validate_json(spec.model_dump_json())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.content_hash == spec.content_hash


def test_hash_is_of_the_content_and_not_of_the_name():
    spec = paper_base()
    renamed = spec.model_copy(update={"id": "other", "parent": "base"})
    assert renamed != spec
    assert renamed.content_hash == spec.content_hash
    changed = patched(spec, {"limits.max_turns": 31}, "test")
    assert changed.content_hash != spec.content_hash


def test_hash_of_the_base_is_the_same_on_every_machine():
    assert paper_base().content_hash == "34015901f777ee95"


def test_fill_goes_over_the_text_once():
    assert fill("{a} and {b} {}", {"a": "{b}", "b": "x"}) == "{b} and x {}"


SCHEMA = {"type": "object", "required": ["line"], "properties": {"line": {"type": "string"}}}


def tool(**changes):
    return {"name": "t", "description": "", "parameters": SCHEMA, **changes}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"prompt.usr": "x"}, ["prompt.usr", '"x"']),
        ({"prompt.user": "go"}, ["prompt.user", "{instruction}", '"go"']),
        ({"prompt.user": "{instruction} {task}"}, ["prompt.user", "{task}"]),
        ({"observation.template": "{outptu}"}, ["observation.template", "outptu"]),
        ({"limits.max_turns": 0}, ["limits.max_turns", "got 0"]),
        ({"context": {"trigger_turns": 2, "keep_turns": 3}}, ["keep_turns is 3", "trigger_turns (2)"]),
        ({"context.path": "../notes"}, ["context.path", "inside the workspace", "../notes"]),
        ({"tools": []}, ["at least one tool"]),
        ({"tools": [tool()]}, ["tools.0", "stands for t", "execute_bash"]),
        ({"tools": [tool(alias_of="execute_bash")]}, ["one to one", "got line"]),
        ({"tools": [tool(alias_of="execute_bash", argument_aliases={"x": "command"})]}, ["no argument x"]),
        ({"tools": [tool(alias_of="file_editor", argument_aliases={"line": "path"})]}, ["must require command"]),
        ({"tools": [tool(distractor=True)]}, ["error text"]),
        ({"tools": [tool(parameters={"type": "string"})]}, ["JSON schema"]),
        ({"tools.execute_bash.name": "a b"}, ["tools.0.name", "a b"]),
        ({"tools.execute_bash": {"name": "file_editor", "alias_of": "execute_bash"}}, ["file_editor is there twice"]),
        ({"tools.execute_bash.pool": "p", "name_pools.p": []}, ["pool p has 0 names"]),
        ({"tools.execute_bash.pool": "p", "name_pools.p": ["file_editor"]}, ["file_editor is there twice"]),
    ],
)
def test_a_bad_spec_names_place_key_and_value(patch, words):
    with pytest.raises(HarnessError) as error:
        patched(paper_base(), patch, "mine.toml")
    for word in ["mine.toml", *words]:
        assert word in str(error.value)


def test_two_tools_may_not_stand_for_one():
    aliases = [tool(name=name, alias_of="execute_bash", argument_aliases={"line": "command"}) for name in ("a", "b")]
    with pytest.raises(HarnessError, match="alias of execute_bash is there twice"):
        patched(paper_base(), {"tools": aliases}, "test")


def test_a_spec_that_is_no_table_is_refused():
    with pytest.raises(HarnessError, match="evolved spec: the spec"):
        parse_spec([], "evolved spec")
