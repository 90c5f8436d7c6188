"""Started processes are never root, get nothing but what is passed, and failures to start are the user's to read."""

import os
import subprocess

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox.spawn import sandbox_owner, spawn


def output_of(*argv: str) -> str:
    read, write = os.pipe()
    process = spawn(argv, stdin=subprocess.DEVNULL, output=write, env={"PATH": os.environ["PATH"]})
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    assert process.wait() == 0
    return text


def test_ids_and_capabilities_are_given_up_for_good():
    uid, gid = sandbox_owner()
    assert uid != 0
    status = output_of("cat", "/proc/self/status")
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status
    assert f"Gid:\t{gid}\t{gid}\t{gid}\t{gid}" in status
    assert "CapEff:\t0000000000000000" in status
    assert "CapPrm:\t0000000000000000" in status


def test_the_program_itself_keeps_its_ids():
    before = (os.getresuid(), os.getresgid(), os.getgroups())
    output_of("true")
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before


def test_inheritable_descriptors_do_not_leak():
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        assert output_of("ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]
    finally:
        os.close(read)
        os.close(write)


def test_a_program_that_cannot_be_executed_is_named():
    with pytest.raises(SandboxError, match="/nowhere/bash"):
        output_of("/nowhere/bash")
