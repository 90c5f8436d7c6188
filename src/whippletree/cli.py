"""The command line: parses, calls, prints. Errors of the user's and the machine's end with one message and a code."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tomllib
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from whippletree.config import explain, parse, read_toml, to_toml, with_overrides
from whippletree.errors import ConfigError, WhippletreeError
from whippletree.types import Json

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one agent policy through many harnesses, in balance.",
)
space_app = typer.Typer(no_args_is_help=True, help="The space of harnesses and its designs.")
harness_app = typer.Typer(no_args_is_help=True, help="Single harnesses.")
tasks_app = typer.Typer(no_args_is_help=True, help="Suites of tasks.")
nano_app = typer.Typer(no_args_is_help=True, help="The embedded policy.")
config_app = typer.Typer(no_args_is_help=True, help="Configurations.")
for name, sub in (
    ("space", space_app),
    ("harness", harness_app),
    ("tasks", tasks_app),
    ("nano", nano_app),
    ("config", config_app),
):
    app.add_typer(sub, name=name)

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

ConfigArg = Annotated[str, typer.Argument(help="A TOML file, or the name of a recipe that comes with the package.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change a key, for example optimizer.lr=1e-4.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SpaceOption = Annotated[str, typer.Option("--space", help="`paper`, or a TOML file with factors and levels.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="One line per step instead of a live display.")]


def main() -> None:
    try:
        app()
    except WhippletreeError as error:
        err.print(f"[bold red]error:[/] {error}", markup=True, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        err.print("interrupted; every finished step is kept, and the same command (train: with --resume) goes on")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


# ---- train, evaluate, report ------------------------------------------------------------------------------------


@app.command()
def train(
    config: Annotated[str | None, typer.Argument(help="A TOML file, or the name of a recipe.")] = None,
    change: SetOption = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")] = None,
    plain: PlainOption = False,
) -> None:
    """Train one policy through many harnesses, then evaluate it."""
    from whippletree.store.run_dir import RunStore

    if (config is None) == (resume is None):
        raise ConfigError("give either a configuration to start from or --resume RUN, for example: train headline")
    if resume is None:
        assert config is not None
        found = parse(with_overrides(recipe(config), change or []), config)
        resume = directory or Path("runs") / f"{Path(config).stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        RunStore.create(resume, to_toml(found), {"command": sys.argv[1:]}).close()
    elif change or directory:
        raise ConfigError("--set and --dir do not go with --resume: a run keeps its configuration and its directory")
    _run(resume, plain)
    _report({resume.name: [resume]}, resume, f"Run {resume.name}")


@app.command()
def evaluate(
    config: ConfigArg = "evaluate",
    change: SetOption = None,
    model: Annotated[str | None, typer.Option(help="`nano`, a checkpoint's directory, or a model name.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The run directory to make, or to go on with.")
    ] = None,
    as_json: JsonOption = False,
    plain: PlainOption = False,
) -> None:
    """Evaluate a policy over harnesses x tasks, without training."""
    from whippletree.store.run_dir import RunStore

    changes = ["steps=0", *(change or []), *([f"policy.model='{model}'"] if model else [])]
    found = parse(with_overrides(recipe(config), changes), config)
    path = directory or Path("runs") / f"evaluate-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if not (path / "run.sqlite").exists():
        RunStore.create(path, to_toml(found), {"command": sys.argv[1:]}).close()
    _run(path, plain or as_json)
    if as_json:
        out.print_json(json.dumps(_scores_json(path)))
    else:
        _report({path.name: [path]}, path, f"Evaluation of {found.policy.model}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, one arm each; the first is the reference.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where report.html and figures/ go.")] = Path(),
) -> None:
    """Write one page, and its figures as PNG, about one or more runs."""
    _report({path.name: [path] for path in runs}, directory, "Report")


@app.command()
def runs(root: Annotated[Path, typer.Argument(help="The folder that holds them.")] = Path("runs")) -> None:
    """List runs with their state."""
    from whippletree.store.listing import list_runs

    table = Table("run", "state", "steps", "solved", "entropy", box=None)
    for run in list_runs(root):
        values = [f"{run.metrics[key]:.3f}" if key in run.metrics else "" for key in ("passed", "entropy")]
        table.add_row(str(run.path), run.state, str(run.num_steps), *values)
    out.print(table)


@app.command()
def quickstart(
    directory: Annotated[Path, typer.Option("--dir", help="Where the runs and the report go.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Show what harness scaling does, from runs made on this machine."""
    _study("quickstart", directory, None)


