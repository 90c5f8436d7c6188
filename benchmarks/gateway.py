"""CPU time, latency and memory of capturing a model call, against two other capture servers, side by side.

`python benchmarks/gateway.py --openenv-python PATH --rllm-python PATH` writes benchmarks/gateway.json; PATH is the
interpreter of an environment with `pip install openenv httptools`, and one with `pip install rllm-model-gateway
httptools`; a side without its interpreter is left out. Each server is a process of its own. This process is the
harnesses: it sends conversations that grow by a reply and a tool result at every call, the whole history each time, as
bodies that are made beforehand. One more process is the inference server, which answers at once with token ids and
log-probabilities; its CPU time is charged to nobody, though there alone the text becomes tokens for the other sides,
while ours does that itself. The sides take turns, call by call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gateway_servers import HEAD, SAYS, STEP, TOOLS, renderer, reply_message, result_text, text
from record import keep, machine

from whippletree.types import Message

OURS, THEIRS = ("whippletree", "whippletree, forwarding"), ("openenv capture", "rllm gateway")
SERVE = {
    "openenv capture": """
import sys, uvicorn
from openenv.core.harness.capture.server import create_app
app = create_app(llm_url=sys.argv[2], model="m", require_registered=False)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_keep_alive=600)
""",
    "rllm gateway": """
