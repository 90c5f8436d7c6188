"""The way from a sandbox to this process: real clients reach it, nobody else does, and nothing of it stays."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shlex
import socket
import time
from pathlib import Path

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox import SandboxLimits, open_sandboxes
from whippletree.sandbox.base import Furnishing
from whippletree.sandbox.network import PORT, listen_in

PYTHON = "/usr/bin/python3"
FURNISHING = Furnishing(Path("/usr/share"), SandboxLimits(command_timeout_s=30.0, memory_mb=4096, max_processes=512))

needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"{PYTHON} is not there")
needs_node = pytest.mark.skipif(not Path("/usr/bin/node").exists(), reason="/usr/bin/node is not there")


def python(code: str) -> str:
    return f"{PYTHON} -c {shlex.quote(code)}"


async def serve(listening: socket.socket, answer: bytes) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(handle, sock=listening)


def url(listening: socket.socket) -> str:
    return f"http://127.0.0.1:{listening.getsockname()[1]}/"


def running(marker: str) -> bool:
    """Whether a process with `marker` in its command line is alive; waits some seconds for it to go."""
    for _ in range(500):
        found = False
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found |= marker.encode() in path.read_bytes()
            except OSError:
                continue
        if not found:
            return False
        time.sleep(0.01)
    return True


def accept_all(listening: socket.socket) -> int:
    """How many connections were waiting."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listening.accept()[0].close()
            count += 1
    return count


@needs_python
def test_python_reaches_the_listening_socket(play):
    async def script(sandbox):
        listening = await sandbox.listen()
        server = await serve(listening, b"pong")
        result = await sandbox.run(
            python(f"import urllib.request as r; print(r.urlopen({url(listening)!r}).read().decode())")
        )
        server.close()
        return result.output

    assert play(script, furnishing=FURNISHING) == "pong\n"


@needs_node
def test_node_reaches_the_listening_socket_by_name_and_by_address(play):
    async def script(sandbox):
        listening = await sandbox.listen()
        server = await serve(listening, b"pong")
        fetches = "".join(
            f"console.log(await (await fetch('{address}')).text());"
            for address in (url(listening), url(listening).replace("127.0.0.1", "localhost"))
        )
        result = await sandbox.run(f"node --input-type=module -e {shlex.quote(fetches)}")
        server.close()
        return result.output

    assert play(script, furnishing=FURNISHING) == "pong\npong\n"


@needs_python
def test_each_sandbox_reaches_its_own_socket_at_the_same_address(play_bubblewrap):
    async def main() -> list[str]:
        sandboxes = open_sandboxes("bubblewrap")
        boxes = [await sandboxes.open({}, FURNISHING) for _ in range(3)]
        listening = await asyncio.gather(*(box.listen() for box in boxes))
        assert {one.getsockname() for one in listening} == {("127.0.0.1", PORT)}
        servers = [await serve(one, str(i).encode()) for i, one in enumerate(listening)]
        get = python(f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{PORT}').read().decode())")
        results = await asyncio.gather(*(box.run(get) for box in boxes))
        for server in servers:
            server.close()
        await sandboxes.close()
        return [result.output.strip() for result in results]

    assert asyncio.run(main()) == ["0", "1", "2"]


def test_the_socket_is_not_the_hosts(play_bubblewrap):
    async def script(sandbox):
        with await sandbox.listen() as listening:
            listening.setblocking(False)
            with socket.socket() as other:
                other.settimeout(1.0)
                other.connect_ex(listening.getsockname())
                with pytest.raises(BlockingIOError):
                    listening.accept()

    play_bubblewrap(script, furnishing=FURNISHING)


@needs_python
def test_a_daemon_ends_with_the_sandbox_and_connects_no_more(play_bubblewrap):
    marker = f"marker{os.getpid()}"
    daemon = f"""
import os, socket, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 9)
while {marker!r}:
    socket.create_connection(("127.0.0.1", {PORT})).close()
    time.sleep(0.01)
"""

    async def script(sandbox):
        loop = asyncio.get_running_loop()
        with await sandbox.listen() as listening:
            listening.setblocking(False)
            await sandbox.run(python(daemon))
            for _ in range(3):
                (await loop.sock_accept(listening))[0].close()
            await sandbox.close()
            assert not running(marker)
            accept_all(listening)  # what was waiting
            await asyncio.sleep(0.1)
            assert accept_all(listening) == 0

    play_bubblewrap(script, furnishing=FURNISHING)


def test_a_sandbox_listens_once_and_not_after_its_stop(play_bubblewrap):
    async def script(sandbox):
        with await sandbox.listen():
            with pytest.raises(SandboxError, match=r"Address already in use.*\"process\""):
                await sandbox.listen()
            await sandbox.stop()
            with pytest.raises(SandboxError, match="is stopped"):
                await sandbox.listen()

    play_bubblewrap(script, furnishing=FURNISHING)


def test_a_network_that_is_gone_cannot_be_entered():
    with pytest.raises(SandboxError, match="cannot be entered"):
        listen_in(2**31 - 1)


def test_many_leave_no_descriptor(play_bubblewrap):
    async def main() -> int:
        sandboxes = open_sandboxes("bubblewrap")

        async def once() -> None:
            box = await sandboxes.open({}, FURNISHING)
            (await box.listen()).close()
            await box.close()

        await once()
        gc.collect()
        before = sum(1 for _ in Path("/proc/self/fd").iterdir())
        for _ in range(5):
            await asyncio.gather(*(once() for _ in range(4)))
        gc.collect()
        after = sum(1 for _ in Path("/proc/self/fd").iterdir())
        await sandboxes.close()
        return after - before

    assert asyncio.run(main()) == 0
