"""Where commands run. One kind of sandbox is one file and one line in `SANDBOXES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from whippletree.errors import SandboxError
from whippletree.sandbox.base import Sandboxes, SandboxLimits
from whippletree.sandbox.bubblewrap import open_bubblewrap
from whippletree.sandbox.process import open_process

__all__ = ["SANDBOXES", "SandboxLimits", "Sandboxes", "open_sandboxes"]

SANDBOXES: Mapping[str, Callable[[SandboxLimits], Sandboxes]] = {
    "bubblewrap": open_bubblewrap,
    "process": open_process,
}


def open_sandboxes(kind: str, limits: SandboxLimits | None = None) -> Sandboxes:
    """A factory of sandboxes of one kind, after a check that this machine can make them.

    Raises SandboxError for an unknown kind and where the check fails; the message says what to do.
    """
    if kind not in SANDBOXES:
        raise SandboxError(f"unknown sandbox kind {kind!r}: expected one of {', '.join(SANDBOXES)}")
    return SANDBOXES[kind](limits or SandboxLimits())
