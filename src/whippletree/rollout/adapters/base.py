"""What is known of one real harness, as data: how it is installed, configured, started and told apart.

Invariant: an adapter has no behaviour. Texts are `string.Template`s over the fields of `Place`, so that everything that
a harness sees is in its one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from whippletree.gateway.kinds import Rules


@dataclass(frozen=True, slots=True)
class Npm:
    """An npm package at one version."""

    package: str
    version: str
    min_node: tuple[int, ...] | None = None
    """The oldest Node that runs it; None where it brings a program that needs none."""
    node: str = "26.10.0"
    """Of the npm package `node`, which is installed beside it where the system's Node will not do."""


@dataclass(frozen=True, slots=True)
class Pip:
    """Requirements, pinned; the first one is the harness."""

    requirements: tuple[str, ...]
    min_python: tuple[int, int] = (3, 10)

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


@dataclass(frozen=True, slots=True)
class Place:
    """What the templates may name: `$base_url`, `$key`, `$model` and so on; `$instruction` in the command alone."""

    base_url: str
    """`http://127.0.0.1:PORT/s/SESSION`, without `/v1`."""
    key: str
    """The session's API key."""
    model: str
    instruction: str
    """The task, as it is given to the harness."""
    prefix: str
    """Where the installation is mounted."""
    home: str
    context: int
    """Tokens of the policy's context."""
    max_tokens: int
    """Of one completion."""


@dataclass(frozen=True, slots=True)
class ShellTool:
    """How the harness's model runs a shell command: enough to play a scripted episode through it."""

    name: str
    """Of the tool; empty where commands are written as text, in the form of `arguments["text"]`."""
    arguments: Mapping[str, str | tuple[str, ...]]
    """Argument -> template over `$command`, and `$quoted`, which is the same as a Python literal; or a list of them."""
    final: str = "$answer"
    """Template of the text that ends the episode; `$quoted` is the answer as a Python literal."""
    final_tool: str = ""
    """The tool that ends the episode, where text does not; its arguments are in `final_arguments`."""
    final_arguments: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Variant:
    """A named way to run a harness: what it adds to the command, the environment and the files of HOME."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    shell: ShellTool | None = None
    """Where it differs from the adapter's."""
    about: str = ""


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, so that it can be a key
class Adapter:
    name: str
    package: Npm | Pip
    program: tuple[str, ...]
    """How it is called, without arguments: a binary, or `$prefix/bin/node` or `$prefix/bin/python` and a script."""
    command: tuple[str, ...]
    """Its arguments; `$args` as an element of its own is replaced by the variant's."""
    shell: ShellTool
    misread: str = ""
    """Characters at the start of an instruction that the program would take for an option or the like; a space is put
    before them."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path below HOME -> text."""
    setup: tuple[tuple[str, ...], ...] = ()
    """Whole commands that must run before, in the same environment."""
    variants: Mapping[str, Variant] = field(default_factory=lambda: {"": Variant()})
    """`""` is the harness by its plain name; the others are `name:variant`."""
    rules: Rules = field(default_factory=Rules)
    """How its side calls are told from the main ones."""
    version_args: tuple[str, ...] = ("--version",)
    """Arguments with which the program prints its version."""
    memory_mb: int = 4096
    max_processes: int = 512
    about: str = ""
