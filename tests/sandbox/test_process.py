"""The kind without isolation: what little it does promise."""

import os
import time
from pathlib import Path


def test_runs_in_its_own_directory_without_root(play_process):
    async def script(sandbox):
        await sandbox.run("touch mine")
        result = await sandbox.run("pwd; echo $HOME; echo $TMPDIR; id -u")
        home, there, temporary, uid = result.output.split()
        assert Path(there) == sandbox.workspace == Path(home)
        assert Path(temporary).parent == sandbox.workspace.parent
        assert int(uid) == (sandbox.workspace / "mine").stat().st_uid
        assert int(uid) != 0 or os.geteuid() != 0

    play_process(script)


def test_close_kills_the_process_group(play_process):
    async def script(sandbox):
        result = await sandbox.run("sleep 1000 & (sleep 1000 & echo $!); echo $!")
        pids = [int(pid) for pid in result.output.split()]
        await sandbox.close()
        return [Path(f"/proc/{pid}/stat") for pid in pids]

    def alive(path):
        try:
            return path.read_text().split()[2] != "Z"
        except OSError:
            return False

    paths = play_process(script)
    for _ in range(500):  # they are killed, and gone soon
        if not any(map(alive, paths)):
            return
        time.sleep(0.01)
    raise AssertionError("processes are left")
