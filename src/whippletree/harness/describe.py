"""Exactly what a model sees under a harness, as text to read.

Invariant: everything comes from the functions that the interpreter calls; nothing is worded again here.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from whippletree.harness import context, observation, system_prompt, tools
from whippletree.harness.context import Turn
from whippletree.harness.spec import HarnessSpec
from whippletree.harness.subagents import subagent
from whippletree.types import ExecResult, Message, Task, ToolCall

_EXAMPLE_TASK = Task("example", "example", "example", "example", 1, "(the instruction of the task)")
_EXAMPLE_RESULT = ExecResult("(the output of the tool)\n", exit_code=0)


def describe(spec: HarnessSpec, task: Task | None = None) -> str:
    """The opening messages, the tools, an observation, and the texts of the context policy and the workflow."""
    task = task or _EXAMPLE_TASK
    spec = tools.draw_names(spec, task.id)
    parts = [f"harness {spec.id}  {spec.content_hash}"]
    parts += [f"== {title} ==\n{text}" for title, text in _parts(spec, task)]
    return "\n\n".join(parts) + "\n"


def _parts(spec: HarnessSpec, task: Task) -> Iterator[tuple[str, str]]:
    opening = system_prompt.render(spec, task)
    for message in opening:
        yield message.role, message.content
    for tool in tools.shown(spec):
        yield f"tool {tool.name}", f"{tool.description}\n{json.dumps(tool.parameters)}"
    rng = random.Random(0)
    host = observation.draw_host(rng)
    name = next(tool.name for tool in spec.tools if not tool.distractor)
    answer = observation.render(spec, name, _EXAMPLE_RESULT, host, rng)
    yield "observation", answer
    yield from _workflow(spec)
    for hook_name, hook in sorted(spec.state.hooks.items()):
        yield f"hook {hook_name}: {hook.event}, if {hook.condition}, {hook.action}", hook.message
    if spec.subagents is not None:
        own = subagent(spec)
        yield "system of a sub-agent", system_prompt.render(own, task)[0].content
        for tool in tools.shown(own):
            yield f"tool {tool.name} of a sub-agent", f"{tool.description}\n{json.dumps(tool.parameters)}"
    if spec.context.trigger_turns is not None:
        turn = Turn(
            Message("assistant", "", (ToolCall("0", name, "{}"),)), (Message("tool", answer, tool_call_id="0"),)
        )
        for message in context.request(spec, task, None, [turn]):
            yield f"compaction {message.role}, after more than {spec.context.trigger_turns} turns", message.content
        note = context.note(spec, "(the summary)")
        yield (
            f"user, after compaction, before the last {spec.context.keep_turns} turns",
            (context.messages(opening, note, ())[1].content),
        )


def _workflow(spec: HarnessSpec) -> Iterator[tuple[str, str]]:
    workflow = spec.workflow
    if workflow.plan_first:
        yield "answer to a tool call before the plan", workflow.plan_missing
        yield "user, after the plan", workflow.plan_accepted
    if workflow.verify_every is not None:
        yield f"user, after every {workflow.verify_every} steps", workflow.verify_request
        yield "answer to a tool call before the verification", workflow.verify_missing
        yield "user, after the verification", workflow.verify_accepted
