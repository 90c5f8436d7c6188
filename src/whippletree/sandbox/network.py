"""A way for a sandbox's programs to reach this process, and nothing else.

The network namespace of a sandbox has a loopback device only. A socket that is made in there and handed out belongs to
that network, but whoever holds it may accept its connections: no forwarder has to run.
"""

from __future__ import annotations

import socket
import subprocess
import sys

from whippletree.errors import SandboxError

PORT = 8080
"""The same in every sandbox, so that no prompt differs by it."""
BACKLOG = 128
_START_S = 20.0

# Entering a user namespace is only allowed to a process with one thread, and cannot be undone. Nested user namespaces
# make the network's owner another one than the process's own, so it is asked for (NS_GET_USERNS).
_CODE = """
import array, fcntl, os, socket, sys
pid, handover, port, backlog = map(int, sys.argv[1:])
network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
owner = fcntl.ioctl(network, 0xB701)
if hasattr(os, "setns"):
    enter = os.setns
else:
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    def enter(descriptor, kind):
        if libc.setns(descriptor, kind):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
enter(owner, 0x10000000)
enter(network, 0x40000000)
listening = socket.create_server(("127.0.0.1", port), backlog=backlog)
socket.send_fds(socket.socket(fileno=handover), [b"."], [listening.fileno()])
"""


def listen_in(pid: int) -> socket.socket:
    """A socket that listens on 127.0.0.1:PORT in the network namespace of process `pid`; blocks for some 30 ms.

    Raises SandboxError.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_START_S)
        argv = [sys.executable, "-I", "-S", "-c", _CODE, str(pid), str(theirs.fileno()), str(PORT), str(BACKLOG)]
        done = subprocess.run(argv, pass_fds=(theirs.fileno(),), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise SandboxError(
                f"the network of the sandbox cannot be entered ({said[-1] if said else 'no reason given'}); programs "
                'that need it can run in the sandbox kind "process", which does not isolate them'
            )
        descriptors = socket.recv_fds(ours, 1, 1)[1]
    if not descriptors:
        raise SandboxError("the network of the sandbox gave no socket")
    return socket.socket(fileno=descriptors[0])
