import json
import random
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.harness import context, observation, system_prompt, tools, workflow
from whippletree.harness.context import Turn
from whippletree.harness.levels import compose, paper_base, paper_space, patched
from whippletree.types import ExecResult, Message, Task, ToolCall

TASK = Task("paddock/train/copy/1", "paddock", "train", "copy", 1, "copy {oak} to elm.txt")


def spec_of(name):
    space = paper_space()
    return compose(space, space.parse(name), paper_base())


def call(name, arguments, call_id="c1"):
    return ToolCall(call_id, name, arguments if isinstance(arguments, str) else json.dumps(arguments))


# ---- system prompt ----------------------------------------------------------------------------------------------


def test_opening_is_a_system_and_a_user_message():
    spec = spec_of("S0T0O0C0W2")
    system, user = system_prompt.render(spec, TASK)
    assert (system.role, user.role) == ("system", "user")
    assert system.content.split("\n")[:2] == [section.text for section in spec.prompt.sections]
    assert system.content.endswith("after every 3 steps, check your progress when asked.")
    assert user.content == TASK.instruction


# ---- tools ------------------------------------------------------------------------------------------------------


def test_shown_tools_are_those_of_the_spec_in_order():
    spec = spec_of("S0T1O0C0W0")
    assert [tool.name for tool in tools.shown(spec)] == [tool.name for tool in spec.tools]


def test_an_alias_resolves_to_the_canonical_tool_and_arguments():
    meant = tools.resolve(
        spec_of("S0T1O0C0W0"), call("document_editor", {"action": "insert", "document": "a", "after_line": "3"})
    )
    assert isinstance(meant, tools.CanonicalCall)
    assert meant.name == "file_editor"
    assert meant.arguments == {"command": "insert", "path": "a", "insert_line": 3}
    assert meant.shown["insert_line"] == "after_line"
    meant = tools.resolve(spec_of("S0T2O0C0W0"), call("qzv", {"command": "ls"}))
    assert isinstance(meant, tools.CanonicalCall)
    assert (meant.name, meant.arguments) == ("execute_bash", {"command": "ls"})


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("sh", {}, ["no tool sh", "execute_bash, file_editor"]),
        ("execute_bash", "{", ["execute_bash", "one JSON object"]),
        ("execute_bash", "[1]", ["execute_bash", "one JSON object"]),
        ("execute_bash", {}, ["execute_bash needs the argument command"]),
        ("execute_bash", {"command": None}, ["execute_bash needs the argument command"]),
        ("execute_bash", {"command": "ls", "cwd": "/"}, ["no argument cwd", "it has command"]),
        ("execute_bash", {"command": 3}, ["command must be a string, got 3"]),
        ("file_editor", {"command": "open", "path": "a"}, ["command must be one of view, create", "got open"]),
        ("file_editor", {"command": "view", "path": "a", "insert_line": "x"}, ['whole number, got "x"']),
        ("file_editor", {"command": "view", "path": "a", "insert_line": True}, ["whole number, got true"]),
    ],
)
def test_a_bad_call_is_refused_with_the_reason(name, arguments, words):
    refusal = tools.resolve(paper_base(), call(name, arguments))
    assert isinstance(refusal, tools.Refusal)
    assert refusal.malformed
    assert refusal.text.startswith("error: ")
    for word in words:
        assert word in refusal.text


@given(st.sampled_from(["T1", "T2"]), st.text(max_size=20))
def test_distractors_answer_an_error_whatever_they_are_given(level, arguments):
    spec = spec_of(f"S0{level}O0C0W0")
    for tool in spec.tools:
        if tool.distractor:
            assert tools.resolve(spec, call(tool.name, arguments)) == tools.Refusal(tool.error, malformed=False)


@given(st.sampled_from(["T1", "T2"]), st.text(max_size=20))
def test_drawn_names_are_valid_and_depend_on_the_task_alone(level, task_id):
    spec = patched(spec_of(f"S0{level}O0C0W0"), {"draw": "task"}, "test")
    drawn = tools.draw_names(spec, task_id)
    assert drawn == tools.draw_names(spec, task_id)
    assert drawn == type(drawn).model_validate(drawn.model_dump())
    assert tools.draw_names(drawn, task_id) is drawn
    assert sorted(t.canonical for t in drawn.tools if not t.distractor) == ["execute_bash", "file_editor"]
    assert {t.description for t in drawn.tools} == {t.description for t in spec.tools}


def test_drawn_names_differ_between_tasks_and_fixed_ones_stay():
    spec = patched(spec_of("S0T2O0C0W0"), {"draw": "task"}, "test")
    bash = {
        next(tool.name for tool in tools.draw_names(spec, str(i)).tools if tool.canonical == "execute_bash")
        for i in range(40)
    }
    assert len(bash) > 10
    base = patched(paper_base(), {"draw": "task"}, "test")
    assert tools.draw_names(base, "any") is base
    assert tools.draw_names(spec_of("S0T2O0C0W0"), "any").tools == spec_of("S0T2O0C0W0").tools


# ---- observation ------------------------------------------------------------------------------------------------


def shown(name, result, seed=1, tool="execute_bash"):
    rng = random.Random(seed)
    return observation.render(spec_of(name), tool, result, observation.draw_host(rng), rng)


