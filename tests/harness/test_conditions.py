"""Each condition on moments where it holds and where it does not, and each rewriter on a text."""

import json

import pytest

from whippletree.harness.acts import Act, Moment, named_files, unread_writes, written
from whippletree.harness.named import ALL_CONDITIONS, condition, registry, rewriter
from whippletree.harness.rewriters import REWRITERS
from whippletree.types import Message, ToolCall


def bash(command, output="", status="done", **more):
    return Act("sh", "execute_bash", {"command": command}, status, output, **more)


def edit(command, path, status="done"):
    return Act("ed", "file_editor", {"command": command, "path": path}, status)


def asked(command):
    return bash(command, status="asked")


def moment(*acts, **more):
    """The last act is the present one."""
    given = {"instruction": "copy a.txt to b.txt", "turns": 2, "turns_left": 8, **more}
    return Moment(past=acts[:-1], act=acts[-1] if acts else None, **given)


def said(text, calls=0):
    return moment(message=Message("assistant", text, (ToolCall("", "sh", "{}"),) * calls))


WRITE, READ = bash("echo x > b.txt"), bash("cat b.txt", "x")
QUERY = asked("sqlite3 x.db 'SELECT a FROM t'")
SCHEMA = bash("sqlite3 x.db .schema", "create table t")

HOLDS = [
    ("always", {}, moment()),
    ("turns_left", {}, moment(turns_left=3)),
    ("every_turns", {"turns": 2}, moment(turns=4)),
    ("instruction_matches", {"pattern": "COPY"}, moment()),
    ("nothing_done", {}, moment(bash("x", status="failed"), asked("x"))),
    ("nothing_written", {}, moment(READ, edit("create", "b", "failed"), asked("x"))),
    ("unread_write", {}, moment(READ, WRITE)),
    ("unread_write", {}, moment(READ, edit("str_replace", "./b.txt"))),
    ("named_file_untouched", {}, moment(bash("cat a.txt"))),
    ("has_done", {"pattern": "echo", "times": 2}, moment(WRITE, WRITE, asked("x"))),
    ("repeated_failure", {}, moment(bash("x", status="failed"), bash("y", status="refused"))),
    ("message_matches", {"pattern": "sorry"}, said("I am Sorry")),
    ("empty_message", {}, said(" \n")),
    ("many_calls", {}, said("", calls=2)),
    ("call_matches", {"pattern": "rm -rf", "tool": "execute_bash"}, moment(asked("rm -rf x"))),
    ("call_matches", {"argument": "path", "pattern": "^/etc"}, moment(edit("view", "/etc/x", "asked"))),
    ("repeated_call", {}, moment(READ, asked("cat b.txt"))),
    ("unseen_change", {}, moment(READ, edit("insert", "c.txt", "asked"))),
    ("unseen_change", {}, moment(asked("sed -i 's/a/b/' c.txt"))),
    ("schema_not_looked_up", {}, moment(bash("ls"), QUERY)),
    ("pagination_present", {}, moment(bash("x", '{"items": [], "next_cursor": "ab"}'))),
    ("pagination_present", {}, moment(bash("x", "page 1 of 3"))),
    ("output_matches", {"pattern": "^b"}, moment(bash("x", "a\nb"))),
    ("error_in_output", {}, moment(bash("x", "", "failed"))),
    ("error_in_output", {}, moment(bash("x", "Traceback (most recent call last):"))),
    ("error_in_output", {}, moment(bash("x", '{"status": 404}'))),
    ("empty_output", {}, moment(bash("x", "\n"))),
    ("long_output", {"chars": 3}, moment(bash("x", "four"))),
    ("long_output", {}, moment(bash("x", "", truncated=True))),
    ("timed_out", {}, moment(bash("x", status="failed", timed_out=True))),
    ("same_output", {"times": 2}, moment(bash("x", "a"), bash("y", "a"))),
    ("not", {"of": {"condition": "unread_write"}}, moment(WRITE, READ)),
    ("all", {"of": [{"condition": "always"}, {"condition": "turns_left", "parameters": {"at_most": 9}}]}, moment()),
    ("any", {"of": [{"condition": "nothing_done"}, {"condition": "turns_left"}]}, moment()),
]
FAILS = [
    ("turns_left", {}, moment(turns_left=4)),
    ("every_turns", {}, moment(turns=0)),
    ("instruction_matches", {"pattern": "move"}, moment()),
    ("nothing_done", {}, moment(READ, asked("x"))),
    ("nothing_written", {}, moment(WRITE, asked("x"))),
    ("unread_write", {}, moment(WRITE, READ)),
    ("unread_write", {}, moment(bash("echo x > b.txt; cat b.txt"))),
    ("unread_write", {}, moment(edit("create", "/workspace/d/b.txt"), edit("view", "d/b.txt"))),
    ("unread_write", {}, moment(bash("echo x > b.txt", status="failed"), asked("x"))),
    ("named_file_untouched", {}, moment(bash("cp a.txt b.txt"))),
    ("has_done", {"pattern": "echo"}, moment(bash("echo", status="failed"), asked("echo"))),
    ("repeated_failure", {}, moment(bash("x", status="failed"), READ)),
    ("message_matches", {"pattern": "sorry"}, moment()),
    ("empty_message", {}, said("x")),
    ("many_calls", {}, said("", calls=1)),
    ("call_matches", {"tool": "file_editor"}, moment(asked("x"))),
    ("repeated_call", {"times": 3}, moment(READ, asked("cat b.txt"))),
    ("repeated_call", {}, moment(READ, WRITE, asked("cat b.txt"))),
    ("unseen_change", {}, moment(READ, edit("insert", "b.txt", "asked"))),
    ("unseen_change", {}, moment(WRITE, edit("insert", "b.txt", "asked"))),
    ("unseen_change", {}, moment(edit("create", "c.txt", "asked"))),
    ("schema_not_looked_up", {}, moment(SCHEMA, QUERY)),
    ("schema_not_looked_up", {}, moment(asked("sqlite3 x.db .schema"))),
    ("pagination_present", {}, moment(READ)),
    ("output_matches", {"pattern": "y"}, moment(READ)),
    ("error_in_output", {}, moment(bash("x", "no terrors here"))),
    ("empty_output", {}, moment(bash("x", "", "failed"))),
    ("long_output", {}, moment(READ)),
    ("timed_out", {}, moment(READ)),
    ("same_output", {}, moment(READ, READ)),
    ("not", {"of": {"condition": "always"}}, moment()),
    ("all", {"of": [{"condition": "always"}, {"condition": "turns_left"}]}, moment()),
    ("any", {"of": [{"condition": "turns_left"}]}, moment()),
]


