"""Rollouts in the formats of others: every record as JSON, chats for fine-tuning, and ATIF trajectories.

Invariant: what a document says, the policy was shown and said, word for word; each sampled message is told as new once,
in the first document that has it, and as context in those after it. Words come from `ModelCall.exchange`, so that calls
whose tokens nobody gave can be exported too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from whippletree.errors import StoreError
from whippletree.types import CallKind, Exchange, Json, Message, ModelCall, Part, Rollout, Tool, ToolCall

ATIF_VERSION = "ATIF-v1.8"
Document = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a branch."""

    message: Message
    call: ModelCall | None = None
    """The call that sampled it; None for what was told to the policy."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A call, and everything that was said up to it."""

    leaf: ModelCall
    said: tuple[Said, ...]
    tools: tuple[Tool, ...]
    given_up: bool
    """The same was asked again later, and the later answer was gone on with."""

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        return tuple(said.call for said in self.said if said.call is not None)


def branches(rollout: Rollout, kinds: Sequence[CallKind] | None = None) -> list[Branch]:
    """One per call that no other continues, in order; only those of `kinds` that were not given up, where it is set.

    Raises StoreError where a call has no words.
    """
    words = {call.index: (call, _words(rollout, call)) for call in rollout.calls}
    continued = {exchange.after for _, exchange in words.values()}
    last_continued = {_place(call, said): index for index, (call, said) in words.items() if index in continued}
    given_up = {
        index
        for index, (call, said) in words.items()
        if index not in continued and last_continued.get(_place(call, said), -1) > index
    }

    paths: dict[int | None, list[int]] = {}
    for index, (_, said) in words.items():
        paths[index] = [*paths.get(said.after, ()), index]
    kept = [i for i, (call, _) in words.items() if kinds is None or (call.kind in kinds and i not in given_up)]
    extended = {above for index in kept for above in paths[index][:-1]}
    return [
        Branch(
            leaf=words[index][0],
            said=tuple(said for step in paths[index] for said in _said(*words[step])),
            tools=words[index][1].tools,
            given_up=index in given_up,
        )
        for index in kept
        if index not in extended
    ]


def _said(call: ModelCall, exchange: Exchange) -> tuple[Said, ...]:
    return (*map(Said, exchange.messages), Said(exchange.reply, call))


def _words(rollout: Rollout, call: ModelCall) -> Exchange:
    if call.exchange is None:
        raise StoreError(
            f"rollout '{rollout.id}' was recorded without words, by an older version, and this format is made of them; "
            "--format jsonl exports its tokens"
        )
    return call.exchange


def _place(call: ModelCall, said: Exchange) -> tuple[CallKind, int | None, str]:
    return call.kind, said.after, json.dumps([asdict(message) for message in said.messages])


# ---- everything -------------------------------------------------------------------------------------------------


def as_json(rollout: Rollout) -> Iterator[Document]:
    """The whole record: ids and log-probabilities as lists, words where there are any."""
    yield asdict(rollout)


# ---- chats ------------------------------------------------------------------------------------------------------


def as_chats(rollout: Rollout, kinds: Sequence[CallKind] = ("main",)) -> Iterator[Document]:
    """OpenAI's form for fine-tuning: one document per branch of calls of these kinds, as they are trained here too.

    `weight` is 1 on the assistant messages to learn from: what calls of these kinds sampled, each in one document.
    """
    learned: set[int] = set()
    for branch in branches(rollout, kinds):
        new = {call.index for call in branch.calls if call.kind in kinds} - learned
        learned |= new
        messages = [_chat_message(said, new) for said in branch.said]
        yield {"messages": messages, **({"tools": _tools(branch.tools)} if branch.tools else {})}


def _chat_message(said: Said, new: set[int]) -> Document:
    message = said.message
    told: Document = {"role": message.role, "content": message.content}
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    if message.role == "assistant":
        told["weight"] = int(said.call is not None and said.call.index in new)
    return told


def _tools(tools: Sequence[Tool]) -> list[Json]:
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]


# ---- ATIF -------------------------------------------------------------------------------------------------------


def as_atif(rollout: Rollout) -> Iterator[Document]:
    """One trajectory: the first branch of the main conversation, with every other branch as an embedded trajectory.

    What a branch shares with one before it is marked as copied context and has no metrics. Where the main conversation
    begins anew, as after a compaction, the part before names the part after it in `continued_trajectory_ref`. A rollout
    without a call gives nothing, since a trajectory has at least one step.
    """
    told: set[int] = set()
    documents: list[Document] = []
    segment: Document = {}
    for branch in sorted(branches(rollout), key=_rank):
        document = _trajectory(rollout, branch, told)
        calls = {call.index for call in branch.calls}
        if _is_main(branch) and not calls & told:
            if segment:
                segment["continued_trajectory_ref"] = document["trajectory_id"]
            segment = document
        told |= calls
        documents.append(document)
    if documents:
        first, *others = documents
        first["extra"] |= _outcome(rollout)
        yield {**first, **({"subagent_trajectories": others} if others else {})}


