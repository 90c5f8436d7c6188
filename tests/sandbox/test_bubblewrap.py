"""What a bubblewrap sandbox keeps out and in, on the real program; and what is said where it cannot be used."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox import SandboxLimits, open_sandboxes
from whippletree.sandbox.bubblewrap import explain, open_bubblewrap

SYSTEM = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "workspace"}


def processes_named(marker: str, at_least: int = 0) -> list[str]:
    """Ids of the processes whose command line holds `marker`; waits for some seconds until there are `at_least`."""
    found: list[str] = []
    for _ in range(500):
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if marker.encode() in path.read_bytes():
                    found.append(path.parent.name)
        if len(found) >= at_least:
            break
        time.sleep(0.01)
    return found


def run(play, *commands, **limits):
    async def script(sandbox):
        return [await sandbox.run(command) for command in commands]

    return play(script, **limits)


def test_identity_is_unprivileged_and_fixed(play_bubblewrap):
    [who, status, host] = run(
        play_bubblewrap, "pwd; id -u; id -g; whoami; hostname; echo $HOME", "cat /proc/self/status", "uname -n"
    )
    assert who.output.split() == ["/workspace", "1000", "1000", "agent", "sandbox", "/workspace"]
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{capabilities}:\t0000000000000000" in status.output
    assert "NoNewPrivs:\t1" in status.output
    assert host.output == "sandbox\n"


def test_processes_do_not_run_as_root_of_the_host(play_bubblewrap):
    async def script(sandbox):
        await sandbox.run("touch mine; sleep 987.654 &")
        [pid] = processes_named("987.654", at_least=1)
        status = Path(f"/proc/{pid}/status").read_text()
        return (sandbox.workspace / "mine").stat().st_uid, status

    owner, status = play_bubblewrap(script)
    assert owner != 0
    assert f"Uid:\t{owner}\t{owner}\t{owner}\t{owner}\n" in status


@pytest.mark.parametrize("path", ["/usr/x", "/etc/x", "/x", "/dev/x", "/proc/x", "/bin/x"])
def test_system_is_read_only(play_bubblewrap, path):
    assert run(play_bubblewrap, f"touch {path}")[0].exit_code == 1


def test_host_files_are_not_there(play_bubblewrap, tmp_path):
    (tmp_path / "secret").write_text("secret")
    absent = f"{tmp_path}/secret /root /home /var /work /opt /etc/shadow /etc/hostname /sys /run"
    [result, root] = run(play_bubblewrap, f"ls -d {absent} 2>/dev/null", "ls /")
    assert result.output == ""
    assert set(root.output.split()) <= SYSTEM


def test_nothing_of_the_hosts_processes_or_network_is_seen(play_bubblewrap):
    [ps, net, connect] = run(
        play_bubblewrap,
        "ls /proc | grep -c '^[0-9]'",
        "tail -n +3 /proc/net/dev | cut -d: -f1",
        "exec 3<>/dev/tcp/1.1.1.1/53",
    )
    assert int(ps.output) <= 4
    assert net.output.split() == ["lo"]
    assert connect.exit_code != 0


def test_tmp_is_private_and_outlives_a_restart(play_bubblewrap):
    [_, _, result, shm] = run(
        play_bubblewrap, "ls -A /tmp; echo x > /tmp/y", "exit", "ls -A /tmp", "echo z > /dev/shm/q && cat /tmp/q"
    )
    assert result.output == "y\n"
    assert shm.output == "z\n"


def test_no_namespaces_and_no_mounts_within(play_bubblewrap):
    [user, mount] = run(play_bubblewrap, "unshare -Ur true", "mount -t tmpfs x /tmp")
    assert user.exit_code != 0
    assert mount.exit_code != 0


def test_devices_work(play_bubblewrap):
    [result] = run(play_bubblewrap, "echo x > /dev/null; head -c 4 /dev/urandom | wc -c; echo err > /dev/stderr")
    assert result.output.split() == ["4", "err"]


def test_fork_bomb_is_contained_and_cleaned(play_bubblewrap):
    marker = f"0.{os.getpid()}7"

    async def script(sandbox):
        await sandbox.run(f":(){{ :|:& sleep {marker}; }}; :")
        for _ in range(3):
            result = await sandbox.run("/bin/echo alive")
        peak = len(processes_named(marker))
        await sandbox.stop()
        return result, peak, len(processes_named(marker))

    result, peak, left = play_bubblewrap(script, command_timeout_s=1.0, max_processes=20)
    assert peak <= 20
    assert left == 0
    assert result.output == "alive\n" or result.timed_out


def test_process_limit_is_each_sandboxs_own(play_bubblewrap):
    async def main() -> list[str]:
        sandboxes = open_sandboxes("bubblewrap", SandboxLimits(max_processes=12))
        boxes = [await sandboxes.open({}) for _ in range(4)]
        for box in boxes:
            await box.run("for i in 1 2 3 4 5 6 7 8; do sleep 100 & done")
        outputs = [(await box.run("jobs -r | wc -l")).output.strip() for box in boxes]
        await sandboxes.close()
        return outputs

    assert asyncio.run(main()) == ["8"] * 4


def test_many_at_once_leave_nothing(play_bubblewrap):
    marker = f"31.{os.getpid()}"

    async def main() -> Path:
        sandboxes = open_sandboxes("bubblewrap")
        boxes = [await sandboxes.open({"f": str(i)}) for i in range(24)]
        results = await asyncio.gather(*(box.run(f"sleep {marker} & cat f") for box in boxes))
        assert [result.output for result in results] == [str(i) for i in range(24)]
        root = boxes[0].workspace.parents[1]
        assert len(processes_named(marker, at_least=24)) == 24
        await asyncio.gather(*(box.close() for box in boxes[:12]))
        await sandboxes.close()
        await sandboxes.close()
        with pytest.raises(SandboxError, match="are closed"):
            await sandboxes.open({})
        return root

    assert not asyncio.run(main()).exists()
    assert processes_named(marker) == []


def test_close_goes_on_when_its_caller_is_cancelled(play_bubblewrap):
    async def script(sandbox):
        await sandbox.run("sleep 100 & mkdir -p d; chmod 000 d")
        closing = asyncio.ensure_future(sandbox.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await sandbox.close()
        return sandbox.workspace.exists()

    assert play_bubblewrap(script) is False


def test_odd_files_are_removed(play_bubblewrap):
    async def script(sandbox):
        await sandbox.run(
            "mkdir -p a/b; chmod 000 a/b a; mkfifo pipe; ln -s /etc/passwd link; ln -s . loop; "
            "touch $'new\\nline' -- -rf; "
            "for i in $(seq 300); do mkdir dddddddddddddddddddd; cd -P dddddddddddddddddddd; done; cd /workspace;"
            "mkdir many; touch many/{1..500}; chmod 000 /workspace /tmp"
        )
        place = sandbox.workspace.parent
        await sandbox.close()
        return place.exists()

    assert play_bubblewrap(script) is False


def test_sandbox_killed_from_outside_is_an_error_then_usable(play_bubblewrap):
    async def script(sandbox):
        await sandbox.run("true")
        running = asyncio.ensure_future(sandbox.run("sleep 1000"))
        await asyncio.sleep(0)
        [pid] = processes_named(str(sandbox.workspace), at_least=1)
        os.kill(int(pid), signal.SIGKILL)
        with pytest.raises(SandboxError, match="killed from outside by signal 9"):
            await running
        return await sandbox.run("echo up")

    assert play_bubblewrap(script).output == "up\n"


PARENT = """
import asyncio, sys
from whippletree.sandbox import open_sandboxes
async def main():
    sandboxes = open_sandboxes("bubblewrap")
    box = await sandboxes.open({})
    await box.run(f"sleep {sys.argv[1]} &")
    print(box.workspace, flush=True)
    await box.run("sleep 1000")
