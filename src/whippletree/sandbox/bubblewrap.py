"""Sandboxes by bubblewrap: one set of Linux namespaces per rollout, without a daemon and without root.

A command sees the system's programs read-only, a private /tmp, /dev and /proc, no network, none of the host's
processes, and its files at /workspace; it runs as an unprivileged user who cannot gain privileges. Not limited: total
disk space and CPU. The kernel is shared with the host, so this keeps out mistakes and mischief, not kernel exploits.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.sandbox.base import SandboxLimits
from whippletree.sandbox.host import HostSandboxes
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
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nagent:x:1000:1000:agent:/workspace:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_CHDIR = ("--chdir", "/workspace")
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
        make_etc(root.path / "etc")
        base = command_line(program, root.path / "etc")
        _probe(base, root)
    except BaseException:
        root.close()
        raise

    def launch(place: Path) -> Launch:
        def argv(info: int) -> Sequence[str]:
            return (*base, *binds(place), "--info-fd", str(info), "bash", "--norc", "--noprofile")

        return Launch(argv, ENVIRONMENT, limits_prologue(limits, count_processes=True), namespaced=True)

    return HostSandboxes(launch, limits, root)


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
    elif re.search(r"unprivileged_userns_clone|No permissions to creat\w+ new namespace", text):
        advice = (
            "new namespaces are forbidden. On the host, run `sysctl -w kernel.unprivileged_userns_clone=1`. In a "
            "container, start it with `--security-opt seccomp=unconfined` or `--cap-add SYS_ADMIN`."
        )
    elif re.search(r"max_user_namespaces|No space left on device.*namespace|namespace.*No space left", text):
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


def command_line(program: str, etc: Path) -> tuple[str, ...]:
    """bwrap with the namespaces and the system's part of the file system; `binds` and a program must follow."""
    flags = "--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-net --unshare-cgroup-try"
    more = "--uid 1000 --gid 1000 --hostname sandbox --die-with-parent --new-session --as-pid-1"
    # Nested user namespaces would hand commands more of the kernel to attack.
    newer = ("--disable-userns",) if _version(program) >= (0, 8) else ()
    return (program, *flags.split(), *more.split(), *newer, *_system(), "--ro-bind", str(etc), "/etc")


def binds(place: Path) -> tuple[str, ...]:
    """The part of one sandbox, whose directory is `place`."""
    # /tmp is a directory rather than a tmpfs so that it outlives a restart of the shell and takes no memory; /dev/shm
    # likewise. What remains are the two small tmpfs of bubblewrap's own, made read-only.
    own = ("--bind", f"{place}/workspace", "/workspace", "--bind", f"{place}/tmp", "/tmp")
    return (*own, "--bind", f"{place}/tmp", "/dev/shm", "--remount-ro", "/dev", "--remount-ro", "/", *_CHDIR)


def _version(program: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", _output([program, "--version"])[1])
    return tuple(map(int, match.groups())) if match else (0, 0)


def _system() -> tuple[str, ...]:
    arguments = ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in _SYSTEM:
        if os.path.islink(name):  # noqa: PTH114
            arguments += ["--symlink", os.readlink(name), name]  # noqa: PTH115
        elif os.path.isdir(name):  # noqa: PTH112
            arguments += ["--ro-bind", name, name]
    return tuple(arguments)


def make_etc(etc: Path) -> None:
    """A minimal /etc: names of users, and what the dynamic linker and Debian's alternatives need."""
    etc.mkdir()
    for name, text in _ETC.items():
        (etc / name).write_text(text)
    cache = Path("/etc/ld.so.cache")
    if cache.exists():
        shutil.copyfile(cache, etc / "ld.so.cache")
    alternatives = Path("/etc/alternatives")
    if alternatives.is_dir():
        shutil.copytree(alternatives, etc / "alternatives", symlinks=True)
    for path in (etc, *etc.rglob("*")):  # whatever the umask
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def _probe(base: Sequence[str], root: WorkspaceRoot) -> None:
    code, output = _output([*base, *binds(root.make({})), "bash", "--norc", "--noprofile", "-c", ": && /bin/true"])
    if code != 0:
        raise SandboxError(explain(output))


def _output(argv: Sequence[str]) -> tuple[int, str]:
    """Exit code and output of a short program, started as sandboxes are."""
    with tempfile.TemporaryFile() as output, open(os.devnull) as nothing:  # noqa: PTH123
        process = spawn(argv, stdin=nothing.fileno(), output=output.fileno(), env=ENVIRONMENT)
        code = process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")
