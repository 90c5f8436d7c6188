"""Sandboxes that are plain processes: the same interface without isolation, to be asked for by name.

It protects the machine from accidents only: commands start in a directory of their own, without the program's
environment, without root, and with limits on memory and file size. It does NOT protect against a command that reads
or writes other files of its user, uses the network, sees or signals other processes of its user (of other sandboxes,
too, and this program itself where that does not run as root), starts any number of processes, or leaves its session
to outlive the sandbox. The workspace has no fixed path. Never give it a policy that you would not give your shell.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.sandbox.base import Furnishing, SandboxLimits, Scene
from whippletree.sandbox.host import HostSandboxes
from whippletree.sandbox.launch import Launch, limits_prologue
from whippletree.sandbox.spawn import sandbox_owner
from whippletree.sandbox.workspace import WorkspaceRoot

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def open_process(limits: SandboxLimits) -> HostSandboxes:
    """Make ready to run commands in plain processes. Raises SandboxError where there is no bash."""
    bash = shutil.which("bash", path=_PATH)
    if bash is None:
        raise SandboxError(f"bash was not found in {_PATH}: install it")

    def argv(_info: int) -> Sequence[str]:
        return (bash, "--norc", "--noprofile")

    def launch(place: Path, furnishing: Furnishing | None, scene: Scene) -> Launch:
        if scene.workspace_at or scene.grader is not None:
            raise SandboxError(
                "a sandbox of plain processes can neither show the workspace at a second path nor keep a grader apart; "
                'these tasks need sandbox.kind = "bubblewrap"'
            )
        workspace = place / "workspace"
        environment = {
            "PATH": f"{scene.tools}/bin:{_PATH}" if scene.tools else _PATH,
            "HOME": str(workspace),
            "TMPDIR": str(place / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        # Processes are counted per user over the whole machine here, so that a limit would hit the wrong ones.
        own = scene.limits or (furnishing.limits if furnishing else limits)
        prologue = limits_prologue(own, count_processes=False, furnished=furnishing is not None)
        return Launch(argv, environment, prologue, namespaced=False, cwd=workspace)

    return HostSandboxes(launch, limits, WorkspaceRoot(sandbox_owner()), views=None)
