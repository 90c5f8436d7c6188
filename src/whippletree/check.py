"""Checks of the built-in suite in real sandboxes: for every kind, gold passes, and what is wrong fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from whippletree.errors import TaskError
from whippletree.sandbox import open_sandboxes
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.tasks.paddock.selfcheck import KindReport, check_kind
from whippletree.types import Sandbox


async def check_kinds(names: Sequence[str], seeds: int, sandbox: str) -> list[KindReport]:
    """One report per kind, in the table's order; raises TaskError for an unknown name."""
    if unknown := set(names) - set(KINDS):
        raise TaskError(f"paddock has no kind '{unknown.pop()}'; `whippletree tasks list` lists them")
    sandboxes = open_sandboxes(sandbox)
    opened: list[Sandbox] = []

    async def run_commands(files: Mapping[str, str], commands: Sequence[str]) -> Path:
        for old in opened:
            await old.close()
        opened[:] = [await sandboxes.open(files)]
        for command in commands:
            await opened[0].run(command)
        await opened[0].stop()
        return opened[0].workspace

    try:
        kinds = [kind for kind in KINDS.values() if not names or kind.name in names]
        return [await check_kind(kind, range(seeds), run_commands) for kind in kinds]
    finally:
        await sandboxes.close()
