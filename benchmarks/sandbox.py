"""CPU time of one rollout's sandbox: open, three small commands, close; against a fresh bwrap for each command.

`python benchmarks/sandbox.py` writes benchmarks/sandbox.json. The alternative starts `bwrap ... bash -c COMMAND` for
each command, with the same namespaces, mounts and limits and as cheaply as we know how, and makes and removes the same
directories. The two sides take turns. CPU seconds are those of this process, its children and theirs. Where this
program may make a cpuacct control group (cgroup v1, as root) that group is read, and nothing is missed; elsewhere
getrusage is read, which misses processes that were killed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from record import keep, machine

from whippletree.sandbox import Sandboxes, SandboxLimits, open_sandboxes
from whippletree.sandbox.bubblewrap import ENVIRONMENT, binds, command_line, make_system
from whippletree.sandbox.launch import limits_prologue
from whippletree.sandbox.spawn import sandbox_owner, spawn
from whippletree.sandbox.workspace import WorkspaceRoot, remove

COMMANDS = ("cp data.txt copy.txt", "cat copy.txt", "wc -l copy.txt")
FILES = {"data.txt": "".join(f"line {i}\n" for i in range(40)), "notes/readme.md": "# Notes\n"}
GROUP = Path("/sys/fs/cgroup/cpuacct")


@contextlib.contextmanager
def cpu_clock() -> Iterator[tuple[str, Callable[[], float]]]:
    """The name of the clock and a function that reads it, in seconds."""
    group = GROUP / f"whippletree-benchmark-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield "getrusage, self and children", _rusage_s
        return
    try:
        yield "cgroup cpuacct", lambda: int((group / "cpuacct.usage").read_text()) / 1e9
    finally:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):
            group.rmdir()


def _rusage_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


async def persistent(sandboxes: Sandboxes) -> list[str]:
    """Ours: one shell for all commands."""
    sandbox = await sandboxes.open(FILES)
    outputs = [(await sandbox.run(command)).output for command in COMMANDS]
    await sandbox.close()
    return outputs


def fresh(base: tuple[str, ...], prologue: str, root: WorkspaceRoot) -> list[str]:
    """The alternative, with the same isolation, limits and files."""
    place = root.make(FILES)
    outputs: list[str] = []
    for command in COMMANDS:
        argv = [*base, *binds(place), "bash", "--norc", "--noprofile", "-c", f"{prologue}; {command}"]
        read, write = os.pipe()
        process = spawn(argv, stdin=subprocess.DEVNULL, output=write, env=ENVIRONMENT)
        os.close(write)
        with os.fdopen(read, "rb") as output:
            outputs.append(output.read().decode())
        process.wait()
    remove(place)
    return outputs


async def measure(rounds: int, rollouts: int, concurrency: int) -> dict[str, object]:
    """CPU milliseconds per rollout of both sides, one value for each round."""
    limits = SandboxLimits()
    sandboxes = open_sandboxes("bubblewrap", limits)
    root = WorkspaceRoot(sandbox_owner())
    base = command_line(shutil.which("bwrap") or "bwrap", make_system(root.path / "system"))
    prologue = limits_prologue(limits, count_processes=True)
    ours: list[float] = []
    theirs: list[float] = []
    gate = asyncio.Semaphore(concurrency)

    async def gated() -> None:
        async with gate:
            await persistent(sandboxes)

    assert await persistent(sandboxes) == fresh(base, prologue, root), "the two sides must do the same work"
    with cpu_clock() as (clock, now):
        for _ in range(rounds):
            begin = now()
            await asyncio.gather(*(gated() for _ in range(rollouts)))
            middle = now()
            for _ in range(rollouts):
                fresh(base, prologue, root)
            ours.append((middle - begin) / rollouts * 1e3)
            theirs.append((now() - middle) / rollouts * 1e3)
    await sandboxes.close()
    root.close()
    return {
        "ratios": {"fresh bwrap per command": round(statistics.median(theirs) / statistics.median(ours), 2)},
        "clock": clock,
        "cpu_ms_per_rollout": {
            "whippletree": {"median": round(statistics.median(ours), 2), "rounds": [round(x, 2) for x in ours]},
            "fresh bwrap per command": {
                "median": round(statistics.median(theirs), 2),
                "rounds": [round(x, 2) for x in theirs],
            },
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=60, help="in each round, on each side")
    parser.add_argument("--concurrency", type=int, default=16, help="of our side; the other runs one after another")
    arguments = parser.parse_args()
    result = asyncio.run(measure(**vars(arguments)))
    version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    result |= {
        "what": {
            "whippletree": f"open with {len(FILES)} files, {list(COMMANDS)} in one persistent shell, close",
            "fresh bwrap per command": "the same directories, files, namespaces, mounts and limits, and one "
            "`bwrap ... bash -c COMMAND` for each of the commands, started as cheaply as ours",
        },
        "command": f"python benchmarks/sandbox.py {' '.join(sys.argv[1:])}".strip(),
        "settings": vars(arguments),
        "machine": machine(os.getloadavg()[0]) | {"bubblewrap": version, "root": os.geteuid() == 0},
    }
    keep(__file__, result)


if __name__ == "__main__":
    main()
