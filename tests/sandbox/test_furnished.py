"""Sandboxes for whole agent programs: what they find in there, what they may use, and what is refused."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox import SandboxLimits
from whippletree.sandbox.base import Furnishing
from whippletree.sandbox.workspace import place_for_roots

PYTHON = "/usr/bin/python3"

needs_python = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"{PYTHON} is not there")
needs_node = pytest.mark.skipif(not Path("/usr/bin/node").exists(), reason="/usr/bin/node is not there")


@pytest.fixture
def program():
    """A directory that the sandboxes' user can reach, which those of pytest are not."""
    path = place_for_roots() / f"program-{os.getpid()}"
    path.mkdir(mode=0o755)
    (path / "hello").write_text("#!/bin/sh\necho hello from $0\n")
    (path / "hello").chmod(0o755)
    yield path
    shutil.rmtree(path)


def furnished(program: Path, **limits) -> Furnishing:
    return Furnishing(program, SandboxLimits(**{"command_timeout_s": 30.0, "max_processes": 512, **limits}))


def python(code: str) -> str:
    return f"{PYTHON} -c {shlex.quote(code)}"


# ---- what is in there --------------------------------------------------------------------------------------------


def test_program_and_home_are_there_and_the_workspace_is_the_tasks_alone(play, program):
    async def script(sandbox):
        sandbox.write_home({".agent/config.toml": "model = 'é'\n", "notes": ""})
        home, binary = sandbox.inside(sandbox.home), sandbox.inside(program / "hello")
        seen = await sandbox.run(f"cat {home}/.agent/config.toml; {binary}; ls -A; touch {home}/.agent/new")
        kept = await sandbox.run(f"echo x > {shlex.quote(sandbox.inside(program))}/x")
        assert (sandbox.home / ".agent/new").stat().st_uid == (sandbox.home / "notes").stat().st_uid
        return seen, binary, kept

    seen, binary, kept = play(script, {"task.txt": "x"}, furnished(program))
    assert seen.output == f"model = 'é'\nhello from {binary}\ntask.txt\n"
    assert seen.exit_code == 0
    assert kept.exit_code != 0 or os.geteuid() != 0  # without isolation, only the user's rights keep it out
    (program / "x").unlink(missing_ok=True)


def test_paths_inside_are_the_same_in_each_rollout(play_bubblewrap, program):
    async def script(sandbox):
        return [sandbox.inside(path) for path in (sandbox.workspace / "a/b", sandbox.home, program / "bin/x")]

    expected = ["/workspace/a/b", "/home/agent", "/opt/harness/bin/x"]
    assert play_bubblewrap(script, furnishing=furnished(program)) == expected


def test_paths_inside_are_the_hosts_own_without_isolation(play_process, program):
    async def script(sandbox):
        for path in (sandbox.workspace / "a", sandbox.home, program / "bin/x"):
            assert sandbox.inside(path) == str(path)

    play_process(script, furnishing=furnished(program))


def test_a_path_that_is_not_seen_inside_is_refused(play, program):
    async def script(sandbox):
        with pytest.raises(ValueError, match="/etc/passwd"):
            sandbox.inside(Path("/etc/passwd"))

    play(script, furnishing=furnished(program))


def test_home_is_filled_before_the_first_command_only(play, program):
    async def script(sandbox):
        (await sandbox.listen()).close()
        with pytest.raises(SandboxError, match="stay within the home"):
            sandbox.write_home({"../x": ""})
        sandbox.write_home({".a/b": "1"})
        await sandbox.run("true")
        with pytest.raises(SandboxError, match="a command has run"):
            sandbox.write_home({"c": "1"})

    play(script, furnishing=furnished(program))


def test_a_sandbox_that_is_not_furnished_has_no_home_to_fill(play):
    async def script(sandbox):
        with pytest.raises(SandboxError, match="open it with a furnishing"):
            sandbox.write_home({"c": "1"})

    play(script)


