"""The commands about tasks: list and show them, add suites from elsewhere, and check that grades can be trusted."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from whippletree.errors import TaskError
from whippletree.home import default_root
from whippletree.show import JsonOption, err, out, wait_for
from whippletree.tasks import fetching, quarantine, suites, tools
from whippletree.tasks.base import Suite
from whippletree.tasks.paddock.kind import SPLITS
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.tasks.quarantine import TaskCheck
from whippletree.types import Task

tasks_app = typer.Typer(no_args_is_help=True, help="Suites of tasks.")

SuiteArg = Annotated[str, typer.Argument(help="A suite, a directory in the format of one, or MODULE:CLASS.")]


def _say(text: str) -> None:
    err.print(text, markup=False, soft_wrap=True)


@tasks_app.command("suites")
def tasks_suites(as_json: JsonOption = False) -> None:
    """List the suites of tasks, where they come from, and which are here."""
    rows = [_suite_row(suite) for suite in suites.SUITES.values()]
    if as_json:
        out.print_json(json.dumps(rows))
        return
    table = Table("suite", "here", "licence", "MB", "from", "what it is", box=None)
    table.add_row("paddock", "yes", "Apache-2.0", "", "this package", "the built-in suite: small jobs in a workspace")
    for row in rows:
        table.add_row(*(escape(str(row[key])) for key in ("name", "here", "licence", "size_mb", "origin", "about")))
    out.print(table)


@tasks_app.command("list")
def tasks_list(suite: SuiteArg = "paddock", as_json: JsonOption = False) -> None:
    """List the kinds of task of a suite, and the tasks that are quarantined."""
    if suite == "paddock":
        rows = [{"name": kind.name, "tier": kind.tier, "splits": kind.splits} for kind in KINDS.values()]
        if as_json:
            out.print_json(json.dumps(rows))
            return
        table = Table("kind", "tier", "splits", box=None)
        for kind in KINDS.values():
            table.add_row(kind.name, str(kind.tier), " ".join(kind.splits))
        out.print(table)
        return
    found = suites.find(suite)
    splits = {split: Counter(task.kind for task in tasks) for split, tasks in _splits(found).items()}
    if as_json:
        out.print_json(json.dumps({"splits": splits, "quarantined": found.quarantine}))
        return
    table = Table("kind", *splits, box=None)
    for kind in sorted({kind for counts in splits.values() for kind in counts}):
        table.add_row(escape(kind), *(str(counts[kind]) for counts in splits.values()))
    table.add_row("all", *(str(counts.total()) for counts in splits.values()))
    out.print(table)
    for task_id, reason in found.quarantine.items():
        out.print(f"quarantined: {task_id}: {reason}", markup=False, soft_wrap=True)


@tasks_app.command("show")
def tasks_show(task_id: Annotated[str, typer.Argument(help="For example paddock/train/copy/17.")]) -> None:
    """Print one task: instruction, files, and the commands that solve it."""
    task = suites.task_by_id(task_id)
    out.print(f"{task.instruction}\n", markup=False, soft_wrap=True)
    for path, text in _texts(task):
        out.print(f"--- {path}\n{text.rstrip()}", markup=False, soft_wrap=True)
    out.print(f"--- gold\n{task.gold or '(none is known)'}", markup=False, soft_wrap=True)


@tasks_app.command("add")
def tasks_add(
    name: Annotated[str, typer.Argument(help="A suite; `whippletree tasks suites` lists them.")],
    path: Annotated[Path | None, typer.Option(help="A directory of this machine that holds it.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Agree to the terms that are shown.")] = False,
) -> None:
    """Fetch a suite, or take it from a local directory, and install the tools that its tasks need."""
    suite, root = _suite(name), default_root()
    out.print(fetching.terms(suite, root), markup=False, soft_wrap=True)
    if fetching.added(suite, root) is None and path is None and not yes:
        if not sys.stdin.isatty():
            raise TaskError("nobody is here to agree to these terms; --yes does")
        if not typer.confirm("fetch it on these terms?"):
            raise TaskError(f"{name} was not fetched")
    fetching.add(suite, root, path, _say)
    tools.build(suite.tools, root, _say)


@tasks_app.command("tools")
def tasks_tools(name: Annotated[str, typer.Argument(help="A suite.")]) -> None:
    """Install the tools that a suite's tasks need, for tasks that lie in a directory of one's own."""
    place = tools.build(_suite(name).tools, default_root(), _say)
    out.print(f"the tools of {name} are in {place}" if place else f"{name} needs no tools", soft_wrap=True)


@tasks_app.command("check")
def tasks_check(
    names: Annotated[
        list[str] | None, typer.Argument(help="Kinds of paddock, all by default; or a suite, and ids of its tasks.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Of paddock: instances of each kind.")] = 5,
    split: Annotated[str | None, typer.Option(help="Of a suite: one split; all by default.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="Of a suite: so many tasks of each split.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Of a suite: also tasks that were checked before.")] = False,
    sandbox: Annotated[str, typer.Option(help="bubblewrap or process.")] = "bubblewrap",
    as_json: JsonOption = False,
) -> None:
    """Show that gold passes, doing nothing earns little, and grades repeat; a suite's failures are quarantined."""
    wanted = list(names or ())
    if wanted and wanted[0] != "paddock" and wanted[0] not in KINDS and _names_suite(wanted[0]):
        found = suites.find(wanted[0])
        _check_suite(found, _selected(found, wanted[1:], split, first), sandbox, again=again, as_json=as_json)
    else:
        _check_paddock([name for name in wanted if name != "paddock"], seeds, sandbox, as_json=as_json)


