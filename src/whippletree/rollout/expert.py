"""A scripted agent: knows the commands that solve a task, and speaks the language of any white-box harness.

It stands where the policy's session stands, so that its traces are captured exactly as a policy's are.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whippletree.chat.base import Renderer
from whippletree.gateway.capture import CaptureSession
from whippletree.harness.spec import HarnessSpec
from whippletree.types import Completion, Ids, Message, Request, Sampling, TokenSample, ToolCall

FINAL, CHECKED = "done", "so far so good"
_WRITE = re.compile(r"echo ([\w ]+) > (\S+)")
_REPLACE = re.compile(r"sed -i 's/(\w+)/(\w+)/' (\S+)")


class Dictation:
    """A sampler that says what it is told to say."""

    max_context = 1 << 20

    def __init__(self) -> None:
        self.ids: Ids = np.empty(0, dtype=np.int64)

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        return TokenSample(self.ids, np.zeros(len(self.ids), dtype=np.float32), "stop", policy_version=0)


class Expert(CaptureSession):
    """Does the commands one a turn, plans and verifies where the workflow asks for it, and finishes.

    With `slips`, a share of its turns is a slip that the harness refuses: a call before the plan or instead of the
    verification, of a tool that is not there or does nothing, with a wrong argument, on a file that is not there. After
    a slip it goes on as if nothing had happened, so that its traces show how to recover.

    Where it may delegate, it hands over one command at a time, and plays the sub-agents that run them too.
    """

    def __init__(
        self,
        spec: HarnessSpec,
        commands: Sequence[str],
        renderer: Renderer,
        *,
        files: Mapping[str, str] | None = None,
        slips: float = 0.0,
        rng: random.Random | None = None,
        rollout_id: str = "expert",
    ) -> None:
        self.spec, self.commands, self.renderer = spec, list(commands), renderer
        self.files = files or {}
        self.slips, self.rng = slips, rng or random.Random(0)
        self.slipped: list[int] = []
        """Indices of the calls that are slips."""
        self.dictation = Dictation()
        super().__init__(rollout_id, self.dictation, renderer, Sampling(), seed=0)
        self.planned = not spec.workflow.plan_first
        self.left = list(commands)
        self.handed: list[str] = []
        """The command that a sub-agent is to run."""

    async def complete(self, request: Request) -> Completion:
        message = self.slip(request) or self.answer(request)
        self.dictation.ids = self.renderer.encode_completion(message)
        return await super().complete(request)

    def slip(self, request: Request) -> Message | None:
        """A mistake in handling the harness now and then, never two in a row."""
        index = len(self.calls)
        just_slipped = bool(self.slipped) and self.slipped[-1] >= index - 1
        if request.kind != "main" or self.spec.subagents or just_slipped or self.rng.random() >= self.slips:
            return None
        command = self.rng.choice(self.commands)
        calls = [self.call(command)]
        if self.planned and not self._must_verify(request):  # else any call is refused
            argument = {"text": command}
            calls = [
                *(ToolCall("", tool.name, json.dumps(argument)) for tool in self.spec.tools),
                *(ToolCall("", name, json.dumps(argument)) for name in ("run", "shell", "finish")),
                self.shown("execute_bash", command=f"cat {self.rng.choice(('notes', 'list', 'data'))}.txt"),
                self.shown("file_editor", command="view", path="notes.txt"),
            ]
        self.slipped.append(index)
        return Message("assistant", "", (self.rng.choice(calls),))

    def _must_verify(self, request: Request) -> bool:
        workflow = self.spec.workflow
        cues = (workflow.verify_request, workflow.verify_missing) if workflow.verify_every else ()
        return any(cue in request.messages[-1].content for cue in cues)

    def answer(self, request: Request) -> Message:
        if request.kind == "compaction":
            done = self.commands[: len(self.commands) - len(self.left)]
            return Message("assistant", " ; ".join(["did", *done]))
        if request.kind == "subagent":
            calls = (self.call(self.handed.pop()),) if self.handed else ()
            return Message("assistant", "" if calls else FINAL, calls)
        if not self.planned:
            self.planned = True
            return Message("assistant", " ".join(["plan", *(command.split()[0] for command in self.commands)]))
        if self._must_verify(request):
            return Message("assistant", CHECKED)
        if not self.left:
            return Message("assistant", FINAL)
        command = self.left.pop(0)
        if self.spec.subagents is None:
            return Message("assistant", "", (self.call(command),))
        self.handed = [command]
        return Message("assistant", "", (self.shown("delegate", task=command),))

    def call(self, command: str) -> ToolCall:
        """Writing a file, or replacing a text that occurs once, goes through the editor; all else through the shell."""
        if match := _WRITE.fullmatch(command):
            return self.shown("file_editor", command="create", path=match[2], file_text=match[1] + "\n")
        match = _REPLACE.fullmatch(command)
        if match and self.files.get(match[3], "").count(match[1]) == 1:
            return self.shown("file_editor", command="str_replace", path=match[3], old_str=match[1], new_str=match[2])
        return self.shown("execute_bash", command=command)

    def shown(self, canonical: str, **arguments: Any) -> ToolCall:
        """A call under the names that the harness shows."""
        own, others = self.spec.tools, self.spec.subagents.tools if self.spec.subagents else ()
        tool = next(tool for tool in (*own, *others) if not tool.distractor and tool.canonical == canonical)
        names = {tool.canonical_argument(name): name for name in tool.properties}
        return ToolCall("", tool.name, json.dumps({names[key]: value for key, value in arguments.items()}))
