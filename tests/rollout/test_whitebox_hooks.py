"""What hooks do in a rollout: where their words stand, what is not run, and what is counted."""

import asyncio
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_policy import ScriptedPolicy, assignment, opened_world
from scripted_policy import bash as bash_message
from scripted_policy import say as say_message
from test_whitebox import TASK, Script, ShellSandbox, bash, last, say

from whippletree.harness.acts import EVENTS
from whippletree.harness.hooks import FITS
from whippletree.harness.levels import compose, paper_base, paper_space, patched
from whippletree.rollout.engine import roll_out
from whippletree.rollout.whitebox import WhiteBox, run
from whippletree.types import StopReason

BASE = "S0T0O0C0W0"


def harness(hooks, name=BASE, **patch):
    made = {key: {"message": f"{key}!", **hook} for key, hook in hooks.items()}
    return patched(compose(paper_space(), paper_space().parse(name), paper_base()), {"state.hooks": made, **patch}, "t")


def play(hooks, workspace, *items, name=BASE, **patch):
    """The stop reason, the requests, and how often each hook fired."""
    script, counts = Script(*items), Counter()
    spec = harness(hooks, name, **patch)
    outcome = asyncio.run(run(spec, TASK, ShellSandbox(workspace), script, random.Random(0), counts))
    fired = {key.removeprefix("hook/"): count for key, count in counts.items()}
    return outcome.stop_reason, script.requests, fired


def roles(request):
    return [message.role for message in request.messages]


def test_a_warning_after_a_tool_is_a_user_message_after_the_answers(tmp_path):
    hooks = {"pages": {"event": "after_tool", "condition": "pagination_present", "action": "warn"}}
    items = [bash("echo page 1 of 2"), bash("echo x"), say("done.")]
    reason, requests, fired = play(hooks, tmp_path, *items)
    assert (reason, fired) == (StopReason.FINISHED, {"pages": 1})
    assert roles(requests[1]) == ["system", "user", "assistant", "tool", "user"]
    assert last(requests[1]) == ("user", "pages!")
    assert roles(requests[2])[5:] == ["assistant", "tool"]


def test_words_of_hooks_and_workflow_are_one_user_message(tmp_path):
    hooks = {
        "a": {"event": "before_model", "condition": "turns_left", "action": "warn", "parameters": {"at_most": 9}},
        "b": {"event": "after_tool", "condition": "always", "action": "warn"},
    }
    _, requests, _ = play(hooks, tmp_path, say("a plan"), say("done."), name="S0T0O0C0W1", **{"limits.max_turns": 10})
    assert last(requests[1]) == ("user", "plan noted. continue.\na!")


def test_a_start_is_heard_in_the_opening_and_stays_after_compaction(tmp_path):
    hooks = {
        "start": {"event": "session_start", "condition": "always", "action": "warn"},
        "first": {"event": "before_model", "condition": "turns_left", "action": "warn", "limit": 1},
    }
    steps = [bash(f"echo {i}") for i in range(5)]
    patch = {"limits.max_turns": 9}
    items = [*steps, say("did"), *steps[:2], say("did more"), say("done.")]
    _, requests, fired = play(hooks, tmp_path, *items, name="S0T0O0C2W0", **patch)
    assert requests[0].messages[1].content == f"{TASK.instruction}\nstart!"
    assert requests[5].kind == "compaction"
    assert requests[6].messages[1].content.startswith(f"{TASK.instruction}\nstart!\n")
    assert last(requests[7]) == ("user", "first!")
    assert fired == {"start": 1, "first": 1}


def test_before_the_first_message_a_warning_follows_the_instruction(tmp_path):
    hooks = {"hint": {"event": "before_model", "condition": "instruction_matches", "action": "warn", "limit": 1}}
    hooks["hint"]["parameters"] = {"pattern": "copy"}
    _, requests, _ = play(hooks, tmp_path, bash("true"), say("done."))
    assert requests[0].messages[1].content == f"{TASK.instruction}\nhint!"
    assert requests[1].messages[:2] == requests[0].messages


def test_a_blocked_call_is_not_run_and_its_answer_is_the_reason(tmp_path):
    hooks = {"again": {"event": "before_tool", "condition": "repeated_call", "action": "block"}}
    once, twice = say("", ("execute_bash", {"command": "echo x >> a"})), bash("echo y >> a")
    _, requests, fired = play(hooks, tmp_path, once, bash("echo x >> a"), twice, say("done."))
    assert last(requests[2]) == ("tool", "again!")
    assert (tmp_path / "a").read_text() == "x\ny\n"
    assert fired == {"again": 1}


def test_arguments_and_observations_are_rewritten(tmp_path):
    hooks = {
        "python": {"event": "before_tool", "condition": "call_matches", "action": "rewrite", "message": ""},
        "short": {"event": "after_tool", "condition": "long_output", "action": "rewrite"},
    }
    hooks["python"]["rewriter"] = {"name": "replace_in_arguments", "parameters": {"pattern": "say", "by": "echo"}}
    hooks["short"] |= {"parameters": {"chars": 5}, "rewriter": {"name": "keep_lines", "parameters": {"pattern": "b"}}}
    _, requests, fired = play(hooks, tmp_path, bash("say aaaa; say b"), say("done."))
    assert [message.content for message in requests[1].messages[3:]] == ["b", "short!"]
    assert requests[1].messages[2].tool_calls[0].arguments == '{"command": "say aaaa; say b"}'
    assert fired == {"python": 1, "short": 1}


def test_a_message_is_refused_after_it_came(tmp_path):
    hooks = {"one": {"event": "after_model", "condition": "many_calls", "action": "block"}}
    call = ("execute_bash", {"command": "touch a"})
    _, requests, _ = play(hooks, tmp_path, say("", call, call), say("done."))
    assert [message.content for message in requests[1].messages[3:]] == ["one!", "one!"]
    assert list(tmp_path.iterdir()) == []