import sys, uvicorn
from rllm_model_gateway.models import GatewayConfig, WorkerConfig
from rllm_model_gateway.server import create_app
app = create_app(GatewayConfig(store_worker="memory", workers=[WorkerConfig(url=sys.argv[2])]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", timeout_keep_alive=600)
""",
}
WHAT = {
    "whippletree": "reads, renders to tokens, samples from a sampler in its own process that answers at once, captures",
    "whippletree, forwarding": "the same, but sampling from the inference server over HTTP by token ids",
    "openenv capture": "openenv's capture server over the inference server",
    "rllm gateway": "rllm-model-gateway over the inference server, traces in memory, which is cheaper than its files",
    "direct": "the inference server by itself: what this process and the sockets take",
}


# ---- the sides ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Of all threads since the start, the kernel's clock for the process."""
        return time.clock_gettime((~self.process.pid << 3) | 2)

    def rss_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def path(self, key: str) -> str:
        if self.name in OURS:
            return f"/s/{key}/v1/chat/completions"
        return f"/sessions/{key}/v1/chat/completions" if self.name == "rllm gateway" else "/v1/chat/completions"

    async def captured(self, key: str) -> tuple[int, int]:
        """Calls that the server has of a session, and how many of them continue another."""
        if self.name in OURS:
            told = json.loads(await Talk(self, key).ask("POST", f"/s/{key}/end", b"{}"))
            return sum(told["calls"].values()), told["counts"].get("continuation", 0)
        told = json.loads(await Talk(self, key).ask("GET", f"/sessions/{key}"))
        calls = told.get("trace_count", told.get("n_turns"))
        return calls, calls - told.get("n_roots", 1)


@dataclass(slots=True)
class Talk:
    """A harness at work: one connection, one conversation."""

    side: Side
    key: str
    calls: int = 0
    _messages: list[bytes] = field(default_factory=list[bytes])
    _stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def next_body(self) -> bytes:
        """The conversation so far, and one turn more."""
        if not self._messages:
            begin = [("system", text(820, f"{self.key} system")), ("user", text(60, f"{self.key} user"))]
            self._messages = [json.dumps({"role": role, "content": said}).encode() for role, said in begin]
        else:
            said = result_text(self.key, self.calls)
            result = {"role": "tool", "tool_call_id": f"call_{self.calls - 1}", "content": said}
            self._messages += [json.dumps(reply_message(self.calls - 1)).encode(), json.dumps(result).encode()]
        tools = json.dumps(TOOLS).encode()
        self.calls += 1
        return b'{"model":"m","max_tokens":1024,"messages":[%b],"tools":%b}' % (b",".join(self._messages), tools)

    async def call(self, body: bytes) -> float:
        """Seconds until the whole reply is here."""
        begin = time.perf_counter()
        told = await self.ask("POST", self.side.path(self.key), body)
        seconds = time.perf_counter() - begin
        assert SAYS.encode() in told, told[:300]
        return seconds

    async def ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        if self._stream is None:
            self._stream = await asyncio.open_connection("127.0.0.1", self.side.port)
        reader, writer = self._stream
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        told = await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
        assert b" 200 " in answer, (answer, told)
        return told

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()


@asynccontextmanager
async def open_sides(pythons: dict[str, str | None]) -> AsyncIterator[list[Side]]:
    """The servers, the inference server itself the last, all of them answering."""
    ours = [sys.executable, str(Path(__file__).with_name("gateway_servers.py"))]
    upstream = _start("direct", lambda port: [*ours, "upstream", str(port)])
    url = f"http://127.0.0.1:{upstream.port}"
    sides = [
        _start("whippletree", lambda port: [*ours, "ours", str(port)]),
        _start("whippletree, forwarding", lambda port: [*ours, "ours", str(port), url]),
    ]
    for name in THEIRS:
        if python := pythons[name]:
            sides.append(_start(name, lambda port: [python, "-c", SERVE[name], str(port), url]))  # noqa: B023
        else:
            print(f"{name} is left out: no interpreter with it was given", file=sys.stderr)
    sides.append(upstream)
    try:
        for side in sides:
            for _ in range(600):
                try:
                    (await asyncio.open_connection("127.0.0.1", side.port))[1].close()
                    break
                except OSError:
                    assert side.process.poll() is None, f"{side.name} has ended"
                    await asyncio.sleep(0.1)
        yield sides
    finally:
        for side in sides:
            side.process.kill()
            side.process.wait()


def _start(name: str, command: Callable[[int], list[str]]) -> Side:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return Side(name, port, subprocess.Popen(command(port)))


# ---- what is measured --------------------------------------------------------------------------------------------


async def round_of(side: Side, talks: Sequence[Talk]) -> tuple[list[float], float]:
    """One call of each at the same time: seconds of each, and CPU seconds of the server."""
    bodies = [talk.next_body() for talk in talks]
    begin = side.cpu_s()
    seconds = await asyncio.gather(*(talk.call(body) for talk, body in zip(talks, bodies, strict=True)))
    return seconds, side.cpu_s() - begin


async def check(side: Side, talks: Sequence[Talk]) -> None:
    """Every call was captured, as one conversation."""
    for talk in talks:
        talk.close()
        if side.name != "direct":
            assert await side.captured(talk.key) == (talk.calls, talk.calls - 1), (side.name, talk.key, talk.calls)


async def concurrency(sides: Sequence[Side], sessions: int, calls: int, repeats: int) -> dict[str, dict[str, float]]:
    """Short conversations, so many at a time."""
    seconds: dict[str, list[float]] = {side.name: [] for side in sides}
    cpu_s = dict.fromkeys(seconds, 0.0)
    for repeat in range(repeats):
        talks = {side.name: [Talk(side, f"c{sessions}r{repeat}n{i}") for i in range(sessions)] for side in sides}
        for _ in range(calls):
            for side in sides:
                latencies, used = await round_of(side, talks[side.name])
                seconds[side.name] += latencies
                cpu_s[side.name] += used
        for side in sides:
            await check(side, talks[side.name])
    p50 = {name: statistics.median(taken) * 1e3 for name, taken in seconds.items()}
    p95 = {name: statistics.quantiles(taken, n=20)[-1] * 1e3 for name, taken in seconds.items()}
    return {
        name: {
            "p50_ms": round(p50[name], 2),
            "p95_ms": round(p95[name], 2),
            "added_p50_ms": round(p50[name] - p50["direct"], 2),
            "added_p95_ms": round(p95[name] - p95["direct"], 2),
            "calls_per_cpu_s": round(len(taken) / cpu_s[name]),
        }
        for name, taken in seconds.items()
    }


@dataclass(frozen=True, slots=True)
class Grown:
    cpu_ms: float
    """Per call, over the whole conversation."""
    cpu_ms_at: dict[str, float]
    """By the tokens of the history."""
    rss_mib: float
    """Per session, at the end."""


async def growth(sides: Sequence[Side], sessions: int, history: int) -> dict[str, Grown]:
    """A few conversations that grow to `history` tokens."""
    talks = {side.name: [Talk(side, f"g{i}") for i in range(sessions)] for side in sides}
    before = {side.name: side.rss_mib() for side in sides}
    cpu_ms: dict[str, list[float]] = {side.name: [] for side in sides}
    turns = (history - HEAD) // STEP + 1
    for _ in range(turns):
        for side in sides:
            _, used = await round_of(side, talks[side.name])
            cpu_ms[side.name].append(used / sessions * 1e3)
    memory = {side.name: (side.rss_mib() - before[side.name]) / sessions for side in sides}
    for side in sides:
        await check(side, talks[side.name])

    def near(tokens: int, costs: Sequence[float]) -> float:
        place = min(max((tokens - HEAD) // STEP - 2, 1), turns - 5)
        return round(statistics.median(costs[place : place + 5]), 3)

    return {
        name: Grown(
            round(statistics.mean(costs), 3),
            {f"{tokens // 1000}k": near(tokens, costs) for tokens in (1000, 8000, history)},
            round(memory[name], 2),
        )
        for name, costs in cpu_ms.items()
    }


def encoding_ms() -> float:
    """What the tokenizer takes of each call, where the other sides leave that to the inference server."""
    results = [Message("tool", result_text("encoding", call)) for call in range(200)]
    renderer()
    begin = time.process_time()
    for result in results:
        renderer().encode_messages([result])
    return round((time.process_time() - begin) / len(results) * 1e3, 3)


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    pythons = {"openenv capture": arguments.openenv_python, "rllm gateway": arguments.rllm_python}
    async with open_sides(pythons) as sides:
        await concurrency(sides, 4, 3, 1)  # what the first calls load and import
        grown = await growth(sides, arguments.sessions, arguments.history)
        at_once = {n: await concurrency(sides, n, 4, repeats) for n, repeats in ((1, 12), (32, 2), (256, 1))}
    names = [side.name for side in sides if side.name in THEIRS]

    def ratios(cost: Callable[[Grown], float]) -> dict[str, float]:
        """The other's cost over ours; the second time ours asks the inference server too."""
        return {
            f"{name}{told}": round(cost(grown[name]) / cost(grown[ours]), 2)
            for ours, told in zip(OURS, ("", ", ours forwarding too"), strict=True)
            for name in names
        }

    return {
        "ratios": ratios(lambda side: side.cpu_ms),
        "ratios_at_history": {
            size: ratios(lambda side, at=size: side.cpu_ms_at[at]) for size in grown["direct"].cpu_ms_at
        },
        "ratios_of_memory": ratios(lambda side: side.rss_mib),
        "cpu_ms_per_call": {
            name: {"whole conversation": side.cpu_ms, **side.cpu_ms_at} for name, side in grown.items()
        },
        "of_which_encoding_ms": {OURS[0]: encoding_ms()},
        "rss_mib_per_session": {name: side.rss_mib for name, side in grown.items()},
        "sessions_at_once": at_once,
        "what": {side.name: WHAT[side.name] for side in sides},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openenv-python", help="an interpreter with openenv")
    parser.add_argument("--rllm-python", help="an interpreter with rllm-model-gateway")
    parser.add_argument("--sessions", type=int, default=8, help="that grow a long history")
    parser.add_argument("--history", type=int, default=30_000, help="its tokens")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    result = asyncio.run(measure(arguments)) | {
        "command": "python benchmarks/gateway.py --openenv-python PATH --rllm-python PATH",
        "settings": {"sessions": arguments.sessions, "history": arguments.history, "head": HEAD, "step": STEP},
        "versions": {
            name: _version(python, package)
            for name, python, package in (
                ("openenv capture", arguments.openenv_python, "openenv"),
                ("rllm gateway", arguments.rllm_python, "rllm-model-gateway"),
            )
            if python
        },
        "machine": machine(load),
    }
    keep(__file__, result)


def _version(python: str, package: str) -> str:
    ask = (
        f"import importlib.metadata as m, platform as p; print(m.version({package!r}), 'on Python', p.python_version())"
    )
    return subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