@needs_python
def test_programs_find_terminals_and_plain_shells_do_not(play_bubblewrap, program):
    code = python("import pty; pty.spawn(['tty'])")

    async def script(sandbox):
        return await sandbox.run(code)

    assert play_bubblewrap(script, furnishing=furnished(program)).output.strip() == "/dev/pts/0"
    assert "out of pty devices" in play_bubblewrap(script).output


def test_stdin_is_at_its_end(play, program):
    async def script(sandbox):
        return await sandbox.run("cat; echo $?")

    assert play(script, furnishing=furnished(program)).output == "0\n"


# ---- a program that cannot be reached ----------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's sandboxes are another user's")
def test_a_program_below_a_closed_directory_is_refused_at_once(play, program):
    async def script(_sandbox):
        pass

    inner = program / "closed/inner"
    inner.mkdir(parents=True)
    (program / "link").symlink_to(inner)
    inner.parent.chmod(0o700)
    for path in (inner, program / "link"):
        with pytest.raises(SandboxError, match=rf"{path} .* because of {inner.parent}: set WHIPPLETREE_HOME"):
            play(script, furnishing=furnished(path))


def test_a_program_that_is_not_there_is_refused_at_once(play, program):
    async def script(_sandbox):
        pass

    with pytest.raises(SandboxError, match=f"{program}/none.* install it again"):
        play(script, furnishing=furnished(program / "none"))


# ---- limits ------------------------------------------------------------------------------------------------------


@needs_python
def test_memory_that_is_written_is_limited_and_not_what_is_reserved(play, program):
    async def script(sandbox):
        # PROT_NONE private anonymous pages, as runtimes reserve them
        reserve = "import ctypes; m = ctypes.CDLL(None).mmap; m.restype = ctypes.c_void_p; "
        reserve += "print(m(None, ctypes.c_size_t(8 << 30), 0, 0x22, -1, ctypes.c_long(0)) != 2**64 - 1)"
        return await sandbox.run(python(reserve)), await sandbox.run(python("bytearray(300_000_000)"))

    reserved, written = play(script, furnishing=furnished(program, memory_mb=200))
    assert reserved.output == "True\n"
    assert written.output.endswith("MemoryError\n")


@needs_node
def test_node_starts_threads_within_its_limits_and_dies_beyond(play_bubblewrap, program):
    workers = (
        "const {Worker} = require('worker_threads'); for (let i = 0; i < 3; i++) "
        "new Worker(`console.log(7)`, {eval: true})"
    )

    async def script(sandbox):
        fine = await sandbox.run(f"node -e {shlex.quote(workers)}")
        return fine, await sandbox.run("node -e 'const a = []; for (;;) a.push(Buffer.alloc(1e8, 1))'")

    fine, greedy = play_bubblewrap(script, furnishing=furnished(program, memory_mb=1024))
    assert fine.output == "7\n" * 3
    assert greedy.exit_code != 0
    assert not greedy.timed_out


def test_the_last_words_are_kept(play, program):
    async def script(sandbox):
        long = await sandbox.run("for i in $(seq 30000); do echo line $i; done; echo grüße; exit 3")
        return long, await sandbox.run("echo short")

    long, short = play(script, furnishing=furnished(program, max_output_chars=50))
    assert (len(long.output), long.truncated, long.exit_code) == (50, True, 3)
    assert long.output.endswith("line 30000\ngrüße\n")
    assert (short.output, short.truncated) == ("short\n", False)


def test_a_program_has_its_own_time_limit(play, program):
    async def script(sandbox):
        return await sandbox.run("echo begun; sleep 1000"), await sandbox.run("echo next")

    first, second = play(script, furnishing=furnished(program, command_timeout_s=0.5), command_timeout_s=100.0)
    assert (first.timed_out, first.output, second.output) == (True, "begun\n", "next\n")