@pytest.mark.parametrize(("name", "parameters", "at"), HOLDS)
def test_holds(name, parameters, at):
    assert condition(name, parameters).holds(at)


@pytest.mark.parametrize(("name", "parameters", "at"), FAILS)
def test_does_not_hold(name, parameters, at):
    assert not condition(name, parameters).holds(at)


def test_every_condition_is_tried_both_ways():
    assert {name for name, *_ in HOLDS} == set(ALL_CONDITIONS)
    assert {name for name, *_ in FAILS} == set(ALL_CONDITIONS) - {"always"}


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("echo x > b.txt 2>/dev/null", ["b.txt"]),
        ("echo 'a > c' >> ./d/b.txt", ["d/b.txt"]),
        ('sort a > "b.txt"; ls', ["b.txt"]),
        ("cat <<'EOF' > b.txt\nx > y\nEOF\nls", ["b.txt"]),
        ("cat a | tee -a b.txt | wc -l", ["b.txt"]),
        ("sed -i 's/>/x/' b.txt", ["b.txt"]),
        ("sed 's/x/y/' b.txt", []),
        ("mv -f a.txt b.txt && cp a /workspace/c", ["b.txt", "c"]),
        ("python run.py 2>&1", []),
    ],
)
def test_writes_of_shell_commands_are_found(command, files):
    assert sorted(written(bash(command))) == sorted(files)


