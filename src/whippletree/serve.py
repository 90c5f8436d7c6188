"""The gateway by itself: any program that speaks one of the protocols is captured, whoever starts it.

Invariant: a session begins with its first request and ends with `POST .../end`, after a silence, or with the server;
then its rollout is in the run directory, with its reward or, without one, marked as not graded.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import chain, count

from whippletree.config import RunConfig
from whippletree.errors import PolicyError
from whippletree.gateway.capture import CaptureSession
from whippletree.gateway.kinds import Rules, classify
from whippletree.gateway.server import Ending, Gateway, serve
from whippletree.gateway.textual import TextSession
from whippletree.gateway.wire import WireSession
from whippletree.policy.remote import RemoteSampler
from whippletree.run import open_policy, renderer_for
from whippletree.store.run_dir import RunStore
from whippletree.types import Reward, Rollout, Sampling, Score, StopReason

HARNESS = "captured"
SILENCE_S = 1800.0
"""After which a session that nobody ended is taken to be over."""
LOOK_S = 60.0
"""Between two looks for such sessions."""

MakeSession = Callable[[str], CaptureSession | TextSession]


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that holds the policy."""

    base_url: str
    model: str
    tokenizer: str
    """Directory or hub name; needed where the server gives tokens."""
    api_key: str = ""


@dataclass(slots=True)
class Captures:
    """The sessions that are open, and where they go."""

    store: RunStore
    make: MakeSession
    say: Callable[[str], None]
    open: dict[str, tuple[CaptureSession | TextSession, WireSession]] = field(
        default_factory=dict[str, tuple[CaptureSession | TextSession, WireSession]]
    )

    names: set[str] = field(default_factory=set[str])
    """Of all sessions so far."""
    rewards: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    """By task and harness."""

    def find(self, key: str) -> WireSession:
        """A new session for a key that is not known; a name that is taken up again gets a number."""
        tries = chain([key], (f"{key}/{number}" for number in count(2)))
        name = next(name for name in tries if name not in self.names)
        self.names.add(name)
        session = self.make(name)
        wire = WireSession(session)
        self.open[key] = (session, wire)
        self.say(f"{name}: begun")
        return wire

    async def end(self, key: str, ending: Ending) -> Rollout | None:
        """Store what the session has captured; None where there is no such session."""
        if key not in self.open:
            return None
        session, wire = self.open.pop(key)
        await wire.settle()
        session.name_kinds(classify(session.calls, Rules()))
        rollout = _rollout(key, session, wire, ending)
        self.store.commit_scores(HARNESS, "gateway", -1, self._cells(rollout), [rollout])
        kinds = ", ".join(f"{number} {kind}" for kind, number in Counter(call.kind for call in rollout.calls).items())
        tokens = sum(len(call.completion_ids) for call in rollout.calls)
        verdict = f"reward {rollout.reward.value:g}" if rollout.reward else f"not graded: {rollout.error}"
        self.say(f"{session.rollout_id}: ended, {kinds or 'no call'}, {tokens} sampled tokens, {verdict}")
        return rollout

    async def end_all(self) -> None:
        for key in list(self.open):
            await self.end(key, Ending())

    def silent(self) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [k for k, (_, wire) in self.open.items() if not wire.busy and now - wire.last_active > SILENCE_S]

    def _cells(self, rollout: Rollout) -> list[Score]:
        if rollout.reward is None:
            return []
        rewards = self.rewards[rollout.task_id, rollout.harness]
        rewards.append(rollout.reward.value)
        passes = tuple(Reward(value).passed for value in rewards)
        return [Score(rollout.task_id, HARNESS, rollout.harness, passes, tuple(rewards))]