def test_raw_output_stays_as_it_is():
    assert shown("S0T0O0C0W0", ExecResult("a {pid}\n b\n\n", 1)) == "a {pid}\n b"
    assert shown("S0T0O0C0W0", ExecResult("\n", 0)) == "(no output)"
    late = shown("S0T0O0C0W0", ExecResult("a\n", 124, timed_out=True, truncated=True))
    assert late == "a\n(the output was cut)\n(the command ran out of time)"


def test_infrastructure_metadata_is_around_the_output():
    first, output, last = shown("S0T0O1C0W0", ExecResult("a\n", 0)).split("\n")
    assert first.startswith("[pod agent-")
    assert first.endswith(" namespace sandbox]")
    assert output == "a"
    assert last.startswith("[scheduled on node-")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"])), st.integers(0, 255))
def test_xml_metadata_can_be_read_back(output, code):
    root = ElementTree.fromstring(shown("S0T0O2C0W0", ExecResult(output, code), tool='a"<b'))
    assert root.attrib.keys() == {"tool", "exit_code", "pid", "duration_s", "node"}
    assert (root.get("tool"), root.get("exit_code")) == ('a"<b', str(code))
    assert root.text == f"\n{output or '(no output)'}\n"


def test_metadata_comes_from_the_rng():
    result = ExecResult("a", 0)
    for name in ("S0T0O1C0W0", "S0T0O2C0W0"):
        assert shown(name, result, seed=1) == shown(name, result, seed=1)
        assert shown(name, result, seed=1) != shown(name, result, seed=2)


# ---- context ----------------------------------------------------------------------------------------------------


def turns(count):
    return [
        Turn(
            Message("assistant", f"step {i}", (call("execute_bash", {"command": "ls"}),)),
            (Message("tool", f"out {i}", tool_call_id="c1"),),
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("name", "count", "old"),
    [
        ("S0T0O0C0W0", 500, 0),
        ("S0T0O0C1W0", 7, 0),
        ("S0T0O0C1W0", 8, 3),
        ("S0T0O0C2W0", 4, 0),
        ("S0T0O0C2W0", 5, 2),
    ],
)
def test_old_turns_are_those_before_the_kept_ones(name, count, old):
    assert list(context.old_turns(spec_of(name), turns(count))) == turns(count)[:old]


def test_compaction_request_holds_task_summary_and_turns():
    system, user = context.request(spec_of("S0T0O0C1W0"), TASK, None, turns(2))
    assert (system.role, user.role) == ("system", "user")
    assert TASK.instruction in user.content
    assert "summary so far: none" in user.content
    assert 'assistant: step 1\ncall: execute_bash {"command": "ls"}\ntool: out 1' in user.content
    assert (
        "summary so far: all {turns} well"
        in context.request(spec_of("S0T0O0C1W0"), TASK, "all {turns} well", [])[1].content
    )


def test_messages_put_the_note_after_the_instruction():
    spec = spec_of("S0T0O0C1W0")
    opening = system_prompt.render(spec, TASK)
    assert context.messages(opening, "", turns(1)) == (*opening, turns(1)[0].message, *turns(1)[0].observations)
    system, user, *rest = context.messages(opening, context.note(spec, "half done"), turns(2))
    assert system == opening[0]
    assert user.content == f"{TASK.instruction}\nsummary of earlier turns: half done"
    assert len(rest) == 4
    assert ".notes/summary.txt" in context.note(spec_of("S0T0O0C2W0"), "half done")


# ---- workflow ---------------------------------------------------------------------------------------------------

TEXT = Message("assistant", "some words")
CALL = Message("assistant", "", (call("execute_bash", {"command": "ls"}),))
BOTH = Message("assistant", "some words", CALL.tool_calls)
EMPTY = Message("assistant", " \n")


def actions(name, messages):
    spec = spec_of(name)
    state, taken = workflow.start(spec), []
    for message in messages:
        step = workflow.advance(spec, state, message)
        state = step.state
        taken.append((step.action, step.say))
    return taken


def test_free_workflow_runs_calls_and_ends_with_text():
    assert actions("S0T0O0C0W0", [CALL, BOTH, TEXT]) == [("run", ""), ("run", ""), ("finish", "")]
    assert actions("S0T0O0C0W0", [EMPTY]) == [("finish", "")]


def test_plan_comes_before_the_first_call():
    plan = spec_of("S0T0O0C0W1").workflow
    assert actions("S0T0O0C0W1", [CALL, CALL, TEXT, CALL, TEXT]) == [
        ("refuse", plan.plan_missing),
        ("refuse", plan.plan_missing),
        ("reply", plan.plan_accepted),
        ("run", ""),
        ("finish", ""),
    ]
    assert actions("S0T0O0C0W1", [BOTH, CALL, TEXT]) == [("run", ""), ("run", ""), ("finish", "")]
    assert actions("S0T0O0C0W1", [EMPTY]) == [("finish", "")]


def test_progress_is_verified_after_every_third_step():
    verify = spec_of("S0T0O0C0W2").workflow
    assert actions(
        "S0T0O0C0W2", [TEXT, CALL, CALL, CALL, CALL, TEXT, CALL, CALL, BOTH, BOTH, CALL, CALL, TEXT, TEXT]
    ) == [
        ("reply", verify.plan_accepted),
        ("run", ""),
        ("run", ""),
        ("run", verify.verify_request),
        ("refuse", verify.verify_missing),
        ("reply", verify.verify_accepted),
        ("run", ""),
        ("run", ""),
        ("run", verify.verify_request),
        ("run", ""),
        ("run", ""),
        ("run", verify.verify_request),
        ("reply", verify.verify_accepted),
        ("finish", ""),
    ]