# ---- inside ---------------------------------------------------------------------------------------------------------


def _check_paddock(kinds: Sequence[str], seeds: int, sandbox: str, *, as_json: bool) -> None:
    from whippletree.check import check_kinds

    reports = wait_for(check_kinds(kinds, seeds, sandbox), "nothing is kept of a check")
    if as_json:
        out.print_json(json.dumps([asdict(report) for report in reports]))
    else:
        table = Table("kind", "instances", "gold fails", "untouched earns", "near misses pass", box=None)
        for found in reports:
            counts = (found.gold_fails, found.untouched_earns, found.near_miss_passes)
            table.add_row(found.kind, str(found.seeds), *(str(len(count)) for count in counts))
        out.print(table)
    if not all(report.sound for report in reports):
        raise typer.Exit(1)


def _check_suite(found: suites.Found, tasks: Sequence[Task], sandbox: str, *, again: bool, as_json: bool) -> None:
    from whippletree.check import check_tasks

    known = {} if again else quarantine.read(found.checks, found.files)
    todo = [task for task in tasks if task.id not in known]
    done = 0

    def progress(check: TaskCheck) -> None:
        nonlocal done
        done += 1
        known[check.task_id] = check
        if check.problem or done % 50 == 0 or done == len(todo):
            _say(f"{done} of {len(todo)}: {check.task_id}: {check.problem or 'sound'}")

    jobs = len(os.sched_getaffinity(0))
    wait_for(check_tasks(found, todo, sandbox, jobs, progress), "what is checked is kept, and the same command goes on")
    checks = [known[task.id] for task in tasks]
    if as_json:
        out.print_json(json.dumps([asdict(check) for check in checks]))
    else:
        out.print(_table(checks))
        for check in checks:
            if check.problem:
                out.print(f"quarantined: {check.task_id}: {check.problem}", markup=False, soft_wrap=True)
    if any(check.problem for check in checks):
        raise typer.Exit(1)


def _table(checks: Sequence[TaskCheck]) -> Table:
    """One row a split, and one for all."""
    table = Table(
        "split", "tasks", "gradable", "gold passes", "untouched earns", "at most", "quarantined", "s each", box=None
    )
    splits = {check.task_id.split("/")[1]: "" for check in checks if check.task_id.count("/") > 1}
    for split in (*splits, "all"):
        rows = [check for check in checks if split == "all" or check.task_id.split("/")[1] == split]
        graded = [check.untouched for check in rows if check.untouched is not None]
        golds = [check.gold for check in rows if check.gold is not None]
        table.add_row(
            split,
            str(len(rows)),
            str(len(graded)),
            f"{sum(gold >= 1 for gold in golds)} of {len(golds)}",
            str(sum(value > 0 for value in graded)),
            f"{max(graded, default=0):.3f}",
            str(sum(bool(check.problem) for check in rows)),
            f"{sum(check.grading_s for check in rows) / max(1, len(graded)):.2f}",
        )
    return table


def _selected(found: suites.Found, ids: Sequence[str], split: str | None, first: int | None) -> list[Task]:
    """Raises TaskError for an id that there is not."""
    splits = _splits(found) if split is None else {split: found.source.tasks(split)}
    tasks = [task for part in splits.values() for task in part[:first]]
    if unknown := set(ids) - {task.id for task in tasks}:
        raise TaskError(
            f"{found.source.name} has no task {sorted(unknown)[0]!r} among those; the first is {tasks[0].id}"
        )
    return [task for task in tasks if not ids or task.id in ids]


def _splits(found: suites.Found) -> dict[str, Sequence[Task]]:
    """Those that the suite has."""
    splits: dict[str, Sequence[Task]] = {}
    problem: TaskError | None = None
    for split in SPLITS:
        try:
            splits[split] = found.source.tasks(split)
        except TaskError as error:
            problem = problem or error
    if not splits and problem is not None:
        raise problem
    return splits


def _suite(name: str) -> Suite:
    if name == "paddock":
        raise TaskError("paddock comes with the package: there is nothing to add")
    if name not in suites.SUITES:
        raise TaskError(f"there is no suite '{name}' to add; there are {', '.join(suites.SUITES)}")
    return suites.SUITES[name]


def _suite_row(suite: Suite) -> dict[str, str | float]:
    found = fetching.added(suite, default_root())
    here = "no" if found is None else "yes" if found.known else "other files"
    return {
        "name": suite.name,
        "here": here,
        "licence": suite.licence,
        "size_mb": suite.size_mb,
        "origin": str(suite.origin),
        "about": suite.about,
    }


def _names_suite(name: str) -> bool:
    return name in suites.SUITES or suites.EXTERNAL.fullmatch(name) is not None or Path(name).is_dir()


def _texts(task: Task) -> list[tuple[str, str]]:
    """The files of the start; of those that are no text, how large they are."""
    found = dict(task.files)
    for path in sorted(task.tree.rglob("*")) if task.tree else ():
        if path.is_file():
            data = path.read_bytes()
            try:
                text = data.decode()
            except UnicodeDecodeError:
                text = f"({len(data)} bytes that are no text)"
            found[str(path.relative_to(task.tree or path))] = text
    return list(found.items())
