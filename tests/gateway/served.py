"""A gateway on a real socket with scripted samplers behind it, as the server's tests share it."""

import asyncio
from contextlib import asynccontextmanager

from scripted_sampler import RENDERER, ScriptedSampler

from whippletree.gateway.capture import CaptureSession
from whippletree.gateway.server import Gateway, serve
from whippletree.gateway.wire import WireSession
from whippletree.types import Sampling


class Served:
    """One gateway; `session` opens a session that plays a script, and gives its base URL."""

    def __init__(self, gateway, port):
        self.gateway, self.port = gateway, port

    def session(self, *script, sampler=None, max_context=1 << 20, **limits):
        sampler = sampler or ScriptedSampler(script, max_context)
        capture = CaptureSession("r0", sampler, RENDERER, Sampling(max_tokens=200), seed=1, **limits)
        wire = WireSession(capture)
        key = self.gateway.open(wire)
        return f"http://127.0.0.1:{self.port}/s/{key}", capture, wire


@asynccontextmanager
async def served(**settings):
    gateway = Gateway(**settings)
    server = await serve(gateway, "127.0.0.1", 0)
    try:
        yield Served(gateway, server.sockets[0].getsockname()[1])
    finally:
        await gateway.stop()


def play(story, **settings):
    """Run `story(served)` to its end."""

    async def run():
        async with served(**settings) as there:
            return await story(there)

    return asyncio.run(run())
