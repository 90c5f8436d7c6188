"""A policy that plays its part, and the small world around it that rollout tests share."""

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager

import numpy as np

from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.harness.levels import compose, paper_base, paper_space
from whippletree.rollout.lifecycle import World
from whippletree.rollout.whitebox import WhiteBox
from whippletree.sandbox import open_sandboxes
from whippletree.sandbox.base import BARE
from whippletree.tasks.paddock import Paddock
from whippletree.types import Assignment, Message, Sampling, TokenSample, ToolCall

RENDERER = CompactRenderer(train_tokenizer(["a few words"], 280))
PADDOCK = Paddock(tiers=(1,), per_split={"train": 100})
BASE = "S0T0O0C0W0"


def spec(name):
    return compose(paper_space(), paper_space().parse(name), paper_base())


def say(text):
    return Message("assistant", text)


def bash(command):
    return Message("assistant", "", (ToolCall("", "execute_bash", json.dumps({"command": command})),))


class ScriptedPolicy:
    """Says `script(session)[n]`, or `script[n]`, in the n-th call of a session.

    An item is a message, ids, an exception to raise, or an async function to wait for.
    """

    max_context = 1 << 20
    renderer = RENDERER
    version = 0

    def __init__(self, script):
        self.script = script if callable(script) else lambda session: script
        self.seeds = {}
        self.workers = self.most_workers = 0

    @contextmanager
    def worker(self):
        self.workers += 1
        self.most_workers = max(self.most_workers, self.workers)
        try:
            yield
        finally:
            self.workers -= 1

    async def sample(self, prompt_ids, sampling, *, stop_ids, session, seed):
        seeds = self.seeds.setdefault(session, [])
        seeds.append(seed)
        item = self.script(session)[len(seeds) - 1]
        await asyncio.sleep(0)
        if callable(item):
            item = await item()
        if isinstance(item, Exception):
            raise item
        ids = RENDERER.encode_completion(item) if isinstance(item, Message) else item
        return TokenSample(ids, np.full(len(ids), -1.0, dtype=np.float32), "stop", policy_version=0)


class Watched:
    """Sandboxes that remember what they opened."""

    def __init__(self, inner, before_open=None):
        self.inner, self.before_open = inner, before_open
        self.opened = []

    async def open(self, files, furnishing=None, scene=BARE):
        if self.before_open is not None:
            await self.before_open()
        sandbox = await self.inner.open(files, furnishing, scene)
        self.opened.append(sandbox)
        return sandbox

    async def close(self):
        await self.inner.close()

    @property
    def left(self):
        """Workspaces that still exist."""
        return [sandbox.workspace for sandbox in self.opened if sandbox.workspace.exists()]


def make_world(policy, sandboxes, **changes):
    settings = {"sampling": Sampling(max_tokens=64), "seed": 0, "max_calls": 20, "max_tokens": 5000, "timeout_s": 600.0}
    harness = {"harness": lambda name: WhiteBox(spec(name)), "tasks": PADDOCK}
    return World(
        policy=policy,
        sandboxes=sandboxes,
        **settings | harness | changes,
    )


@asynccontextmanager
async def opened_world(policy, **changes):
    """A world whose sandboxes are closed at the end."""
    sandboxes = open_sandboxes("process")
    try:
        yield make_world(policy, sandboxes, **changes)
    finally:
        await sandboxes.close()


def assignment(kind="copy", number=0, harness=BASE, num_rollouts=1, step=0):
    return Assignment(step, PADDOCK.task_by_id(f"paddock/train/{kind}/{number}"), harness, num_rollouts)
