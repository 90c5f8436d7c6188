"""The commands about agent programs: list, install, examine, and have an expert demonstrate tasks through them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from whippletree.config import HarnessesSection
from whippletree.errors import HarnessError
from whippletree.harnesses import Harnesses
from whippletree.home import default_root
from whippletree.rollout import adapters
from whippletree.rollout.adapters import install as installer
from whippletree.show import JsonOption, err, harness_app, out, wait_for

AdaptersOption = Annotated[
    list[str] | None, typer.Option("--adapter", help="A module outside the package that holds an ADAPTER.")
]


@harness_app.command("list")
def harness_list(extra: AdaptersOption = None, as_json: JsonOption = False) -> None:
    """List the agent programs that can be harnesses, and which are installed."""
    rows = list(_programs(extra or []))
    if as_json:
        out.print_json(json.dumps(rows))
        return
    table = Table("harness", "version", "installed", "what it is", box=None)
    for row in rows:
        table.add_row(*(escape(str(row[key])) for key in ("harness", "version", "installed", "about")))
    out.print(table)


@harness_app.command("install")
def harness_install(
    names: Annotated[list[str], typer.Argument(help="Names of agent programs, or `all`.")],
    extra: AdaptersOption = None,
) -> None:
    """Install agent programs, each into a directory of its own."""
    known = adapters.known(extra or [])
    wanted = list(known) if names == ["all"] else names
    chosen = [adapters.find(name, known)[0] for name in wanted]
    for adapter in dict.fromkeys(chosen):
        installer.install(adapter, default_root(), lambda text: err.print(text, markup=False, soft_wrap=True))


@harness_app.command("doctor")
def harness_doctor(
    names: Annotated[list[str] | None, typer.Argument(help="Harnesses; by default all that are installed.")] = None,
    sandbox: Annotated[str, typer.Option(help="bubblewrap or process.")] = "bubblewrap",
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds for one episode.")] = 300.0,
    extra: AdaptersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play a scripted episode of three model calls through agent programs, and say how it went."""
    from whippletree.doctor import Checkup, examine

    harnesses = Harnesses(HarnessesSection(adapters=tuple(extra or ())))
    wanted = names or [str(row["harness"]) for row in _programs(extra or []) if row["installed"] == "yes"]
    if not wanted:
        raise HarnessError("no agent program is installed: `whippletree harness install NAME` installs one")
    checkups: list[Checkup] = []
    for name in wanted:
        checkups.append(wait_for(examine(harnesses, name, sandbox, timeout_s), "nothing is kept of a check"))
        found = checkups[-1]
        if not as_json:
            verdict = f"[bold red]{escape(found.problem)}[/]" if found.problem else "[green]works[/]"
            out.print(f"[bold]{escape(name)}[/] {found.version}: {verdict}", soft_wrap=True)
    if as_json:
        out.print_json(json.dumps([asdict(found) for found in checkups]))
    else:
        table = Table("harness", "wall s", "CPU s", "calls", "boundary", "first prompt", "trainable", "tree", box=None)
        for found in checkups:
            path = "one path" if found.one_path else "branches"
            seconds = (f"{found.wall_s:.1f}", f"{found.cpu_s:.1f}")
            tokens = (str(found.prompt_tokens), str(found.trainable_tokens))
            table.add_row(found.harness, *seconds, _told(found.kinds), _told(found.counts), *tokens, path)
        out.print(table)
    if any(found.problem for found in checkups):
        raise typer.Exit(1)


def _programs(extra: list[str]) -> Iterator[dict[str, str]]:
    """One row for each variant."""
    root = default_root()
    for adapter in adapters.known(extra).values():
        installed = "yes" if installer.installed(adapter, root) else "no"
        for suffix, variant in adapter.variants.items():
            name = f"{adapter.name}:{suffix}" if suffix else adapter.name
            about = variant.about or adapter.about
            yield {"harness": name, "version": adapter.package.version, "installed": installed, "about": about}


def _told(counts: Mapping[str, int] | None) -> str:
    return ", ".join(f"{count} {name}" for name, count in (counts or {}).items())
