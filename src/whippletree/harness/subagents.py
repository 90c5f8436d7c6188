"""Agents that work for an agent: what one of them is, and the harness in which a central agent acts through them alone.

Invariant: a sub-agent is a harness like any other, run by the same interpreter on the same policy.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

from whippletree.harness.levels import patched
from whippletree.harness.spec import HarnessSpec, State
from whippletree.types import Json

CENTRAL = "central"
"""Names this harness; `central:NAME` is that of another harness's agents."""


def subagent(spec: HarnessSpec) -> HarnessSpec:
    """What a sub-agent acts under: its own prompt, tools and limits, and the observations of its caller.

    It keeps its whole history, is bound to no workflow and watched by no hook, and has no one to delegate to.
    """
    assert spec.subagents is not None, f"harness {spec.id} has no sub-agents"
    own = spec.subagents
    return spec.model_copy(
        update={
            "prompt": own.prompt,
            "tools": own.tools,
            "limits": own.limits,
            "subagents": None,
            "state": State(),
            "context": spec.context.model_copy(update={"trigger_turns": None, "keep_turns": 0}),
            "workflow": spec.workflow.model_copy(update={"instruction": "", "plan_first": False, "verify_every": None}),
        }
    )


def central(spec: HarnessSpec) -> HarnessSpec:
    """The agent of a harness becomes a sub-agent with the same prompt and tools; a central agent hands it the work."""
    patch = _patch()
    own = {name: spec.model_dump(mode="json")[name] for name in ("prompt", "tools")}
    whole = patched(spec, {**patch, "subagents": {**patch["subagents"], **own}}, "the harness of a central agent")
    return whole.model_copy(update={"id": f"{CENTRAL}:{spec.id}", "parent": spec.id})


@cache
def _patch() -> dict[str, Json]:
    file = resources.files("whippletree.harness") / "levels" / "central.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
