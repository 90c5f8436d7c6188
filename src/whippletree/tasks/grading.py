"""Graders that are code: run in a sandbox of their own, on a copy of the final workspace, after the harness is gone.

Invariant: whatever such a grader does, it ends with a reward or with one GradingError that says why there is none; a
crash never passes for a reward of 0.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import cast

from whippletree.errors import GradingError, SandboxError
from whippletree.sandbox.base import SandboxLimits, Scene
from whippletree.tasks import confined
from whippletree.tasks.base import Ending
from whippletree.types import ExecResult, Json, Reward, Task

VIEW = "/opt/grader"
"""Where a grader finds its directory."""
_CODE = Path(confined.__file__).read_text(encoding="utf-8")
_MOST_CHARS = 200_000
_LAST_CHARS = 500


async def run_in_sandbox(task: Task, ending: Ending, command: str, *, grader: Path, timeout_s: float) -> ExecResult:
    """The end of a command, which finds a copy of the final workspace and, read-only, `grader` at VIEW.

    There is no network, and nothing of it outlives the call. Raises GradingError where it does not end in `timeout_s`
    or the workspace cannot be copied.
    """
    if ending.sandboxes is None:
        raise GradingError(f"{task.id}: its grader is code, and there is no sandbox to run it in")
    limits = SandboxLimits(
        command_timeout_s=timeout_s,
        max_output_chars=_MOST_CHARS,
        memory_mb=2048,
        max_processes=256,
        max_file_mb=256,
    )
    scene = Scene(ending.workspace, task.workspace_at, task.tools, grader, limits)
    try:
        sandbox = await ending.sandboxes.open({}, None, scene)
        try:
            result = await sandbox.run(command)
        finally:
            await sandbox.close()
    except SandboxError as error:
        raise GradingError(f"{task.id}: its grader could not be run: {error}") from error
    if result.timed_out:
        raise GradingError(f"{task.id}: its grader did not end within {timeout_s:g} s{_last_words(result.output)}")
    return result


async def run_python(
    task: Task, ending: Ending, script: str, arguments: Sequence[str], *, grader: Path, timeout_s: float
) -> str:
    """What a Python script in `grader` prints to its standard output; what its children print does not count.

    Raises GradingError where it crashes, ends with another exit code than 0, or does not end.
    """
    secret = secrets.token_hex(16)
    words = shlex.join(["python3", "-I", "-c", _CODE, f"{VIEW}/{script}", *arguments])
    result = await run_in_sandbox(task, ending, f"{words} <<<{secret}", grader=grader, timeout_s=timeout_s)
    lines = [line for line in result.output.splitlines() if line.startswith(f"{secret} ")]
    if len(lines) != 1:
        raise GradingError(f"{task.id}: its grader ended with exit code {result.exit_code}{_last_words(result.output)}")
    return json.loads(lines[0].removeprefix(f"{secret} "))


def mean_of_checks(task: Task, said: str) -> Reward:
    """The mean of a JSON object's numbers as the reward, each one a part of it; or a lone number.

    Raises GradingError where it is anything else, has no entry, or a number is not in [0, 1].
    """
    try:
        found: Json = json.loads(said)
    except ValueError:
        raise GradingError(f"{task.id}: its grader printed no JSON but {said.strip()[-_LAST_CHARS:]!r}") from None
    parts = cast(Mapping[str, Json], found) if isinstance(found, dict) else {"score": found}
    if not parts:
        raise GradingError(f"{task.id}: its grader made no check")
    values = {name: _checked(task, name, value) for name, value in parts.items()}
    return Reward(sum(values.values()) / len(values), values)


def _checked(task: Task, name: str, value: Json) -> float:
    if not isinstance(value, (bool, int, float)) or not isfinite(value) or not 0 <= value <= 1:
        raise GradingError(f"{task.id}: its grader gave {name!r} the value {value!r}; expected a number in [0, 1]")
    return float(value)


def _last_words(output: str) -> str:
    return f"; it said: {output.strip()[-_LAST_CHARS:]}" if output.strip() else ""
