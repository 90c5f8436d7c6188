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
    """An npm package at one version; `node` is a version of the npm package `node`, where the system's is too old."""

    package: str
    version: str
    node: str | None = None
    min_node: tuple[int, ...] = (20,)


@dataclass(frozen=True, slots=True)
class Pip:
    """Requirements, pinned; the first one names the harness."""

    requirements: tuple[str, ...]
    min_python: tuple[int, int] = (3, 10)

    @property
    def version(self) -> str:
        return self.requirements[0].partition("==")[2]


@dataclass(frozen=True, slots=True)
class Place:
    """What the templates may name: `$base_url`, `$key`, `$model`, `$instruction`, `$prefix`, and so on."""

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
class Variant:
    """A named way to run a harness: what it adds to the command, the environment and the files of HOME."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    about: str = ""


@dataclass(frozen=True, slots=True)
class ShellTool:
    """How the harness's model runs a shell command: enough to play a scripted episode through it."""

    name: str
    """Of the tool; empty where commands are written as text, in the form of `arguments["text"]`."""
    arguments: Mapping[str, str]
    """Argument -> template over `$command`."""
    final: str = "$answer"
    """Template of the text that ends the episode."""
    final_tool: str = ""
    """The tool that ends the episode, where text does not; its arguments are in `final_arguments`."""
    final_arguments: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Adapter:
    name: str
    package: Npm | Pip
    binary: str
    """Below the prefix."""
    command: tuple[str, ...]
    """The whole command line; `$args` as an element of its own is replaced by the variant's arguments."""
    shell: ShellTool
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Path below HOME -> text."""
    setup: tuple[tuple[str, ...], ...] = ()
    """Commands that must run before, in the same environment."""
    variants: Mapping[str, Variant] = field(default_factory=lambda: {"": Variant()})
    """`""` is the harness by its plain name; the others are `name:variant`."""
    rules: Rules = field(default_factory=Rules)
    """How its side calls are told from the main ones."""
    version_args: tuple[str, ...] = ("--version",)
    memory_mb: int = 4096
    max_processes: int = 512
    about: str = ""