async def serve_gateway(
    config: RunConfig, store: RunStore, address: tuple[str, int], upstream: Upstream | None, say: Callable[[str], None]
) -> None:
    """Serve until cancelled, then store the sessions that are open. Raises GatewayError, PolicyError."""
    async with AsyncExitStack() as stack:
        make, max_context = await _sessions(config, upstream, stack, say)
        if upstream:
            store.set_meta("tokenizer", upstream.tokenizer)  # the configuration's model is not used
        captures = Captures(store, make, say)
        gateway = Gateway(
            model=upstream.model if upstream else config.policy.model, find=captures.find, end=captures.end
        )
        stack.push_async_callback(captures.end_all)
        stack.push_async_callback(gateway.stop)
        server = await serve(gateway, *address)
        url = "http://{}:{}/s/NAME".format(*server.sockets[0].getsockname())
        say(f"listening: give a harness {url} as its base URL ({url}/v1 for OpenAI's protocols), NAME being yours to")
        say(f"choose; end a session with: curl -d '{{\"reward\": 1.0}}' {url}/end")
        say(f"at most {max_context or 'as many as the server takes'} tokens of context (policy.max_context) and")
        say(f"{config.sampling.max_tokens} in a reply (sampling.max_tokens): change them with --set")
        while True:
            await asyncio.sleep(LOOK_S)
            for key in captures.silent():
                await captures.end(key, Ending())
                gateway.close(key)


async def _sessions(
    config: RunConfig, upstream: Upstream | None, stack: AsyncExitStack, say: Callable[[str], None]
) -> tuple[MakeSession, int | None]:
    """What makes a session from its key, and the context of the policy that it asks; None where that is unknown."""
    sampling = Sampling(config.sampling.temperature, config.sampling.max_tokens)
    limits = config.rollout
    if upstream is None:
        policy = open_policy(config.policy)
        stack.push_async_callback(policy.close)
        sampler, renderer = policy, policy.renderer
    else:
        remote = RemoteSampler(
            upstream.base_url, upstream.model, max_context=config.policy.max_context, api_key=upstream.api_key
        )
        await stack.enter_async_context(remote)
        if not await remote.returns_tokens():
            say(f"{upstream.base_url} returns no token ids with log-probabilities: only text is captured, for reading")
            say("and export; nothing of it can be trained on. vLLM 0.10 or newer returns them.")
            return lambda name: TextSession(name, upstream.model, sampling, remote.post), None
        if "max_context" not in config.policy.model_fields_set:
            remote.max_context = await remote.stated_context() or remote.max_context
        sampler = remote
        try:
            renderer = renderer_for(upstream.tokenizer)
        except PolicyError as error:
            raise PolicyError(f"{error}; give the model's tokenizer with --tokenizer") from error

    def make(name: str) -> CaptureSession:
        return CaptureSession(
            name,
            sampler,
            renderer,
            sampling,
            seed=config.seed,
            max_calls=limits.max_calls,
            max_tokens=limits.max_tokens,
        )

    return make, sampler.max_context


def _rollout(key: str, session: CaptureSession | TextSession, wire: WireSession, ending: Ending) -> Rollout:
    trainable = any(call.kind == "main" and len(call.completion_ids) for call in session.calls)
    error = None if ending.reward is not None else "no reward was given"
    if wire.failure is not None:
        error = f"{type(wire.failure).__name__}: {wire.failure}"
    if error is None and isinstance(session, CaptureSession) and not trainable:
        error = "no_trainable_token: no main call with a sampled token was captured"
    return Rollout(
        id=f"captured/{session.rollout_id}",
        task_id=ending.task or key,
        task_kind=HARNESS,
        harness=ending.harness or HARNESS,
        step=-1,
        purpose="evaluate",
        calls=tuple(session.calls),
        reward=Reward(ending.reward) if error is None and ending.reward is not None else None,
        stop_reason=(wire.stop_reason or StopReason.HARNESS_EXIT) if error is None else StopReason.ERROR,
        error=error,
        num_turns=sum(call.kind == "main" for call in session.calls),
        counts=dict(session.paths.counts + wire.counts),
    )
