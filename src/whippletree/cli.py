"""The command line: parses, calls, prints. Errors of the user's and the machine's end with one message and a code."""

from __future__ import annotations

import json
import os
import signal
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from whippletree import programs, show, stored, suites
from whippletree.config import RunConfig, merged, parse, read_toml, to_toml, with_overrides
from whippletree.errors import ConfigError, GatewayError, PolicyError, StoreError, WhippletreeError
from whippletree.show import Interrupted, JsonOption, err, out, wait_for
from whippletree.types import Json, Rollout

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train one agent policy through many harnesses, in balance.",
)
nano_app = typer.Typer(no_args_is_help=True, help="The embedded policy.")
for name, sub in (
    ("space", show.space_app),
    ("harness", programs.harness_app),
    ("tasks", suites.tasks_app),
    ("config", show.config_app),
    ("nano", nano_app),
):
    app.add_typer(sub, name=name)

ConfigArg = Annotated[str, typer.Argument(help="A TOML file, or the name of a recipe that comes with the package.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", help="Change a key, for example optimizer.lr=1e-4.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="A line now and then instead of a live display.")]


def main() -> None:
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        app()
    except Interrupted as interrupted:
        err.print(f"interrupted; {interrupted}", markup=False, soft_wrap=True)
        sys.exit(interrupted.exit_code)
    except WhippletreeError as error:
        err.print("[bold red]error:[/]", Text(str(error)), soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a file that may not be written
        err.print("[bold red]error:[/]", Text(str(error)), soft_wrap=True)
        sys.exit(2)


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    """Stop as after Ctrl-C, also where that is ignored, as in a shell's background."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(number, frame)


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
        raise ConfigError("give either a configuration to start from or --resume RUN, for example: train scaling")
    if config is not None:
        found = parse(with_overrides(recipe(config), change or []), config)
        path = directory or Path("runs") / f"{Path(config).stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        RunStore.create(path, to_toml(found), {"command": sys.argv[1:]}).close()
    elif change or directory:
        raise ConfigError("--set and --dir do not go with --resume: a run keeps its configuration and its directory")
    else:
        assert resume is not None
        path = resume
    _run(path, plain, f"`whippletree train --resume {path}` goes on", fresh=config is not None)
    _report([path], path, f"Run {path.resolve().name}")


@app.command()
def evaluate(
    config: ConfigArg = "evaluate",
    change: SetOption = None,
    model: Annotated[str | None, typer.Option(help="`nano`, a checkpoint's directory, or a model name.")] = None,
    tasks: Annotated[str | None, typer.Option(help="A suite of tasks; short for --set tasks.source=SUITE.")] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The run directory to make, or to go on with.")
    ] = None,
    as_json: JsonOption = False,
    plain: PlainOption = False,
) -> None:
    """Evaluate a policy over harnesses x tasks, without training."""

    tree = with_overrides(recipe(config), [*(change or []), "steps=0"])
    tree = merged(tree, {"policy": {"model": model}} if model else {})
    found = parse(merged(tree, {"tasks": {"source": tasks}} if tasks else {}), config)
    path = directory or Path("runs") / f"evaluate-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    fresh = _made(path, found)
    _run(path, plain or as_json, f"the same command with --dir {path} goes on", fresh=fresh)
    if as_json:
        out.print_json(json.dumps(_scores_json(path)))
    else:
        _report([path], path, f"Evaluation of {found.policy.model}")


@app.command()
def demonstrate(
    config: ConfigArg,
    per_harness: Annotated[int, typer.Option("--tasks", min=1, help="Tasks for each training harness.")] = 64,
    careless: Annotated[
        float, typer.Option(min=0, max=1, help="Share of tasks done by the weak habit that they are about, if any.")
    ] = 0.0,
    change: SetOption = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="The run directory to make, or to go on with.")
    ] = None,
) -> None:
    """Have a scripted expert solve training tasks in every training harness: rollouts to begin fine-tuning with."""
    from whippletree.demonstrate import demonstrate as story
    from whippletree.run import open_run
    from whippletree.store.run_dir import RunStore

    found = parse(with_overrides(recipe(config), change or []), config)
    path = directory or Path("runs") / f"demonstrate-{Path(config).stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    _made(path, found)

    async def work() -> tuple[int, int]:
        with RunStore.open(path) as store:
            async with open_run(found, store) as run:
                return await story(run, per_harness, _say_rollout, careless)

    passed, made = wait_for(work(), f"what is finished is kept, and the same command with --dir {path} goes on")
    out.print(f"{passed} of {made} demonstrations passed: {path}", markup=False, soft_wrap=True)


@app.command()
def gateway(
    config: ConfigArg = "evaluate",
    change: SetOption = None,
    model: Annotated[str | None, typer.Option(help="`nano`, a directory or a name; what --upstream calls it.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Base URL of a server that holds the policy (vLLM).")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="The upstream model's tokenizer; by default its name.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="The run directory to make.")] = None,
    address: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "127.0.0.1:8080",
) -> None:
    """Serve a policy to any agent program, and capture every call it makes. The upstream's key is OPENAI_API_KEY."""
    from whippletree.run import discard_unused
    from whippletree.serve import Upstream, serve_gateway
    from whippletree.store.run_dir import RunStore

    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--address {address}: expected HOST:PORT, for example 127.0.0.1:8080")
    if upstream and not model:
        raise ConfigError("--upstream needs --model, the name by which that server knows the model")
    if tokenizer and not upstream:
        raise ConfigError("--tokenizer goes with --upstream; a local model has its own")
    tree = with_overrides(recipe(config), [*(change or []), "steps=0"])
    found = parse(merged(tree, {"policy": {"model": model}}) if model and not upstream else tree, config)
    behind = None
    if upstream and model:
        behind = Upstream(upstream, model, tokenizer or model, os.environ.get("OPENAI_API_KEY", ""))
    path = directory or Path("runs") / f"gateway-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    RunStore.create(path, to_toml(found), {"command": sys.argv[1:]}).close()
    say = partial(err.print, markup=False, soft_wrap=True)
    say(f"run directory: {path}")

    async def story() -> None:
        with RunStore.open(path) as store:
            await serve_gateway(found, store, (host, int(port)), behind, say)

    try:
        wait_for(story(), f"what was captured is in {path}")
    except (GatewayError, PolicyError):  # it could not begin
        discard_unused(path)
        raise


app.command()(stored.export)
app.command()(stored.sft)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, one arm each; the first is the reference.")],
    directory: Annotated[Path, typer.Option("--dir", help="Where report.html and figures/ go.")] = Path(),
) -> None:
    """Write one page, and its figures as PNG, about one or more runs."""
    _report(runs, directory, "Report")


@app.command()
def runs(root: Annotated[Path, typer.Argument(help="The folder that holds them.")] = Path("runs")) -> None:
    """List runs with their state."""
    from whippletree.store.listing import list_runs

    table = Table("run", "state", "steps", "solved", "entropy", box=None)
    for run in list_runs(root):
        values = [f"{run.metrics[key]:.3f}" if key in run.metrics else "" for key in ("passed", "entropy")]
        table.add_row(escape(str(run.path)), run.state, str(run.steps_done), *values)
        if run.problem:
            err.print(run.problem, markup=False, soft_wrap=True)
    out.print(table)


@app.command()
def quickstart(
    directory: Annotated[Path, typer.Option("--dir", help="Where the runs and the report go.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Show what harness scaling does, from runs made on this machine."""
    _study("quickstart", directory, None, [])


@app.command()
def study(
    config: ConfigArg,
    directory: Annotated[Path | None, typer.Option("--dir", help="Where the runs go; kept and resumed.")] = None,
    results: Annotated[Path | None, typer.Option(help="The results file to write, e.g. results/headline.json.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Add this seed alone to the results file; repeatable.")] = None,
) -> None:
    """Run several seeds of several arms, and compare them."""
    _study(config, directory or Path("runs") / f"study-{Path(config).stem}", results, seed or [])


@nano_app.command("make")
def nano_make(
    directory: Annotated[Path, typer.Argument(help="Where weights, tokenizer and recipe go.")],
    change: SetOption = None,
) -> None:
    """Make the embedded policy from its recipe."""
    from whippletree import nano

    wanted = nano.recipe_of(with_overrides({}, change or []))
    wait_for(nano.make_and_save(wanted, directory, err.print), "nothing is written before the end")


# ---- inside -----------------------------------------------------------------------------------------------------


def recipe(name: str) -> dict[str, Json]:
    """A TOML file, or one that comes with the package."""
    folder = resources.files("whippletree") / "recipes"
    shipped = sorted(Path(file.name).stem for file in folder.iterdir() if file.name.endswith(".toml"))
    if name in shipped:
        return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    if not Path(name).suffix and not Path(name).exists():
        raise ConfigError(f"there is no recipe and no file '{name}'; the recipes are {', '.join(shipped)}")
    return read_toml(Path(name))


def _made(path: Path, config: RunConfig) -> bool:
    """Make a run directory, or find that there is one with the same settings; whether it is new."""
    from whippletree.store.run_dir import RunStore

    fresh = not (path / "run.sqlite").exists()
    if fresh:
        RunStore.create(path, to_toml(config), {"command": sys.argv[1:]}).close()
    with RunStore.open(path, read_only=True) as store:
        if store.config_toml != to_toml(config):
            raise StoreError(f"{path} was made with other settings than these; choose another --dir")
    return fresh


def _say_rollout(rollout: Rollout) -> None:
    verdict = rollout.error or ("passed" if rollout.passed else "failed")
    err.print(f"{rollout.harness} {rollout.task_id}: {verdict}", markup=False, soft_wrap=True)


def _run(path: Path, plain: bool, to_go_on: str, *, fresh: bool) -> None:
    """Train and evaluate what a run directory says, from where it stopped; a fresh one that cannot begin is removed."""
    from whippletree.display import watched
    from whippletree.run import config_of, discard_unused, open_run
    from whippletree.store.run_dir import RunStore
    from whippletree.train import train as train_story

    async def story() -> None:
        with RunStore.open(path) as store:
            err.print(f"run directory: {path}", markup=False, soft_wrap=True)
            async with open_run(config_of(store), store) as run:
                with watched(run, err, plain=plain):
                    await train_story(run)

    try:
        wait_for(story(), f"what is finished is kept, and {to_go_on}")
    except (Interrupted, StoreError):
        raise
    except WhippletreeError:
        if fresh:
            discard_unused(path)
        raise


def _report(runs: Sequence[Path], directory: Path, title: str) -> None:
    """An arm a run, named by its directory; by its path where two directories are called alike."""
    from whippletree import report as reports

    names = [path.resolve().name for path in runs]
    labels = names if len(set(names)) == len(names) else [str(path) for path in runs]
    data = reports.collect({label: [path] for label, path in zip(labels, runs, strict=True)}, title)
    out.print(reports.as_text(data), markup=False, soft_wrap=True)
    for path in reports.write(data, directory):
        out.print(f"written: {path}", markup=False, soft_wrap=True)


def _scores_json(path: Path) -> Json:
    from whippletree.analysis.scores import summary
    from whippletree.run import config_of
    from whippletree.store.run_dir import RunStore

    with RunStore.open(path, read_only=True) as store:
        found = {name: store.scores(name, "final") for name in config_of(store).evaluate.sets}
    return {
        name: {
            "pass_at_1": summary(scores).pass_at_1,
            "mean_reward": summary(scores).mean_reward,
            "cells": [[s.harness, s.task_id, list(s.passes), list(s.rewards)] for s in scores],
        }
        for name, scores in found.items()
    }


def _study(config: str, directory: Path, results: Path | None, seeds: list[int]) -> None:
    from whippletree.display import StudyDisplay
    from whippletree.study import prepare, read_earlier, read_study, run_jobs, summarise

    found = read_study({**recipe(config), **({"seeds": seeds} if seeds else {})}, config)
    earlier = read_earlier(found, results) if seeds and results else None
    todo = prepare(found, directory)
    with StudyDisplay(found, todo, err) as display:
        work = run_jobs(todo, len(os.sched_getaffinity(0)), display.watch)
        wait_for(work, "what is finished is kept, and the same command goes on")
    summary = summarise(found, directory, sys.argv[1:], earlier)
    out.print(summary.text, markup=False, soft_wrap=True)
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(summary.results_json, encoding="utf-8")
        out.print(f"written: {results}", markup=False, soft_wrap=True)
    for path in summary.written:
        out.print(f"written: {path}", markup=False, soft_wrap=True)
