"""The documentation is true to the program: commands parse, keys exist, links resolve, tables are complete."""

import json
import re
import runpy
import shlex
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

from whippletree.algorithms.grpo import GRPO
from whippletree.analysis.study import aggregate, to_json
from whippletree.cli import app, recipe
from whippletree.config import HarnessesSection, parse, with_overrides
from whippletree.harness.levels import load_space
from whippletree.harnesses import Harnesses
from whippletree.run import Clock, step_metrics
from whippletree.study import read_study
from whippletree.types import Assignment, Group, ModelCall, Reward, Rollout, StopReason, Task

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
QUICK = {
    *("space show", "space design", "harness show", "harness diff", "harness edit", "harness hooks"),
    *("tasks list", "tasks show", "config explain"),
}
"""Subcommands that only look, and are run as printed."""

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HARNESS = re.compile(r"^```toml\n# (\S+\.toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(whippletree [^`\n]+|make [a-z-]+[^`\n]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def commands(text: str) -> list[str]:
    """Lines of shell blocks, without comments, and commands within sentences."""
    blocks = [body for language, body in FENCE.findall(text) if language == "sh"]
    lines = [line for body in blocks for line in body.splitlines() if line.strip()]
    return [*lines, *INLINE.findall(FENCE.sub("", text))]


def printed(program: str):
    found = [(page, command) for page, text in TEXTS.items() for command in commands(text)]
    return [pytest.param(command, id=f"{page}: {command}") for page, command in found if command.startswith(program)]


def words_of(command: str) -> list[str]:
    """After the program's name, up to where the output goes."""
    words = shlex.split(command, comments=True)[1:]
    return words[: words.index(">")] if ">" in words else words


def write_examples(page: str, folder: Path) -> None:
    """The modules and harness files that a page shows with their names."""
    for file, body in [*MODULE.findall(TEXTS[page]), *HARNESS.findall(TEXTS[page])]:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(body)


def parsed(command: str) -> tuple[str, dict]:
    """The subcommand and its parameters, read by the program's own parser without running anything."""
    words = words_of(command)
    found = typer.main.get_command(app)
    name = []
    while hasattr(found, "commands"):
        name.append(words.pop(0))
        found = found.commands[name[-1]]
    return " ".join(name), found.make_context(name[-1], words).params


def test_there_is_something_to_check():
    assert len(printed("whippletree ")) > 20


@pytest.mark.parametrize("command", printed("whippletree "))
def test_commands_work_or_at_least_parse_and_name_keys_that_exist(command, tmp_path, monkeypatch):
    name, params = parsed(command)
    if name in QUICK:
        write_examples("docs/harnesses.md", tmp_path)
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(app, words_of(command))
        assert result.exit_code == 0, result.output
    config, change = params.get("config"), params.get("change") or []
    if name in ("train", "evaluate") and config:
        tree = {} if config.endswith(".toml") else recipe(config)
        parse(with_overrides(tree, change), command)
    if name == "study" and config.islower() and not config.endswith(".toml"):
        read_study(recipe(config), command)


@pytest.mark.parametrize("command", printed("make "))
def test_make_targets_exist(command):
    target = shlex.split(command, comments=True)[1]
    stated = re.findall(r"^([\w%-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert any(fnmatch(target, pattern.replace("%", "*")) for pattern in stated)
    if target.startswith("study-"):
        read_study(recipe(target.removeprefix("study-")), command)


@pytest.mark.parametrize("page", TEXTS)
def test_links_resolve(page):
    links = [link for link in LINK.findall(TEXTS[page]) if "://" not in link]
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("group", typer.main.get_command(app).commands)
def test_the_readme_shows_every_command(group):
    assert re.search(rf"(whippletree|make) {group}\b", TEXTS["README.md"])


@pytest.mark.parametrize("page", TEXTS)
def test_toml_examples_are_read(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    write_examples(page, tmp_path)
    for file, _ in HARNESS.findall(TEXTS[page]):
        spec = Harnesses(HarnessesSection()).spec(str(tmp_path / file))
        assert spec.state.hooks
    for language, body in FENCE.findall(TEXTS[page]):
        if language != "toml" or HARNESS.match(f"```toml\n{body}```"):
            continue
        tree = tomllib.loads(body)
        if "factors" in tree:
            (tmp_path / "space.toml").write_text(body)
            load_space(tmp_path / "space.toml")
        elif "arms" in tree:
            read_study(tree, page)
        else:
            parse(tree, page)


def test_the_results_block_is_filled_from_the_file_and_left_alone_without_it(tmp_path):
    fill = runpy.run_path(str(ROOT / "docs" / "fill_results.py"))["filled"]
    page = TEXTS["README.md"]
    assert fill(page, tmp_path) == page
    passed = {"scaling": (0.5, 0.7), "single": (0.25, 0.25)}
    values = {arm: {seed: {"held_out": rate} for seed, rate in enumerate(rates)} for arm, rates in passed.items()}
    result = aggregate(values, [("scaling", "single")], command="c", commit="d", machine="m", settings={})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "headline.json").write_text(to_json(result))
    once = fill(page, tmp_path)
    assert "| scaling | 60.0 (" in once
    assert fill(once, tmp_path) == once


def test_a_benchmark_block_tells_ratios_and_curves(tmp_path):
    module = runpy.run_path(str(ROOT / "docs" / "fill_results.py"))
    page = "<!-- benchmark:speed -->\n<!-- /benchmark:speed -->\n"
    assert module["filled"](page, tmp_path) == page
    points = [{"size": size, "total": 2.0 * size, **dict.fromkeys(module["PARTS"], 0.5 * size)} for size in (1, 2, 4)]
    summary = {"label": "turns", "exponent": 1.0, "exponent_at_end": 1.0, "leaves_linear_at": None}
    found = {
        "ratios": {"theirs": 3.5},
        "curves": {"turns": {**summary, "points": points}},
        "what": {"ours": "less"},
        "command": "c",
        "machine": {"cores": 2},
    }
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "speed.json").write_text(json.dumps(found))
    once = module["filled"](page, tmp_path)
    assert "| theirs | 3.50 |" in once
    assert "| turns, 1 to 4 | 2.00 to 8.00 | 1.00 | 1.00 | not here |" in once
    assert module["filled"](once, tmp_path) == once
    assert module["picture"](found).startswith(b"\x89PNG")


# ---- metrics ----------------------------------------------------------------------------------------------------


def group_with_signal() -> Group:
    task = Task("t", "paddock", "train", "copy", 1, "copy a file")
    ids = np.arange(3)
    calls = tuple(
        ModelCall(i, kind, ids + 3 * i, ids, np.zeros(3, np.float32), 0, "stop")
        for i, kind in enumerate(("main", "compaction"))
    )
    rollouts = tuple(
        Rollout(f"r{value}", "t", "copy", "S0T0O0C0W0", 0, "train", calls, Reward(value), StopReason.FINISHED)
        for value in (0.0, 1.0)
    )
    return Group(Assignment(0, task, "S0T0O0C0W0", 2), rollouts)


def test_the_table_of_metrics_is_complete():
    table = set(re.findall(r"^\| `([^`]+)` \|", TEXTS["docs/metrics.md"], re.MULTILINE))
    groups = [group_with_signal()]
    clock = Clock(
        SimpleNamespace(
            cpu_s={"sampling": 0.0, "learning": 0.0}, learned_tokens={"rows": 0, "unique": 0, "computed": 0}
        )
    )
    written = step_metrics(groups, GRPO().credit(groups), {}, 0.0, clock)
    assert {re.sub(r"(samples/dropped)_\w+", r"\1_REASON", name) for name in written} == table
