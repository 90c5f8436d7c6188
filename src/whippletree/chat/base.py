"""The renderer's contract: messages to tokens and sampled tokens back to a message.

Invariant: rendering is concatenative. A request is `encode_head` of its first messages, then turns
(`opening`, sampled ids, `closing(sampled ids)`) and runs of other messages (`encode_messages`) in any order, and last
`opening`. So what was sampled can be spliced in anywhere and is never encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from whippletree.types import Ids, Message, Parts, Tool


class Renderer(Protocol):
    """All ids have shape (T,) and are not to be written to: they may be cached."""

    stop_ids: tuple[int, ...]
    """Tokens that end an assistant turn when they are sampled."""
    opening: Ids
    """Context that opens an assistant turn; the policy samples right after it."""

    def encode_head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """A request from its start: tools and first messages, without the opening of the answer."""
        ...

    def encode_messages(self, messages: Sequence[Message]) -> Ids:
        """A run of messages after an assistant turn, assistant messages of unknown ids included.

        A run and not one message, because templates may join neighbours (tool results, for example).
        """
        ...

    def encode_completion(self, message: Message) -> Ids:
        """What a policy samples to say `message`: after the opening, to the stop token inclusive."""
        ...

    def closing(self, completion_ids: Ids) -> Ids:
        """Context between a sampled turn and the next message.

        It begins with the end token where sampling stopped short of it: that token is context then, not sampled.
        """
        ...

    def parse(self, completion_ids: Ids, tools: Sequence[Tool]) -> tuple[Message, str | None]:
        """Read sampled ids; the ids of tool calls are left empty.

        Never raises: malformed output gives a message whose content is the whole text, and what is wrong with it in
        words that the model can act on.
        """
        ...

    def parts(self, completion_ids: Ids, message: Message) -> Parts:
        """What each token of the sampled ids that were read as `message` is to its tool calls.

        A token that several parts share belongs to the first of them.
        """
        ...

    def save(self, path: Path) -> None:
        """Write the tokenizer into a model's directory."""
        ...

    def text(self, ids: Ids) -> str:
        """Any ids as readable text, special tokens spelled out."""
        ...
