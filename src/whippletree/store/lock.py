"""One writer to a run directory.

Invariant: the kernel holds the lock for the open file, so that it is gone with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from pathlib import Path

from whippletree.errors import StoreError

_TRIES = 10
_PAUSE_S = 0.02


class WriteLock:
    """Holds `run/lock` from construction to `release`; raises StoreError where another process holds it."""

    def __init__(self, run: Path) -> None:
        try:
            self._file = (run / "lock").open("a+", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"{run} cannot be written ({error}): check its permissions, or open it to read") from error
        # `is_locked` of another process holds the lock for an instant, so that one refusal proves nothing.
        for attempt in range(_TRIES):
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt == _TRIES - 1:
                    self._file.seek(0)
                    holder = self._file.read().strip() or "another process"
                    self._file.close()
                    raise StoreError(
                        f"{run} is being written by {holder}: wait for it to end, stop it, or use another run directory"
                    ) from None
                time.sleep(_PAUSE_S)
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def release(self) -> None:
        """Give the lock back. Safe to call twice."""
        self._file.close()


def is_locked(run: Path) -> bool:
    """Whether some process is writing the run now."""
    path = run / "lock"
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