def test_the_end_is_refused_until_the_file_is_read(tmp_path):
    hooks = {"unread": {"event": "before_finish", "condition": "unread_write", "action": "block"}}
    items = [bash("echo x > a.txt"), say("done."), bash("cat a.txt"), say("done.")]
    reason, requests, fired = play(hooks, tmp_path, *items)
    assert (reason, len(requests), fired) == (StopReason.FINISHED, 4, {"unread": 1})
    assert last(requests[2]) == ("user", "unread!")


def test_who_insists_on_an_end_that_is_refused_is_stopped_by_the_limit_of_errors(tmp_path):
    hooks = {"work": {"event": "before_finish", "condition": "nothing_written", "action": "block"}}
    reason, requests, fired = play(hooks, tmp_path, *[say("done.")] * 3)
    assert (reason, len(requests), fired) == (StopReason.MAX_TURNS, 3, {"work": 3})


def test_a_warning_at_the_end_gives_one_more_turn(tmp_path):
    hooks = {"sure": {"event": "before_finish", "condition": "always", "action": "warn"}}
    reason, requests, fired = play(hooks, tmp_path, say("done."), say("yes."))
    assert (reason, len(requests), fired) == (StopReason.FINISHED, 2, {"sure": 1})


@pytest.mark.parametrize("event", ["before_model", "after_model", "before_tool", "after_tool"])
def test_a_hook_stops_the_rollout(tmp_path, event):
    condition = {"condition": "every_turns", "parameters": {"turns": 2}, "action": "stop"}
    hooks = {"enough": {"event": event, **condition}, "end": {"event": "session_end", "condition": "always"}}
    hooks["end"]["action"] = "warn"
    reason, requests, fired = play(hooks, tmp_path, bash("touch a"), bash("touch b"), say("done."))
    assert (reason, len(requests)) == (StopReason.STOPPED, 2)
    assert fired == {"enough": 1, "end": 1}
    assert (tmp_path / "b").exists() == (event in ("after_tool", "before_model"))


def test_the_end_of_a_session_knows_how_it_ended(tmp_path):
    hooks = {"end": {"event": "session_end", "condition": "turns_left", "parameters": {"at_most": 0}, "action": "warn"}}
    patch = {"limits.max_turns": 1}
    assert play(hooks, tmp_path, bash("true"), **patch)[::2] == (StopReason.MAX_TURNS, {"end": 1})
    assert play(hooks, tmp_path, say("done"))[2] == {"end": 0}


def test_a_call_that_was_not_understood_has_an_answer_that_hooks_see(tmp_path):
    hooks = {"names": {"event": "after_tool", "condition": "error_in_output", "action": "warn"}}
    _, requests, fired = play(hooks, tmp_path, say("", ("shell", {})), say("done."))
    assert last(requests[1]) == ("user", "names!")
    assert fired == {"names": 1}


NEVER = {"condition": "not", "parameters": {"of": {"condition": "always"}}}
QUIET = {
    "warn": {"action": "warn", **NEVER},
    "block": {"action": "block", **NEVER},
    "require": {"action": "require", "condition": "always"},
    "stop": {"action": "stop", **NEVER},
    "rewrite": {"action": "rewrite", "condition": "always", "rewriter": {"name": "strip_fences"}},
}


def fitting(event):
    actions = FITS[event] - ({"rewrite"} if event == "after_tool" else set())
    return [{"event": event, **QUIET[action]} for action in sorted(actions)]


ITEMS = st.sampled_from(
    [
        bash("echo a > b.txt"),
        bash("cat b.txt; exit 3"),
        say("a thought"),
        say("", ("shell", {})),
        say("x", parse_error="bad"),
        say("", ("execute_bash", {"command": "echo 1"}), ("execute_bash", {"command": "echo 2"})),
    ]
)


@given(
    hooks=st.lists(st.sampled_from(EVENTS).flatmap(lambda event: st.sampled_from(fitting(event))), max_size=6),
    items=st.lists(ITEMS, max_size=6),
    name=st.sampled_from([BASE, "S0T0O2C2W2", "S1T2O1C1W1"]),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hooks_that_do_not_fire_leave_the_messages_as_they_were(tmp_path, hooks, items, name):
    told = [*items, *[say("so far so good"), say("done.")] * 3]
    seen = []
    for given_hooks in ({}, {f"h{i}": hook for i, hook in enumerate(hooks)}):
        for path in tmp_path.iterdir():
            path.unlink() if path.is_file() else None
        reason, requests, fired = play(given_hooks, tmp_path, *told, name=name)
        assert set(fired.values()) <= {0}
        assert len(fired) == len(given_hooks)
        seen.append((reason, requests))
    assert seen[0] == seen[1]


def test_activations_are_in_the_counts_of_a_rollout():
    hooks = {
        "never": {"event": "after_tool", "condition": "timed_out", "action": "warn"},
        "always": {"event": "after_tool", "condition": "always", "action": "warn"},
        "broken": {"event": "session_start", "condition": "always", "action": "warn"},
    }
    policy = ScriptedPolicy([bash_message("true"), bash_message("true"), say_message("done.")])

    async def play():
        async with opened_world(policy, harness=lambda name: WhiteBox(harness(hooks))) as world:
            return await roll_out(world, [assignment()], concurrency=1)

    (group,) = asyncio.run(play())
    (rollout,) = group.rollouts
    assert rollout.error is None
    assert {name: count for name, count in rollout.counts.items() if name.startswith("hook/")} == {
        "hook/always": 2,
        "hook/broken": 1,
        "hook/never": 0,
    }
    assert rollout.counts["continuation"] == 2
