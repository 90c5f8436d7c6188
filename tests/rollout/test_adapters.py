"""The table of real harnesses: every template fills, every file parses, and nothing but the gateway is spoken to."""

import json
import re
import shutil
import sys
import tomllib
from dataclasses import fields, replace
from string import Template

import pytest
import yaml

from whippletree.errors import HarnessError
from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters import ADAPTERS, find, known
from whippletree.rollout.adapters.base import Adapter, Npm, Pip, Place, ShellTool, Variant
from whippletree.rollout.adapters.launch import materialise

PLACE = Place(
    base_url="http://127.0.0.1:4321/s/abc123",
    key="abc123",
    model="whippletree",
    instruction="Say 'hi' to $USER & \"friends\"\nin two lines.",
    prefix="/opt/harness",
    home="/home/agent",
    context=32_768,
    max_tokens=2048,
)
NAMES = [f"{name}:{variant}".rstrip(":") for name, adapter in ADAPTERS.items() for variant in adapter.variants]
TINY = Adapter(
    name="tiny",
    package=Npm("tiny", "1.0.0"),
    program=("$prefix/tiny",),
    command=("run", "$args", "--", "$instruction"),
    shell=ShellTool("sh", {"command": "$command"}),
)


def launched(name):
    return materialise(*find(name), PLACE)


@pytest.mark.parametrize("name", NAMES)
def test_a_launch_names_the_task_once_and_the_program_where_it_is_mounted(name):
    launch = launched(name)
    assert launch.argv[0].startswith("/opt/harness/")
    assert sum(PLACE.instruction in argument for argument in launch.argv) == 1
    assert not any(PLACE.instruction in text for text in (*launch.env.values(), *launch.files.values()))
    assert launch.env["HOME"] == "/home/agent"
    assert "/opt/harness" not in launch.env["PATH"], "the agent's commands must not meet the harness's own programs"


@pytest.mark.parametrize("name", NAMES)
def test_files_are_what_their_names_say(name):
    parsers = {
        ".json": json.loads,
        ".toml": tomllib.loads,
        ".yml": yaml.safe_load,
        ".py": lambda text: compile(text, "script", "exec"),
    }
    for path, text in launched(name).files.items():
        assert not path.startswith("/")
        assert parsers[path[path.rindex(".") :]](text) is not None


@pytest.mark.parametrize("name", NAMES)
def test_the_gateway_is_the_one_address_and_the_key_its_key(name):
    launch = launched(name)
    said = "\n".join((*launch.argv, *launch.env.values(), *launch.files.values()))
    addresses = set(re.findall(r"\w+://[^\s\"',]+", said))
    assert addresses <= {PLACE.base_url, PLACE.base_url + "/v1"}
    assert addresses
    assert PLACE.key in said.replace(PLACE.base_url, "")


@pytest.mark.parametrize("name", NAMES)
def test_limits_reach_the_files_as_numbers(name):
    for path, text in launched(name).files.items():
        if path.endswith(".json"):
            assert f'"{PLACE.context}"' not in text
            assert f'"{PLACE.max_tokens}"' not in text


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_versions_are_exact_and_signs_compile(adapter):
    requirements = adapter.package.requirements if isinstance(adapter.package, Pip) else ()
    assert all("==" in requirement for requirement in requirements)
    assert re.fullmatch(r"[0-9]+(\.[0-9a-z]+)+", adapter.package.version)
    for field in fields(Rules):
        value = getattr(adapter.rules, field.name)
        if isinstance(value, str):
            re.compile(value)
    assert "$args" in adapter.command or not any(variant.args for variant in adapter.variants.values())
    assert all(variant.about or len(adapter.variants) == 1 for variant in adapter.variants.values())
    assert adapter.about


@pytest.mark.parametrize("name", NAMES)
def test_a_scripted_episode_can_be_played(name):
    shell = find(name)[0].shell
    commands = [text for value in shell.arguments.values() for text in ([value] if isinstance(value, str) else value)]
    played = [Template(text).substitute(command="ls", quoted="'ls'") for text in commands]
    assert any("ls" in text for text in played)
    for text in (shell.final, *shell.final_arguments.values()):
        assert Template(text).substitute(answer="done", quoted="'done'")


