"""Checkpoint directories of a run, `checkpoints/step-000012`.

Invariant: a directory of that name is complete and on the disk. Work in progress, and what is being deleted, has a
name that starts with a dot.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from whippletree.store.disk import sync_path, sync_tree

_NAME = re.compile(r"step-(\d{6,})")
_KEEP = ".keep"


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def list_checkpoints(folder: Path) -> dict[int, Path]:
    """Complete checkpoints by step, in order of step."""
    found: dict[int, Path] = {}
    if folder.is_dir():
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                found[int(match[1])] = path
    return dict(sorted(found.items()))


def write_checkpoint(folder: Path, step: int, write: Callable[[Path], None], *, keep: bool) -> Path:
    """Let `write` fill an empty directory, then give it its name; an older checkpoint of the step is replaced."""
    folder.mkdir(exist_ok=True)
    final = checkpoint_path(folder, step)
    temporary = folder / f".writing-{final.name}"
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir()
    write(temporary)
    if keep:
        (temporary / _KEEP).touch()
    sync_tree(temporary)
    remove_checkpoint(final)
    temporary.rename(final)
    sync_path(folder)
    return final


def mark_kept(path: Path) -> None:
    """Except the checkpoint from pruning."""
    (path / _KEEP).touch()
    sync_path(path)


def prune_checkpoints(folder: Path, step: int, last: int) -> None:
    """Of the checkpoints up to `step`, delete all but the `last` newest and the kept ones."""
    checkpoints = [path for number, path in list_checkpoints(folder).items() if number <= step]
    for path in checkpoints[: max(0, len(checkpoints) - last)]:
        if not (path / _KEEP).exists():
            remove_checkpoint(path)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint, if it is there; half-deleted it no longer has a checkpoint's name."""
    if path.exists():
        doomed = path.with_name(f".deleting-{path.name}")
        if doomed.exists():
            shutil.rmtree(doomed)
        path.rename(doomed)
        shutil.rmtree(doomed)


def remove_unfinished(folder: Path) -> None:
    """Delete what an interrupted write or deletion has left."""
    for pattern in (".writing-*", ".deleting-*"):
        for path in folder.glob(pattern):
            shutil.rmtree(path)