def _is_main(branch: Branch) -> bool:
    return not branch.given_up and any(call.kind == "main" for call in branch.calls)


def _rank(branch: Branch) -> tuple[bool, int, bool, int]:
    """The main conversation first, its parts in order, and in each part what ends with a main call first."""
    return not _is_main(branch), branch.calls[0].index, branch.leaf.kind != "main", branch.leaf.index


def _trajectory(rollout: Rollout, branch: Branch, told: set[int]) -> Document:
    steps: list[Document] = []
    copied = _copied(branch, told)
    for place, said in enumerate(branch.said):
        if said.message.role == "tool":
            _observe(steps, said.message)
        else:
            steps.append(_step(len(steps) + 1, said, copied=place < copied))
    new = [said.call for said in branch.said[copied:] if said.call is not None]
    agent: Document = {"name": rollout.harness, "version": "unknown"}
    if branch.tools:
        agent["tool_definitions"] = _tools(branch.tools)
    return {
        "schema_version": ATIF_VERSION,
        "session_id": rollout.id,
        "trajectory_id": f"{rollout.id}/{branch.leaf.index}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(len(call.prompt_ids) for call in new),
            "total_completion_tokens": sum(len(call.completion_ids) for call in new),
            "total_cached_tokens": sum(call.cached_tokens for call in new),
            "total_steps": sum("is_copied_context" not in step for step in steps),
        },
        "extra": {"kind": branch.leaf.kind, "given_up": branch.given_up},
    }


def _copied(branch: Branch, told: set[int]) -> int:
    """Messages of a branch that a document before it has told."""
    known = [i + 1 for i, said in enumerate(branch.said) if said.call is not None and said.call.index in told]
    return max(known, default=0)


def _step(number: int, said: Said, *, copied: bool) -> Document:
    message, call = said.message, said.call
    if message.role != "assistant":
        step: Document = {"step_id": number, "source": message.role, "message": message.content}
    else:
        step = {"step_id": number, "source": "agent", "message": message.content}
        if message.reasoning:
            step["reasoning_content"] = message.reasoning
        if message.tool_calls:
            step["tool_calls"] = [_tool_call(called) for called in message.tool_calls]
    if copied or (message.role == "assistant" and call is None):
        step["is_copied_context"] = True
    elif call is not None:
        step["llm_call_count"] = 1
        if len(call.completion_ids):  # else text alone was captured
            step["metrics"] = _metrics(call)
        step["extra"] = _extra(call)
    return step


def _extra(call: ModelCall) -> Document:
    updates = {"policy_updates": [list(update) for update in call.updates]} if call.updates else {}
    return {
        "kind": call.kind,
        "finish_reason": call.finish_reason,
        "policy_version": call.policy_version,
        **updates,
    }


def _metrics(call: ModelCall) -> Document:
    parts = None if call.parts is None else [Part(part).name.lower() for part in call.parts.tolist()]
    return {
        "prompt_tokens": len(call.prompt_ids),
        "completion_tokens": len(call.completion_ids),
        "cached_tokens": call.cached_tokens,
        "prompt_token_ids": call.prompt_ids.tolist(),
        "completion_token_ids": call.completion_ids.tolist(),
        "logprobs": call.logprobs.tolist(),
        **({"extra": {"token_parts": parts}} if parts is not None else {}),
    }


def _tool_call(call: ToolCall) -> Document:
    try:
        arguments: Json = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    told: Document = {"tool_call_id": call.id, "function_name": call.name}
    if isinstance(arguments, dict):
        return {**told, "arguments": arguments}
    return {**told, "arguments": {}, "extra": {"arguments": call.arguments}}


def _observe(steps: list[Document], message: Message) -> None:
    """A tool's answer belongs to the last step, which is a step of the system where no agent has spoken."""
    if not steps or steps[-1]["source"] == "user":
        steps.append({"step_id": len(steps) + 1, "source": "system", "message": ""})
    step = steps[-1]
    known = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    result: Document = {"content": message.content}
    if message.tool_call_id in known:
        result["source_call_id"] = message.tool_call_id
    elif message.tool_call_id is not None:
        result["extra"] = {"tool_call_id": message.tool_call_id}
    step.setdefault("observation", {"results": []})["results"].append(result)


def _outcome(rollout: Rollout) -> Document:
    reward = rollout.reward
    return {
        "task_id": rollout.task_id,
        "task_kind": rollout.task_kind,
        "step": rollout.step,
        "purpose": rollout.purpose,
        "reward": None if reward is None else reward.value,
        "reward_parts": {} if reward is None else dict(reward.parts),
        "stop_reason": str(rollout.stop_reason),
        "error": rollout.error,
    }


# ---- lines ------------------------------------------------------------------------------------------------------

FORMATS: Mapping[str, Callable[[Rollout], Iterator[Document]]] = {
    "jsonl": as_json,
    "openai": as_chats,
    "atif": as_atif,
}


def line(document: Document) -> str:
    """One line of JSON."""
    return json.dumps(document, default=_plain)


def _plain(value: Any) -> Json:
    return value.tolist() if isinstance(value, np.ndarray) else dict(value)
