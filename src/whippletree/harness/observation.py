"""The O factor: how the answer to a tool call is shown.

Invariant: the output and the exit code are real; all other metadata is simulated from the rollout's rng, so that two
runs with one seed show the same text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from xml.sax.saxutils import escape

from whippletree.harness.spec import HarnessSpec
from whippletree.harness.texts import fill
from whippletree.types import ExecResult


@dataclass(frozen=True, slots=True)
class Host:
    """The simulated machine of one rollout."""

    node: str
    pod: str


def draw_host(rng: random.Random) -> Host:
    return Host(node=f"node-{rng.randrange(1, 10)}", pod=f"agent-{rng.randrange(100, 1000)}")


def render(spec: HarnessSpec, tool: str, result: ExecResult, host: Host, rng: random.Random) -> str:
    """The text of a tool message; `tool` is the name that was called. Line ends at the output's end are dropped."""
    observation = spec.observation
    lines = [result.output.rstrip("\n") or observation.empty]
    if result.truncated:
        lines.append(observation.truncated)
    if result.timed_out:
        lines.append(observation.timed_out)
    output = "\n".join(lines)
    if observation.xml_escape:
        output, tool = escape(output), escape(tool, {'"': "&quot;"})
    fields = {
        "output": output,
        "tool": tool,
        "exit_code": result.exit_code,
        "pid": rng.randrange(100, 1000),
        "duration_s": f"{rng.randrange(1, 100) / 100:.2f}",
        "node": host.node,
        "pod": host.pod,
        "namespace": observation.namespace,
        "scheduled": f"{rng.randrange(1, 100) / 100:.2f}",
    }
    return fill(observation.template, fields)
