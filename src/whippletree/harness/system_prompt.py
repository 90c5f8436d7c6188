"""The S factor: the messages that open a rollout, the same for every rollout of a task under a harness."""

from __future__ import annotations

from whippletree.harness.spec import HarnessSpec
from whippletree.harness.texts import fill
from whippletree.types import Message, Task


def render(spec: HarnessSpec, task: Task) -> tuple[Message, Message]:
    """The system message, made of the prompt's sections and the workflow's instruction, and the user message."""
    workflow = fill(spec.workflow.instruction, {"verify_every": spec.workflow.verify_every})
    texts = [*(section.text for section in spec.prompt.sections), workflow]
    system = "\n".join(text for text in texts if text)
    return Message("system", system), Message("user", fill(spec.prompt.user, {"instruction": task.instruction}))
