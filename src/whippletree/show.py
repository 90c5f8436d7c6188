"""The commands that only look: at the space of harnesses, single harnesses and configurations."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from whippletree.config import HarnessesSection, RunConfig
from whippletree.errors import WhippletreeError
from whippletree.keys import explain

if TYPE_CHECKING:
    from whippletree.harnesses import Harnesses

T = TypeVar("T")

space_app = typer.Typer(no_args_is_help=True, help="The space of harnesses and its designs.")
harness_app = typer.Typer(no_args_is_help=True, help="Single harnesses.")
config_app = typer.Typer(no_args_is_help=True, help="Configurations.")

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

SpaceOption = Annotated[str, typer.Option("--space", help="`paper`, or a TOML file with factors and levels.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Interrupted(WhippletreeError):
    """Ctrl-C in the middle of something that can be taken up again."""

    exit_code = 130


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
    name: Annotated[str, typer.Argument(help="For example S1T2O0C1W2, or a file.")],
    task: Annotated[str | None, typer.Option(help="A task's id, for example paddock/train/copy/0.")] = None,
    space: SpaceOption = "paper",
    draw_names: Annotated[bool, typer.Option(help="Draw the tools' names for the task.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print exactly what the model would see; with --json the spec and its hash."""
    from whippletree.harness.describe import describe
    from whippletree.tasks.suites import task_by_id

    spec = _harnesses(space, draw_names).spec(name)
    if as_json:
        out.print_json(json.dumps({"hash": spec.content_hash, "spec": spec.model_dump(mode="json")}))
    else:
        out.print(describe(spec, task_by_id(task) if task else None), markup=False, soft_wrap=True)


@harness_app.command("diff")
def harness_diff(
    one: Annotated[str, typer.Argument(help="A harness of the space, or a file.")],
    other: Annotated[str, typer.Argument(help="What the edits lead to.")],
    space: SpaceOption = "paper",
    as_json: JsonOption = False,
) -> None:
    """Print the edits that make one harness into another, one a line: `path: before -> after`."""
    from whippletree.harness import edits

    harnesses = _harnesses(space)
    found = edits.diff(harnesses.spec(one), harnesses.spec(other))
    sys.stdout.write(json.dumps(edits.to_json(found), indent=2) + "\n" if as_json else edits.to_text(found))


@harness_app.command("edit")
def harness_edit(
    base: Annotated[str, typer.Argument(help="A harness of the space, or a file.")],
    edit: Annotated[list[str] | None, typer.Option("--edit", help="`path: before -> after`; null: absent.")] = None,
    file: Annotated[Path | None, typer.Option("--edits", help="A file of such edits; its edits come first.")] = None,
    name: Annotated[str | None, typer.Option("--id", help="The new harness's name.")] = None,
    direction: Annotated[str, typer.Option(help="What the edits are to repair.")] = "",
    space: SpaceOption = "paper",
) -> None:
    """Print a harness file: the base and edits that were tried on it."""
    from whippletree.harness import edits, files

    read = files.read_edits(file) if file else ()
    changes = edits.compose(read, *(edits.from_text(text, "--edit") for text in edit or []))
    edits.apply(_harnesses(space).spec(base), changes)
    sys.stdout.write(files.to_toml(base, changes, id=name, direction=direction))


@harness_app.command("hooks")
def harness_hooks(as_json: JsonOption = False) -> None:
    """Print what hooks are made of: events with their actions, conditions, and rewriters, with their parameters."""
    from whippletree.harness.hooks import FITS
    from whippletree.harness.named import registry

    if as_json:
        entries = {kind: [asdict(entry) for entry in found] for kind, found in registry().items()}
        actions = {event: sorted(actions) for event, actions in FITS.items()}
        out.print_json(json.dumps({"events": actions, **entries}))
        return
    table = Table("event", "actions", box=None)
    for event, actions in FITS.items():
        table.add_row(event, ", ".join(sorted(actions)))
    out.print(table)
    for kind, found in registry().items():
        table = Table(kind, "parameters", "at", "what it says" if kind == "conditions" else "what it does", box=None)
        for entry in found:
            given = ", ".join(f"{name} = {default}" for name, default in entry.parameters.items())
            at = "any event" if len(entry.events) == len(FITS) else ", ".join(entry.events) or "as its parts"
            table.add_row(*map(escape, (entry.name, given, at, entry.about)))
        out.print(table)


@config_app.command("explain")
def config_explain() -> None:
    """Print every key with what it accepts, its default and its meaning."""
    table = Table("key", "accepts", "default", "meaning", box=None)
    for row in explain(RunConfig):
        table.add_row(*map(escape, row))
    out.print(table)


# ---- inside ---------------------------------------------------------------------------------------------------------


def wait_for(work: Coroutine[Any, Any, T], to_go_on: str) -> T:
    """Run a coroutine; Ctrl-C becomes Interrupted, which says how to go on, and of several failures one is told."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise Interrupted(to_go_on) from None
    except BaseExceptionGroup as group:
        known, bugs = group.split((WhippletreeError, OSError))
        if known is None or bugs is not None:
            raise
        error: BaseException = known
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _harnesses(space: str, draw_names: bool = False) -> Harnesses:
    from whippletree.harnesses import Harnesses

    return Harnesses(HarnessesSection(space=space, draw_names=draw_names))