def test_twelve_harnesses_are_known_by_name():
    assert sorted(ADAPTERS) == [
        "claude-code",
        "cline",
        "codex",
        "dsh",
        "gemini-cli",
        "kilocode",
        "mini-swe-agent",
        "openclaw",
        "opencode",
        "pi",
        "qwen-code",
        "smolagents",
    ]
    assert {"claude-code:minimal", "claude-code:four-tools", "openclaw:full", "dsh:full"} <= set(NAMES)


def test_a_variant_adds_to_the_command_the_environment_and_the_files():
    adapter = replace(
        TINY,
        env={"A": "1", "B": "$key"},
        files={"a.json": "{}"},
        setup=(("$prefix/tiny", "login", "$key"),),
        variants={"": Variant(), "big": Variant(args=("-x", "$model"), env={"A": "2"}, files={"b.json": "[$context]"})},
    )
    launch = materialise(adapter, adapter.variants["big"], PLACE)
    assert launch.argv == ("/opt/harness/tiny", "run", "-x", "whippletree", "--", PLACE.instruction)
    assert (launch.env["A"], launch.env["B"]) == ("2", "abc123")
    assert launch.files == {"a.json": "{}", "b.json": "[32768]"}
    assert launch.setup == (("/opt/harness/tiny", "login", "abc123"),)
    assert materialise(adapter, adapter.variants[""], PLACE).argv == (
        "/opt/harness/tiny",
        "run",
        "--",
        PLACE.instruction,
    )


def test_an_instruction_that_would_be_misread_gets_a_space():
    adapter = replace(TINY, misread="-@")
    for instruction, said in (("-x", " -x"), ("@a", " @a"), ("x-@", "x-@"), ("", "")):
        launch = materialise(adapter, Variant(), replace(PLACE, instruction=instruction))
        assert launch.argv[-1] == said


def test_two_dollars_are_one():
    assert materialise(replace(TINY, env={"A": "$$HOME"}), Variant(), PLACE).env["A"] == "$HOME"


@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        (replace(TINY, env={"A": "$nothing"}), r"names \$nothing; known are \$base_url"),
        (replace(TINY, command=("100$",)), "Invalid placeholder"),
        (replace(TINY, files={"a": "$instruction"}), r"names \$instruction"),
    ],
)
def test_a_template_that_cannot_be_filled_is_named(adapter, problem):
    with pytest.raises(HarnessError, match=problem):
        materialise(adapter, Variant(), PLACE)


def test_find_knows_the_variants():
    adapter, variant = find("smolagents:code")
    assert adapter.shell.name == ""
    assert variant.args == ("code",)
    assert find("smolagents")[0].shell.name == "bash"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("claude", "there is no harness 'claude'; known are claude-code, cline, codex"),
        ("codex:huge", "no variant 'huge'; known are codex, codex:"),
        ("codex:", "no variant ''"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(name, problem):
    with pytest.raises(HarnessError, match=problem):
        find(name)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Writes a module of the given text; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text):
        (tmp_path / "my_harness.py").write_text(text)
        return "my_harness"

    yield write
    sys.modules.pop("my_harness", None)
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)


MODULE = """
from dataclasses import replace
from whippletree.rollout.adapters.pi import ADAPTER as PI
ADAPTER = replace(PI, name={name!r})
"""


def test_a_module_outside_of_the_package_adds_a_harness(outside):
    table = known([outside(MODULE.format(name="mine"))])
    assert find("mine", table)[0].name == "mine"
    assert find("pi", table)[0] is ADAPTERS["pi"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MODULE.format(name="pi"), "is named 'pi', which is taken"),
        ("ADAPTER = 3", "must define ADAPTER"),
        ("import no_such_module_at_all", "cannot be imported"),
    ],
)
def test_a_module_that_is_no_harness_is_refused(outside, text, problem):
    with pytest.raises(HarnessError, match=problem):
        known([outside(text)])


def test_a_missing_module_is_named():
    with pytest.raises(HarnessError, match="'no_such_module_at_all' of a harness cannot be imported"):
        known(["no_such_module_at_all"])
