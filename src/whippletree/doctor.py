"""Whether a real agent program works here: a scripted episode of three model calls, in a real sandbox."""

from __future__ import annotations

import random
import resource
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from whippletree.errors import HarnessError, WhippletreeError
from whippletree.gateway.server import Gateway
from whippletree.harnesses import Harnesses
from whippletree.rollout.blackbox import BlackBox, Terms
from whippletree.rollout.dictated import DictatedSession
from whippletree.rollout.runner import Attempt
from whippletree.run import nano_renderer
from whippletree.sandbox import open_sandboxes
from whippletree.trajectory.tree import CallTree
from whippletree.types import Task

COMMANDS = ("ls", "echo hello > out.txt")
TASK = Task(
    id="doctor",
    source="doctor",
    split="test",
    kind="doctor",
    tier=1,
    instruction="Write the word hello into the file out.txt.",
    files={"notes.txt": "nothing of interest\n"},
)


@dataclass(frozen=True, slots=True)
class Checkup:
    """What came of one episode."""

    harness: str
    version: str
    problem: str | None
    """None where the program did all that it was told to."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Of the program and all that it started."""
    kinds: Mapping[str, int] | None = None
    """Calls by what they were for."""
    counts: Mapping[str, int] | None = None
    """How the boundary met the requests."""
    prompt_tokens: int = 0
    """Of the first main call, in the embedded policy's tokens."""
    trainable_tokens: int = 0
    one_path: bool = False
    """Whether the main calls are one path of the call tree."""


async def examine(harnesses: Harnesses, name: str, sandbox: str, timeout_s: float) -> Checkup:
    """Play the episode in one harness. Raises HarnessError where the program is not installed, SandboxError."""
    gateway = Gateway()
    terms = Terms(timeout_s=timeout_s, idle_timeout_s=timeout_s, context=131_072, max_tokens=4096)
    runner = harnesses.runner(name, gateway, terms)
    if not isinstance(runner, BlackBox):
        raise HarnessError(f"'{name}' is no agent program; white-box harnesses need no doctor")
    sandboxes = open_sandboxes(sandbox)
    session = DictatedSession("doctor", nano_renderer(), runner.adapter.shell, COMMANDS)
    problem: str | None = None
    started, cpu = time.perf_counter(), _children_cpu_s()
    try:
        opened = await sandboxes.open(TASK.files, runner.furnishing)
        try:
            outcome = await runner.run(Attempt(TASK, opened, session, random.Random(0)))
            await opened.stop()
            written = opened.workspace / "out.txt"
            if not written.is_file() or written.read_text(errors="replace").strip() != "hello":
                problem = f"the program ended ({outcome.stop_reason}) without having run the commands it was given"
        finally:
            await opened.close()
    except WhippletreeError as error:
        problem = str(error)
    finally:
        await sandboxes.close()
        await gateway.stop()
    main = [call for call in session.calls if call.kind == "main"]
    tree = CallTree.build(main)
    return Checkup(
        harness=name,
        version=runner.adapter.package.version,
        problem=problem,
        wall_s=time.perf_counter() - started,
        cpu_s=_children_cpu_s() - cpu,
        kinds=dict(Counter(call.kind for call in session.calls)),
        counts=dict(session.paths.counts),
        prompt_tokens=len(main[0].prompt_ids) if main else 0,
        trainable_tokens=sum(len(call.completion_ids) for call in main),
        one_path=len(tree.branches) == 1,
    )


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
