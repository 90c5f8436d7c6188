"""Sandboxes by bubblewrap: one set of Linux namespaces per rollout, without a daemon and without root.

A command sees the system's programs read-only, a private /tmp, /dev and /proc, no network, none of the host's
processes, and its files at /workspace; it runs as an unprivileged user who cannot gain privileges. There are no
terminals. Not limited: total disk space and CPU. The kernel is shared with the host, so this keeps out mistakes and
mischief, not kernel exploits. An agent program in a furnished sandbox gets a /dev with terminals besides, as such
programs run commands in them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.sandbox.base import BARE, Furnishing, SandboxLimits, Scene
from whippletree.sandbox.host import HostSandboxes, Views
from whippletree.sandbox.launch import Launch, limits_prologue
from whippletree.sandbox.spawn import sandbox_owner, spawn
from whippletree.sandbox.workspace import WorkspaceRoot

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/workspace",
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}
VIEWS = Views(
    workspace="/workspace", home="/home/agent", program="/opt/harness", tools="/opt/tools", grader="/opt/grader"
)
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/workspace:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_OLDEST_KERNEL = (5, 14)
_PROCESS_HINT = 'The sandbox kind "process" runs without isolation; it must be asked for by name.'


def open_bubblewrap(limits: SandboxLimits, bwrap: str = "bwrap") -> HostSandboxes:
    """Check that sandboxes can be made here, and make ready to. Raises SandboxError that says how to mend it."""
    release = os.uname().release
    if (version := re.match(r"(\d+)\.(\d+)", release)) and tuple(map(int, version.groups())) < _OLDEST_KERNEL:
        raise SandboxError(
            f"Linux {release} counts the processes of all sandboxes together; bubblewrap sandboxes need Linux 5.14 or "
            f"newer. {_PROCESS_HINT}"
        )
    program = shutil.which(bwrap)
    if program is None:
        raise SandboxError(
            f"bubblewrap was not found (looked for {bwrap!r}). Install it: `apt install bubblewrap` (Debian, Ubuntu), "
            f"`dnf install bubblewrap` (Fedora, RHEL) or `pacman -S bubblewrap` (Arch). {_PROCESS_HINT}"
        )
    root = WorkspaceRoot(sandbox_owner())
    try:
        base = _Bases(program, root.path)
        _probe(base.with_points(()), root)
    except BaseException:
        root.close()
        raise

    def launch(place: Path, furnishing: Furnishing | None, scene: Scene) -> Launch:
        command = (*base.with_points(mount_points(furnishing, scene)), *binds(place, furnishing, scene))

        def argv(info: int) -> Sequence[str]:
            return (*command, "--info-fd", str(info), "bash", "--norc", "--noprofile")

        own = scene.limits or (furnishing.limits if furnishing else limits)
        prologue = limits_prologue(own, count_processes=True, furnished=furnishing is not None)
        environment = ENVIRONMENT
        if scene.tools is not None:
            environment = {**ENVIRONMENT, "PATH": f"{VIEWS.tools}/bin:{ENVIRONMENT['PATH']}"}
        return Launch(argv, environment, prologue, namespaced=True)

    return HostSandboxes(launch, limits, root, views=VIEWS)


def explain(stderr: str) -> str:
    """What bubblewrap's last words mean, and what can be done: one paragraph for the user."""
    text = stderr.strip()
    if re.search(r"uid map: (Permission denied|Operation not permitted)|RTM_NEWADDR|clone3?: Permission denied", text):
        advice = (
            "this system does not let programs use user namespaces. On Ubuntu 23.10 or newer AppArmor forbids it: "
            "install a profile for bwrap (`apt install apparmor-profiles` and load bwrap-userns-restrict), or run "
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`. In a container, start it with "
            "`--security-opt seccomp=unconfined --security-opt apparmor=unconfined`."
        )
    elif re.search(r"unprivileged_userns_clone|new namespace failed: Operation not permitted", text):
        advice = (
            "new namespaces are forbidden. On the host, run `sysctl -w kernel.unprivileged_userns_clone=1`. In a "
            "container, start it with `--security-opt seccomp=unconfined` or `--cap-add SYS_ADMIN`."
        )
    elif re.search(r"max_\S*namespaces|No space left on device|ENOSPC", text):
        advice = "the limit of user namespaces is reached: run `sysctl -w user.max_user_namespaces=10000`."
    elif re.search(r"mount (new )?proc|/newroot/proc", text):
        advice = (
            "a new /proc cannot be mounted because the container masks parts of its own. Start it with "
            "`--security-opt systempaths=unconfined`."
        )
    elif re.search(r"Can't find source path .*Permission denied", text):
        advice = (
            f"the temporary directory {tempfile.gettempdir()} cannot be entered by the sandboxes' user. Set TMPDIR to "
            "a directory below which every user may pass, such as /tmp."
        )
    elif re.search(r"execvp bash", text):
        advice = "bash was not found in /bin or /usr/bin: install it there."
    elif re.search(r"Unknown option", text):
        advice = "this bubblewrap is too old: version 0.5 or newer is needed."
    else:
        advice = "the cause is not one that is known here."
    return f"bubblewrap cannot make a sandbox: {advice} It said: {text[:300] or '(nothing)'}. {_PROCESS_HINT}"


class _Bases:
    """The command lines of one bubblewrap by the mount points that their root has, each made at first use."""

    def __init__(self, program: str, root: Path) -> None:
        self._program, self._root = program, root
        self._made: dict[tuple[str, ...], tuple[str, ...]] = {}

    def with_points(self, points: tuple[str, ...]) -> tuple[str, ...]:
        if points not in self._made:
            system = make_system(self._root / f"system-{len(self._made)}", points)
            self._made[points] = command_line(self._program, system)
        return self._made[points]


def mount_points(furnishing: Furnishing | None, scene: Scene) -> tuple[str, ...]:
    """Where more than the workspace is seen. Raises SandboxError for a second path that the workspace cannot have."""
    points = (VIEWS.home, VIEWS.program) if furnishing else ()
    points += (VIEWS.tools,) if scene.tools else ()
    points += (VIEWS.grader,) if scene.grader else ()
    if not scene.workspace_at:
        return points
    path = Path(scene.workspace_at)
    taken = (*_SYSTEM, "usr", "proc", "dev", "etc", "tmp", "workspace")
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 2 or path.parts[1] in taken:
        raise SandboxError(
            f"the workspace cannot be seen at {scene.workspace_at!r}: expected an absolute path such as /srv/work, "
            f"not below /{', /'.join(taken)}"
        )
    return (*points, str(path))


def command_line(program: str, system: Path) -> tuple[str, ...]:
    """bwrap with the namespaces and the file system of `make_system`; `binds` and a program must follow."""
    flags = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-net --unshare-cgroup-try"
    more = "--uid 1000 --gid 1000 --hostname sandbox --die-with-parent --new-session --as-pid-1"
    # Nested user namespaces would hand commands more of the kernel to attack.
    newer = ["--disable-userns"] if _version(program) >= (0, 8) else []
    # Every bind costs a pass over all mounts of the host, which is why all else is in one directory.
    mounts = ["--ro-bind", str(system), "/", "--ro-bind", "/usr", "/usr", "--proc", "/proc"]
    for name in _SYSTEM:
        if (system / name).is_dir() and not (system / name).is_symlink():
            mounts += ["--ro-bind", f"/{name}", f"/{name}"]
    for name in _DEVICES:
        mounts += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    return (program, *flags.split(), *more.split(), *newer, *mounts)


def binds(place: Path, furnishing: Furnishing | None = None, scene: Scene = BARE) -> tuple[str, ...]:
    """The part of one sandbox, whose directory is `place`."""
    # /tmp is a directory rather than a tmpfs so that it outlives a restart of the shell.
    own = ("--bind", f"{place}/workspace", VIEWS.workspace, "--bind", f"{place}/tmp", "/tmp")
    if furnishing is not None:
        own += ("--bind", f"{place}/home", VIEWS.home, "--ro-bind", str(furnishing.program), VIEWS.program)
        own += ("--dev", "/dev")
    if scene.tools is not None:
        own += ("--ro-bind", str(scene.tools), VIEWS.tools)
    if scene.grader is not None:
        own += ("--ro-bind", f"{place}/grader", VIEWS.grader)
    if scene.workspace_at:
        own += ("--bind", f"{place}/workspace", scene.workspace_at)
    return (*own, "--chdir", VIEWS.workspace)


def make_system(system: Path, more: Sequence[str] = ()) -> Path:
    """A root directory that sandboxes see, read-only: mount points, with `more` of them, links, and a minimal /etc."""
    for name in ("usr", "proc", "tmp", "workspace", "dev", "etc", *(path.lstrip("/") for path in more)):
        (system / name).mkdir(parents=True)
    for name in _SYSTEM:
        outside = Path("/", name)
        if outside.is_symlink():
            (system / name).symlink_to(outside.readlink())
        elif outside.is_dir():
            (system / name).mkdir()
    for name in _DEVICES:
        (system / "dev" / name).touch()
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (system / "dev" / name).symlink_to(f"/proc/self/{target}")
    (system / "dev" / "shm").symlink_to("/tmp")
    for name, text in _ETC.items():
        (system / "etc" / name).write_text(text)
    # What the dynamic linker and Debian's alternatives need of the real one.
    if (cache := Path("/etc/ld.so.cache")).exists():
        shutil.copyfile(cache, system / "etc" / cache.name)
    if (alternatives := Path("/etc/alternatives")).is_dir():
        shutil.copytree(alternatives, system / "etc" / alternatives.name, symlinks=True)
    for path in (system, *system.rglob("*")):  # whatever the umask
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return system


def _version(program: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", _output([program, "--version"])[1])
    return tuple(map(int, match.groups())) if match else (0, 0)


def _probe(base: Sequence[str], root: WorkspaceRoot) -> None:
    code, output = _output([*base, *binds(root.make({})), "bash", "--norc", "--noprofile", "-c", ": && /bin/true"])
    if code != 0:
        raise SandboxError(explain(output))


def _output(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a short program, started as sandboxes are."""
    with tempfile.TemporaryFile() as output:
        process = spawn(argv, stdin=subprocess.DEVNULL, output=output.fileno(), env=ENVIRONMENT)
        code = process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")