def test_files_of_a_text_and_writes_that_nobody_read():
    assert named_files("put x into out/a.txt, e.g. from data.csv. then stop") == ("out/a.txt", "data.csv")
    assert unread_writes([WRITE, READ, WRITE, bash("echo y > c.txt")]) == ("b.txt", "c.txt")


REWRITTEN = [
    ("replace_in_arguments", {"pattern": "python ", "by": "python3 "}, asked("python x.py"), "python3 x.py"),
    ("replace_in_arguments", {"pattern": "a", "by": "b", "tool": "file_editor"}, asked("a"), "a"),
    ("wrap_command", {"before": "set -e; "}, asked("ls"), "set -e; ls"),
    ("strip_fences", {}, asked("```sh\nls\n```"), "ls"),
    ("keep_ends", {"head_chars": 2, "tail_chars": 1, "mark": "..{left_out}"}, bash("x", "abcdefghij"), "ab..7j"),
    ("keep_ends", {}, bash("x", "abc"), "abc"),
    ("keep_lines", {"pattern": "err"}, bash("x", "a\nerr 1\nb"), "err 1"),
    ("keep_lines", {"pattern": "err"}, bash("x", "a\nb"), "a\nb"),
    ("drop_lines", {"pattern": "^warn"}, bash("x", "a\nwarn b\nc"), "a\nc"),
    ("replace_in_output", {"pattern": r"(\d+) ms", "by": r"\1 milliseconds"}, bash("x", "3 ms"), "3 milliseconds"),
    ("strip_terminal_codes", {}, bash("x", "\x1b[31mred\x1b[0m\n10%\r20%\n"), "red\n20%\n"),
    ("number_lines", {}, bash("x", "a\nb"), "1\ta\n2\tb"),
    ("append_to_output", {"line": "end"}, bash("x", "a\n"), "a\nend"),
]


@pytest.mark.parametrize(("name", "parameters", "act", "text"), REWRITTEN)
def test_rewriters(name, parameters, act, text):
    found = rewriter(name, parameters).rewrite(act)
    assert (found.arguments["command"] if act.status == "asked" else found.output) == text


def test_every_rewriter_is_tried():
    assert {name for name, *_ in REWRITTEN} == set(REWRITERS)


def test_the_registry_tells_of_parameters_and_events():
    entries = {entry.name: entry for entries in registry().values() for entry in entries}
    assert entries["turns_left"].parameters == {"at_most": "3"}
    assert entries["has_done"].parameters["pattern"] == "(string)"
    assert entries["pagination_present"].events == ("after_tool",)
    assert entries["wrap_command"].events == ("before_tool",)
    assert all(entry.about for entry in entries.values())
    json.dumps([dict(entry.parameters) for entry in entries.values()])


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("xyzzy", {}, ["no condition 'xyzzy'", "whippletree harness hooks"]),
        ("turn_left", {}, ["did you mean 'turns_left'"]),
        ("turns_left", {"most": 3}, ["no parameter 'most'", "at_most"]),
        ("turns_left", {"at_most": -1}, ["at_most = -1", "greater than or equal to 0"]),
        ("output_matches", {}, ["'pattern' is missing"]),
        ("output_matches", {"pattern": "("}, ["no regular expression"]),
        ("not", {"of": {"condition": "nope"}}, ["condition 'not'", "no condition 'nope'"]),
        ("nowhere:Mine", {}, ["condition 'nowhere:Mine'", "no module 'nowhere'"]),
        ("whippletree.harness.conditions:search", {}, ["expected a subclass of"]),
    ],
)
def test_bad_names_and_parameters(name, parameters, words):
    with pytest.raises(ValueError, match="condition") as error:
        condition(name, parameters)
    assert [word for word in words if word not in str(error.value)] == []


def test_a_replacement_must_fit_its_pattern():
    with pytest.raises(ValueError, match="invalid group reference"):
        rewriter("replace_in_output", {"pattern": "a", "by": r"\1"})