@app.command()
def study(
    config: ConfigArg,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the runs go; kept and resumed.")] = None,
    results: Annotated[Path | None, typer.Option(help="The results file to write, e.g. results/headline.json.")] = None,
) -> None:
    """Run several seeds of several arms, and compare them."""
    _study(config, directory or Path("runs") / f"study-{Path(config).stem}", results)


# ---- space, harness, tasks --------------------------------------------------------------------------------------


@space_app.command("show")
def space_show(space: SpaceOption = "paper", as_json: JsonOption = False) -> None:
    """Print the factors and levels of a space."""
    found = _harnesses(space).space
    if as_json:
        factors = [
            {"key": f.key, "title": f.title, "levels": [{"name": v.name, "summary": v.summary} for v in f.levels]}
            for f in found.factors
        ]
        out.print_json(json.dumps({"size": found.size, "factors": factors}))
        return
    table = Table("level", "name", "what it does", box=None)
    for factor in found.factors:
        table.add_row(f"[bold]{factor.key}[/]", f"[bold]{factor.title}[/]", "")
        for index, level in enumerate(factor.levels):
            table.add_row(f"{factor.key}{index}", level.name, level.summary)
    out.print(table)
    out.print(f"{found.size} harnesses, from {found.name((0,) * len(found.keys))} on")


@space_app.command("design")
def space_design(
    runs: Annotated[int, typer.Option(min=1, help="Harnesses to train on.")] = 18,
    held_out: Annotated[int, typer.Option(min=0, help="Harnesses to keep for testing.")] = 0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    space: SpaceOption = "paper",
    as_json: JsonOption = False,
) -> None:
    """Choose a balanced training set, and a held-out set, with their certificates."""
    from whippletree.harness import designs
    from whippletree.harness.certificate import certify

    found = _harnesses(space).space
    trained = designs.choose(found, runs, seed)
    parts = {"training": (trained, certify(trained))}
    if held_out:
        tested = designs.held_out(found, held_out, seed, trained.configs)
        parts["held_out"] = (tested, certify(tested, other=trained))
    if as_json:
        shown = {
            k: {"harnesses": d.names, "method": d.method, "certificate": c.to_json()} for k, (d, c) in parts.items()
        }
        out.print_json(json.dumps(shown))
        return
    for title, (design, certificate) in parts.items():
        out.print(f"[bold]{title}[/]: {design.method}")
        out.print(*design.names)
        out.print(certificate.to_text())