asyncio.run(main())
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_death_of_the_program_leaves_no_process(play_bubblewrap, sent):
    marker = f"77{int(sent)}.{os.getpid()}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, marker], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        workspace = Path(parent.stdout.readline().strip())
        assert len(processes_named(f"sleep\0{marker}", at_least=1)) == 1
        parent.send_signal(sent)
        parent.wait()
    for _ in range(500):
        if not processes_named(f"sleep\0{marker}"):
            break
        time.sleep(0.01)
    assert processes_named(f"sleep\0{marker}") == []
    assert workspace.exists()
    asyncio.run(open_sandboxes("bubblewrap").close())  # reaps
    assert not workspace.parents[1].exists()


def test_missing_program_says_how_to_install_it():
    with pytest.raises(SandboxError, match=r"/nowhere/bwrap.*apt install bubblewrap.*dnf install.*pacman.*\"process\""):
        open_bubblewrap(SandboxLimits(), "/nowhere/bwrap")


def test_failing_program_is_explained_before_any_work(tmp_path):
    tmp_path.chmod(0o755)
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    fake.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    with pytest.raises(SandboxError, match="apparmor_restrict_unprivileged_userns=0"):
        open_bubblewrap(SandboxLimits(), str(fake))


@pytest.mark.parametrize(
    ("stderr", "advice"),
    [
        ("bwrap: setting up uid map: Permission denied\n", "apparmor_restrict_unprivileged_userns=0"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted\n", "bwrap-userns-restrict"),
        (
            "bwrap: No permissions to creating new namespace, likely because the kernel does not allow non-privileged "
            "user namespaces. On e.g. debian this can be enabled with 'sysctl kernel.unprivileged_userns_clone=1'.\n",
            "kernel.unprivileged_userns_clone=1",
        ),
        ("bwrap: Creating new namespace failed: Operation not permitted\n", "seccomp=unconfined"),
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded "
            "(ENOSPC)\n",
            "user.max_user_namespaces",
        ),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n", "systempaths=unconfined"),
        ("bwrap: Can't find source path /root/tmp/x: Permission denied\n", "Set TMPDIR"),
        ("bwrap: execvp bash: No such file or directory\n", "bash was not found"),
        ("bwrap: Unknown option --as-pid-1\n", "too old"),
        ("something else", "not one that is known"),
    ],
)
def test_explanations(stderr, advice):
    text = explain(stderr)
    assert advice in text
    assert stderr.strip() in text
    assert '"process"' in text


def test_unknown_kind_and_bad_limits():
    with pytest.raises(SandboxError, match=r"'docker'.*bubblewrap, process"):
        open_sandboxes("docker")
    with pytest.raises(SandboxError, match="memory_mb must be positive, got 0"):
        SandboxLimits(memory_mb=0)
