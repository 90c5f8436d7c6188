import json
from collections import Counter

import pytest

from whippletree.errors import HarnessError
from whippletree.harness.acts import EVENTS, Act
from whippletree.harness.describe import describe
from whippletree.harness.hooks import ACTIONS, FITS, Hook, Watch
from whippletree.harness.levels import paper_base, patched
from whippletree.harness.spec import HarnessSpec
from whippletree.types import Message, ToolCall

PAGES = {
    "action": "warn",
    "condition": "pagination_present",
    "event": "after_tool",
    "message": "there are more pages.",
    "parameters": {},
}
"""The form of the paper's Table 7."""
PAGED = Act("sh", "execute_bash", {"command": "curl x"}, "done", "page 1 of 3")
OWN = """
from dataclasses import replace
from whippletree.harness.conditions import Condition
from whippletree.harness.rewriters import Rewriter

class Shouts(Condition):
    \"\"\"The output has this many capitals.\"\"\"
    looks_at = "observation"
    capitals: int = 3

    def holds(self, moment):
        return sum(map(str.isupper, moment.act.output)) >= self.capitals

class Whispers(Rewriter):
    def rewrite(self, act):
        return replace(act, output=act.output.lower())

class Lies(Rewriter):
    def rewrite(self, act):
        return replace(act, output="fine", status="done")

class Breaks(Condition):
    def holds(self, moment):
        return 1 / 0
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_hooks.py").write_text(OWN)


def hook(**changes):
    return Hook.model_validate({**PAGES, **changes})


def watch(counts=None, **hooks):
    named = {name.replace("_", "-"): found for name, found in hooks.items()}
    return Watch(named, "do it", 10, Counter() if counts is None else counts)


def with_hook(changes):
    return patched(paper_base(), {"state.hooks.pages": {**PAGES, **changes}}, "mine.toml")


def test_a_hook_is_json_of_the_paper_and_part_of_the_hash():
    spec = with_hook({})
    assert spec.model_dump(mode="json")["state"] == {"hooks": {"pages": PAGES}}
    assert HarnessSpec.model_validate_json(spec.model_dump_json()) == spec
    assert spec.content_hash != paper_base().content_hash
    assert with_hook({"message": "more pages."}).content_hash != spec.content_hash
    without = spec.model_copy(update={"state": paper_base().state, "direction": "read all pages"})
    assert without.content_hash == paper_base().content_hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"condition": "pagination_presnt"}, ["no condition", "did you mean 'pagination_present'"]),
        ({"event": "after_toll"}, ["state.hooks.pages.event", "after_toll", "before_finish"]),
        ({"action": "shout"}, ["state.hooks.pages.action", "shout", "warn"]),
        ({"parameters": {"pages": 3}}, ["no parameter 'pages'"]),
        ({"condition": "output_matches", "parameters": {"pattern": "["}}, ["no regular expression"]),
        ({"action": "block"}, ["block does not fit after_tool", "rewrite, stop, warn"]),
        ({"event": "before_tool"}, ["pagination_present cannot be judged at before_tool", "after_tool"]),
        ({"message": ""}, ["warn needs a message"]),
        ({"message": "{turns}"}, ["unknown field {turns}", "turns_left"]),
        ({"action": "rewrite"}, ["a rewriter goes with the action rewrite"]),
        ({"rewriter": {"name": "number_lines"}}, ["a rewriter goes with the action rewrite"]),
        ({"action": "rewrite", "rewriter": {"name": "nope"}}, ["no rewriter 'nope'"]),
        ({"action": "rewrite", "rewriter": {"name": "keep_lines"}}, ["rewriter 'keep_lines'", "'pattern' is missing"]),
        ({"action": "rewrite", "rewriter": {"name": "wrap_command"}}, ["wrap_command is for before_tool"]),
        ({"limit": 0}, ["limit", "greater than or equal to 1"]),
        ({"colour": "red"}, ["state.hooks.pages.colour"]),
        ({"condition": "nowhere.hooks:Mine"}, ["no module 'nowhere'", "PYTHONPATH"]),
    ],
)
def test_a_bad_hook_is_told_before_any_rollout(changes, words):
    with pytest.raises(HarnessError) as error:
        with_hook(changes)
    assert [word for word in ["mine.toml", *words] if word not in str(error.value)] == []


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_must_fit_its_event(event, action):
    rewriting = {"name": "strip_fences" if event == "before_tool" else "number_lines"} if action == "rewrite" else None
    made = {"event": event, "action": action, "condition": "always", "message": "m", "rewriter": rewriting}
    if action in FITS[event]:
        assert Hook.model_validate(made).event == event
    else:
        with pytest.raises(ValueError, match=f"{action} does not fit {event}"):
            Hook.model_validate(made)


def test_a_hooks_name_is_a_word():
    with pytest.raises(HarnessError, match=r"state\.hooks\.A b"):
        patched(paper_base(), {"state.hooks": {"A b": PAGES}}, "mine.toml")


def test_warnings_are_counted_and_zeros_too():
    counts = Counter()
    seen = watch(counts, pages=hook(), last_turns=hook(event="before_model", condition="turns_left"))
    assert counts == {"hook/pages": 0, "hook/last-turns": 0}
    assert seen.consult("after_tool", 1, PAGED).says == ("there are more pages.",)
    assert seen.consult("after_tool", 2, Act("sh", "execute_bash", {}, "done", "x")).says == ()
    assert seen.consult("before_model", 2).says == ()
    assert dict(counts) == {"hook/pages": 1, "hook/last-turns": 0}


def test_messages_may_tell_of_the_moment():
    seen = watch(pages=hook(message="{tool}: {turns_left} of {turn}"))
    assert seen.consult("after_tool", 4, PAGED).says == ("sh: 6 of 4",)


def test_hooks_are_asked_in_the_order_of_their_names_and_a_refusal_ends_it():
    always = {"event": "before_tool", "condition": "always"}
    stop = hook(**always, action="stop")
    seen = watch(c=hook(**always, message="c"), b=hook(**always, action="block", message="b"), a=hook(**always), d=stop)
    told = seen.consult("before_tool", 0, Act("sh", "execute_bash", {"command": "x"}))
    assert (told.says, told.refusal, told.stop) == (("there are more pages.",), "b", False)
    assert dict(seen.counts) == {"hook/a": 1, "hook/b": 1, "hook/c": 0, "hook/d": 0}
    assert watch(d=stop).consult("before_tool", 0).stop


def test_rewriting_is_seen_by_the_hooks_after_it_and_counted_where_it_changes_something():
    def rewriting(pattern, by):
        parameters = {"pattern": pattern, "by": by}
        return hook(
            condition="always", action="rewrite", rewriter={"name": "replace_in_output", "parameters": parameters}
        )

    seen = watch(a=rewriting("page", "leaf"), b=rewriting("zzz", ""), c=hook())
    told = seen.consult("after_tool", 1, PAGED)
    assert told.act.output == "leaf 1 of 3"
    assert told.says == ("there are more pages.",)
    assert dict(seen.counts) == {"hook/a": 1, "hook/b": 0, "hook/c": 0}


def test_require_refuses_until_the_condition_holds():
    parameters = {"pattern": "test"}
    required = hook(event="before_finish", action="require", condition="has_done", parameters=parameters)
    seen = watch(tested=required)
    assert seen.consult("before_finish", 1).refusal == "there are more pages."
    seen.past.append(Act("sh", "execute_bash", {"command": "make test"}, "done"))
    assert seen.consult("before_finish", 2).refusal is None
    assert seen.counts == {"hook/tested": 1}


def test_a_limit_lets_a_hook_rest_and_a_warning_at_the_end_has_one():
    at_the_end = {"event": "before_finish", "condition": "always"}
    for more, times in (({"limit": 2}, 2), ({}, 1)):
        seen = watch(end=hook(**at_the_end, **more))
        assert [len(seen.consult("before_finish", i).says) for i in range(4)] == [1] * times + [0] * (4 - times)


def test_at_the_sessions_end_a_hook_counts():
    seen = watch(unread=hook(event="session_end", condition="unread_write", message=""))
    seen.past.append(Act("ed", "file_editor", {"command": "create", "path": "a"}, "done"))
    assert seen.consult("session_end", 3).says == ()
    assert seen.counts == {"hook/unread": 1}


def test_message_conditions_see_the_message():
    seen = watch(many=hook(event="after_model", condition="many_calls", action="block", message="one at a time."))
    two = Message("assistant", "", (ToolCall("", "a", "{}"), ToolCall("", "b", "{}")))
    assert seen.consult("after_model", 1, message=two).refusal == "one at a time."


def test_conditions_and_rewriters_of_the_users_own(own):
    changes = {"condition": "own_hooks:Shouts", "parameters": {"capitals": 2}}
    shouting = with_hook(changes | {"action": "rewrite", "rewriter": {"name": "own_hooks:Whispers"}})
    assert HarnessSpec.model_validate(json.loads(shouting.model_dump_json())) == shouting
    seen = watch(**shouting.state.hooks)
    assert seen.consult("after_tool", 1, Act("sh", "sh", {}, "done", "ABc")).act.output == "abc"
    with pytest.raises(HarnessError, match="no parameter 'size', it has capitals"):
        with_hook(changes | {"parameters": {"size": 2}})


def test_what_fails_in_the_users_own_code_names_the_hook(own):
    with pytest.raises(HarnessError, match="hook pages failed with ZeroDivisionError"):
        watch(pages=hook(condition="own_hooks:Breaks")).consult("after_tool", 1, PAGED)
    lying = hook(condition="always", action="rewrite", rewriter={"name": "own_hooks:Lies"})
    with pytest.raises(HarnessError, match="hook pages: its rewriter may change the values of arguments or the output"):
        watch(pages=lying).consult("after_tool", 1, Act("sh", "sh", {}, "failed", "x"))


def test_a_described_harness_tells_of_its_hooks():
    text = describe(with_hook({}))
    assert "hook pages: after_tool, if pagination_present, warn" in text
    assert "there are more pages." in text
