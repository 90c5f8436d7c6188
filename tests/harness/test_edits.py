"""Edits: what they do to a spec, their algebra, their written forms, and how bad ones are refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import HarnessError
from whippletree.harness import edits
from whippletree.harness.edits import Edit, apply, compose, diff, invert
from whippletree.harness.levels import compose as level_spec
from whippletree.harness.levels import paper_base, paper_space
from whippletree.harness.places import tree

HOOK = {
    "action": "warn",
    "condition": "pagination_present",
    "event": "after_tool",
    "message": "go on.",
    "parameters": {},
}
PAGES = Edit("state.hooks.pages", None, HOOK)
TURNS = Edit("limits.max_turns", 30, 40)
RULES = next(section.text for section in paper_base().prompt.sections if section.name == "rules")
ROLE = next(section.text for section in paper_base().prompt.sections if section.name == "role")
BASH = paper_base().tools[0]

SPECS = [
    level_spec(paper_space(), paper_space().parse(name), paper_base())
    for name in ("S0T0O0C0W0", "S1T1O1C1W1", "S2T2O2C2W2", "S0T2O0C1W0")
]


def content(spec):
    """All but the names; the order of sections, of tools and of their arguments counts."""
    return tree(spec), [list(tool.properties) for tool in spec.tools]


def edited(*changes, spec=None):
    return apply(spec or paper_base(), [Edit(*change) for change in changes])


def test_an_edit_changes_one_place_and_the_child_knows_its_parent():
    child = apply(paper_base(), [PAGES], id="pager", direction="read all pages")
    assert child.state.hooks["pages"].message == "go on."
    assert (child.id, child.parent, child.direction) == ("pager", "base", "read all pages")
    assert child.content_hash != paper_base().content_hash
    assert apply(child, invert([PAGES])).content_hash == paper_base().content_hash
    assert apply(paper_base(), [PAGES]).id == f"base~{edits.digest([PAGES])[:8]}"


def test_everything_that_shapes_behaviour_has_a_path():
    spec = edited(
        ("prompt.sections.rules.text", RULES, "be brief."),
        ("prompt.user", "{instruction}", "task: {instruction}"),
        ("tools.execute_bash.description", BASH.description, "runs it"),
        ("tools.execute_bash.parameters.properties.command.description", _command_description(), "what to run"),
        ("context.trigger_turns", None, 7),
        ("workflow.plan_first", False, True),
        ("limits.max_errors", 3, None),
        ("draw", "level", "task"),
    )
    assert [section.text for section in spec.prompt.sections] == [ROLE, "be brief."]
    assert spec.tools[0].description == "runs it"
    assert spec.tools[0].properties["command"]["description"] == "what to run"
    assert (spec.context.trigger_turns, spec.limits.max_errors, spec.workflow.plan_first) == (7, None, True)


def _command_description():
    return BASH.properties["command"]["description"]


def test_named_things_are_added_moved_and_taken_away_with_their_place():
    task = ("prompt.sections.task", None, {"text": "look first.", "above": "rules"})
    spec = edited(task)
    assert [section.name for section in spec.prompt.sections] == ["role", "task", "rules"]
    moved = edited((task[0], task[2], {"text": "look first."}), spec=spec)
    assert [section.name for section in moved.prompt.sections] == ["role", "rules", "task"]
    gone = edited(("prompt.sections.role", {"text": ROLE, "above": "rules"}, None))
    assert [section.name for section in gone.prompt.sections] == ["rules"]


def test_a_tool_is_renamed_by_one_edit_out_and_one_in():
    table = tree(paper_base())["tools"][0]
    old = {key: value for key, value in table.items() if key != "name"} | {"above": "file_editor"}
    spec = edited(("tools.execute_bash", old, None), ("tools.run", None, old | {"alias_of": "execute_bash"}))
    assert [tool.name for tool in spec.tools] == ["run", "file_editor"]


def test_short_forms_mean_their_canonical_ones():
    short = Edit("state.hooks.x", None, {"event": "after_tool", "condition": "always", "action": "stop"})
    assert short.after["message"] == ""
    assert Edit("limits.max_turns", "30", 40) == TURNS
    assert Edit("limits.max_turns", None, 40) == TURNS
    assert Edit("context.trigger_turns", 3, None).after is None


@pytest.mark.parametrize(
    ("path", "before", "after", "words"),
    [
        ("limits.max_turn", 30, 40, ["limits has no 'max_turn'", "did you mean 'max_turns'"]),
        ("colour", None, "red", ["a spec has no 'colour'"]),
        ("id", "base", "x", ["a spec has no 'id'"]),
        ("limits.max_turns.x", 1, 2, ["limits.max_turns is one value"]),
        ("limits.max_turns", 30, 0, ["limits.max_turns", "greater than or equal to 1", "got 0"]),
        ("limits.max_turns", 30, 30, ["changes nothing"]),
        ("limits.max_turns", 30, None, ["changes nothing"]),
        ("prompt.user", "{instruction}", "go", ["prompt.user", "{instruction}"]),
        ("workflow.plan_missing", "x", None, ["workflow.plan_missing cannot be absent"]),
        ("prompt.sections.rules", None, "be brief", ["expected a table"]),
        ("prompt.sections.rules", None, {"txt": "be brief"}, ["prompt.sections.rules", "txt"]),
        ("prompt.sections.rules.name", "rules", "x", ["prompt.sections.rules has no 'name'"]),
        ("tools.execute_bash.parameters.properties.x", None, {}, ["table of free form", "edit the whole table"]),
        ("state.hooks.x", None, HOOK | {"condition": "pagination"}, ["state.hooks.x", "no condition 'pagination'"]),
        ("state.hooks.x", None, HOOK | {"action": "block"}, ["block does not fit after_tool"]),
        ("state.hooks.x.event", "after_tool", "never", ["state.hooks.x.event", "never"]),
        ("state.hook.x", None, HOOK, ["state has no 'hook'", "did you mean 'hooks'"]),
    ],
)
def test_an_edit_that_no_spec_can_take_is_refused_as_it_is_made(path, before, after, words):
    with pytest.raises(HarnessError) as error:
        Edit(path, before, after)
    assert [word for word in words if word not in str(error.value)] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("limits.max_turns", 20, 40)], ["edit of base", "limits.max_turns is 30", "expects 20"]),
        ([("state.hooks.x", HOOK, None)], ["state.hooks.x is null", '"pagination_present"']),
        ([("state.hooks.x.message", None, "go.")], ["there is no state.hooks.x; there is nothing"]),
        ([("prompt.sections.a", None, {"text": "x", "above": "b"})], ["above 'b'", "there is role, rules"]),
        ([("prompt.sections.role", {"text": ROLE}, None)], ["prompt.sections.role is", '"above": "rules"']),
        ([("tools", tree(paper_base())["tools"], [])], ["base, edited", "at least one tool"]),
        ([("context.keep_turns", 0, 5), ("context.trigger_turns", None, 2)], ["base, edited", "keep_turns is 5"]),
    ],
)
def test_an_edit_that_does_not_fit_the_spec_is_refused(changes, words):
    with pytest.raises(HarnessError) as error:
        edited(*changes)
    assert [word for word in words if word not in str(error.value)] == []


def test_edits_of_one_value_are_joined_and_conflicts_refused():
    message = Edit("state.hooks.pages.message", "go on.", "more.")
    gone = Edit("state.hooks.pages", HOOK | {"message": "more."}, None)
    assert compose([TURNS], [Edit("limits.max_turns", 40, 50)]) == (Edit("limits.max_turns", 30, 50),)
    assert compose([TURNS], invert([TURNS])) == ()
    assert compose([PAGES], [message]) == (PAGES, message)
    assert apply(paper_base(), compose([PAGES], [message, gone])).content_hash == paper_base().content_hash
    assert apply(paper_base(), [PAGES, message]).state.hooks["pages"].message == "more."
    assert PAGES.after == HOOK  # what is applied stays as it was
    for first, second in (
        ([TURNS], [TURNS]),
        ([PAGES], [PAGES]),
        ([PAGES], [Edit("state.hooks.pages.message", "x", "y")]),
        ([PAGES, message], [Edit("state.hooks.pages", HOOK, None)]),
        ([invert([PAGES])[0]], [message]),
    ):
        with pytest.raises(HarnessError, match="the edits conflict"):
            compose(first, second)


# ---- properties -------------------------------------------------------------------------------------------------

TEXT = st.text('ab{}"\\n# ->→.', max_size=6).filter(lambda text: "{" not in text)


@st.composite
def specs(draw):
    """A spec some edits away from one of the factor space."""
    spec = draw(st.sampled_from(SPECS))
    data = tree(spec)
    sections = {section["name"]: section for section in data["prompt"]["sections"]}
    for name in draw(st.lists(st.sampled_from(["role", "rules", "a", "b"]), unique=True)):
        sections[name] = {"name": name, "text": draw(TEXT)}
    order = draw(st.permutations(sorted(sections)))
    data["prompt"]["sections"] = [sections[name] for name in order if draw(st.integers(0, 3))]
    data["tools"] = draw(st.permutations(data["tools"]))
    data["limits"]["max_turns"] = draw(st.integers(1, 3))
    data["limits"]["max_errors"] = draw(st.none() | st.integers(1, 3))
    names = draw(st.lists(st.sampled_from(["x", "y", "z"]), unique=True))
    data["state"] = {"hooks": {name: HOOK | {"message": draw(TEXT) + "m"} for name in names}}
    return type(spec).model_validate({**data, "id": draw(st.sampled_from("pq"))})


@given(specs(), specs())
@settings(max_examples=20, deadline=None)
def test_a_difference_is_a_set_of_edits_that_can_be_undone(one, other):
    found = diff(one, other)
    assert content(apply(one, found)) == content(other)
    assert content(apply(other, invert(found))) == content(one)
    assert diff(one, one) == ()


@given(specs(), specs())
@settings(max_examples=10, deadline=None)
def test_edits_survive_being_written(one, other):
    found = diff(one, other)
    assert edits.from_text(edits.to_text(found), "here") == found
    assert edits.from_json(edits.to_json(found), "here") == found
    assert edits.digest(edits.from_json(edits.to_json(found), "here")) == edits.digest(found)


@given(specs(), specs(), specs())
@settings(max_examples=10, deadline=None)
def test_a_composition_does_what_its_sets_do_in_order(one, two, three):
    first, second = diff(one, two), diff(two, three)
    assert content(apply(one, compose(first, second))) == content(three)
    assert content(apply(one, compose(first, invert(first)))) == content(one)


# ---- written forms ----------------------------------------------------------------------------------------------


def test_a_text_may_have_comments_and_values_of_several_lines():
    text = """
    # two repairs
    limits.max_turns: 30 → 40  # longer
    state.hooks.pages:
      null -> {"event": "after_tool", "condition": "pagination_present",
               "action": "warn", "message": "go on."}
    # the end"""
    assert edits.from_text(text, "here") == (TURNS, PAGES)
    assert edits.from_text(" \n# nothing\n", "here") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limits.max_turns 30 -> 40", ["line 1", "a path and a colon"]),
        ("\nlimits.max_turns: 30 40", ["line 2", "expected ->", "got ' 40'"]),
        ("limits.max_turns: 30 -> forty", ["a JSON value", "got 'forty'"]),
        ("limits.max_turns: 30 -> 40 50", ["the end of the line"]),
        ("limits.max_turn: 30 -> 40", ["mine.edits: limits.max_turn", "did you mean"]),
    ],
)
def test_a_bad_text_is_told_with_its_line(text, words):
    with pytest.raises(HarnessError) as error:
        edits.from_text(text, "mine.edits")
    assert [word for word in ["mine.edits", *words] if word not in str(error.value)] == []


@pytest.mark.parametrize("data", [{}, [3], [{"path": "draw", "to": "task"}], [{"before": 3}]])
def test_bad_json_is_told(data):
    with pytest.raises(HarnessError, match=r"mine\.json: expected a"):
        edits.from_json(data, "mine.json")
