"""A scripted agent behind a real agent program: it knows the commands, and speaks as the program's model would.

It stands where the policy's session stands, so that its traces are captured exactly as a policy's are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from string import Template

from whippletree.chat.base import Renderer
from whippletree.gateway.capture import CaptureSession
from whippletree.rollout.adapters.base import ShellTool
from whippletree.rollout.expert import FINAL, Dictation
from whippletree.types import Completion, Message, Request, Sampling, ToolCall

ASIDE = "ok"
"""What it says where it is asked for a title, a summary or the like."""


class DictatedSession(CaptureSession):
    """Runs the commands through the program's shell tool, one a turn, and ends."""

    def __init__(self, rollout_id: str, renderer: Renderer, shell: ShellTool, commands: Sequence[str]) -> None:
        self._dictation = Dictation()
        super().__init__(rollout_id, self._dictation, renderer, Sampling(max_tokens=1 << 16), seed=0)
        self._shell, self._renderer, self._left = shell, renderer, list(commands)

    async def complete(self, request: Request) -> Completion:
        offered = {tool.name for tool in request.tools}
        acts = self._shell.name in offered if self._shell.name else not offered
        message = self._next() if acts else Message("assistant", ASIDE)
        self._dictation.ids = self._renderer.encode_completion(message)
        return await super().complete(request)

    def _next(self) -> Message:
        shell = self._shell
        if self._left:
            command = self._left.pop(0)
            arguments = _filled(shell.arguments, command=command, quoted=repr(command))
            if not shell.name:
                return Message("assistant", str(arguments["text"]))
            return Message("assistant", "", (ToolCall("", shell.name, json.dumps(arguments)),))
        if shell.final_tool:
            arguments = _filled(shell.final_arguments, answer=FINAL)
            return Message("assistant", "", (ToolCall("", shell.final_tool, json.dumps(arguments)),))
        return Message("assistant", Template(shell.final).substitute(answer=FINAL, quoted=repr(FINAL)))


def _filled(templates: Mapping[str, str | tuple[str, ...]], **values: str) -> dict[str, str | list[str]]:
    def fill(text: str) -> str:
        return Template(text).substitute(values)

    return {name: fill(text) if isinstance(text, str) else [*map(fill, text)] for name, text in templates.items()}