@harness_app.command("show")
def harness_show(
    name: Annotated[str, typer.Argument(help="For example S1T2O0C1W2.")],
    task: Annotated[str | None, typer.Option(help="A task's id, for example paddock/train/copy/0.")] = None,
    space: SpaceOption = "paper",
    draw_names: Annotated[bool, typer.Option(help="Draw the tools' names for the task.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print exactly what the model would see; with --json the spec and its hash."""
    from whippletree.harness.describe import describe
    from whippletree.tasks.paddock import Paddock

    spec = _harnesses(space, draw_names).spec(name)
    if as_json:
        out.print_json(json.dumps({"hash": spec.content_hash, "spec": spec.model_dump(mode="json")}))
    else:
        out.print(describe(spec, Paddock().task_by_id(task) if task else None), markup=False, soft_wrap=True)


@tasks_app.command("list")
def tasks_list(as_json: JsonOption = False) -> None:
    """List the kinds of task of the built-in suite."""
    from whippletree.tasks.paddock.kinds import KINDS

    if as_json:
        out.print_json(json.dumps([{"name": k.name, "tier": k.tier, "splits": k.splits} for k in KINDS.values()]))
        return
    table = Table("kind", "tier", "splits", box=None)
    for kind in KINDS.values():
        table.add_row(kind.name, str(kind.tier), " ".join(kind.splits))
    out.print(table)


@tasks_app.command("show")
def tasks_show(task_id: Annotated[str, typer.Argument(help="For example paddock/train/copy/17.")]) -> None:
    """Print one task: instruction, files, and the commands that solve it."""
    from whippletree.tasks.paddock import Paddock

    task = Paddock().task_by_id(task_id)
    out.print(f"{task.instruction}\n", markup=False, soft_wrap=True)
    for path, text in task.files.items():
        out.print(f"--- {path}\n{text.rstrip()}", markup=False, soft_wrap=True)
    out.print(f"--- gold\n{task.gold}", markup=False, soft_wrap=True)


@tasks_app.command("check")
def tasks_check(
    kinds: Annotated[list[str] | None, typer.Argument(help="Kinds to check; all by default.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Instances of each kind.")] = 5,
    sandbox: Annotated[str, typer.Option(help="bubblewrap or process.")] = "bubblewrap",
) -> None:
    """Show that gold passes, doing nothing earns nothing, and near misses fail."""
    from whippletree.check import check_kinds

    unsound = 0
    table = Table("kind", "instances", "gold fails", "untouched earns", "near misses pass", box=None)
    for found in asyncio.run(check_kinds(kinds or (), seeds, sandbox)):
        unsound += not found.sound
        counts = (found.gold_fails, found.untouched_earns, found.near_miss_passes)
        table.add_row(found.kind, str(found.seeds), *(str(len(count)) for count in counts))
    out.print(table)
    if unsound:
        raise typer.Exit(1)


@nano_app.command("make")
def nano_make(
    directory: Annotated[Path, typer.Argument(help="Where weights, tokenizer and recipe go.")],
    change: SetOption = None,
) -> None:
    """Make the embedded policy from its recipe."""
    from whippletree import nano

    changes = with_overrides({}, change or [])
    asyncio.run(nano.make_and_save(nano.recipe_of(changes), directory, lambda line: err.print(line)))


@config_app.command("explain")
def config_explain() -> None:
    """Print every key with what it accepts, its default and its meaning."""
    table = Table("key", "accepts", "default", "meaning", box=None)
    for row in explain():
        table.add_row(*row)
    out.print(table)


# ---- inside -----------------------------------------------------------------------------------------------------


def recipe(name: str) -> dict[str, Json]:
    """A TOML file, or one that comes with the package."""
    shipped = resources.files("whippletree") / "recipes" / f"{name}.toml"
    if not Path(name).suffix and shipped.is_file():
        return tomllib.loads(shipped.read_text(encoding="utf-8"))
    return read_toml(Path(name))


def _harnesses(space: str, draw_names: bool = False):  # noqa: ANN202
    from whippletree.config import HarnessesSection
    from whippletree.run import Harnesses

    return Harnesses(HarnessesSection(space=space, draw_names=draw_names))


def _run(path: Path, plain: bool) -> None:
    """Train and evaluate what a run directory says, from where it stopped."""
    from whippletree.display import watched
    from whippletree.run import open_run
    from whippletree.store.run_dir import RunStore
    from whippletree.train import train as train_story

    async def story() -> None:
        with RunStore.open(path) as store:
            config = parse(tomllib.loads(store.config_toml), str(path / "config.toml"))
            async with open_run(config, store) as run:
                with watched(run, err, plain=plain):
                    await train_story(run)

    err.print(f"run directory: {path}")
    asyncio.run(story())


def _report(runs: dict[str, list[Path]], directory: Path, title: str) -> None:
    from whippletree import report as reports

    data = reports.collect(runs, title)
    out.print(reports.as_text(data), markup=False, soft_wrap=True)
    for path in reports.write(data, directory):
        out.print(f"written: {path}")


def _scores_json(path: Path) -> Json:
    from whippletree.analysis.scores import summary
    from whippletree.store.run_dir import RunStore

    with RunStore.open(path, read_only=True) as store:
        config = parse(tomllib.loads(store.config_toml), str(path))
        found = {name: store.scores(name, "final") for name in config.evaluate.sets}
    return {
        name: {
            "pass_at_1": summary(scores).pass_at_1,
            "mean_reward": summary(scores).mean_reward,
            "cells": [[s.harness, s.task_id, list(s.passes), list(s.rewards)] for s in scores],
        }
        for name, scores in found.items()
    }


def _study(config: str, directory: Path, results: Path | None) -> None:
    from whippletree.display import StudyDisplay
    from whippletree.study import prepare, read_study, run_jobs, summarise

    found = read_study(recipe(config), config)
    todo = prepare(found, directory)
    with StudyDisplay(found, todo, err) as display:
        asyncio.run(run_jobs(todo, os.cpu_count() or 1, display.watch))
    summary = summarise(found, directory, sys.argv[1:])
    out.print(summary.text, markup=False, soft_wrap=True)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(summary.results_json, encoding="utf-8")
        out.print(f"written: {results}")
    for path in summary.written:
        out.print(f"written: {path}")
