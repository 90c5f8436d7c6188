"""What a suite of tasks is: where its files live, what it needs, and the source of tasks and grades that it opens.

Invariant: a grader sees what a rollout left behind, never the rollout itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from whippletree.sandbox.base import Sandboxes
from whippletree.types import ModelCall, Reward, Task


@dataclass(frozen=True, slots=True)
class Ending:
    """What a rollout left behind, and where code may be run on it."""

    workspace: Path
    """The host's view; no process changes it any more."""
    calls: Sequence[ModelCall] = ()
    """For graders of what was said."""
    sandboxes: Sandboxes | None = None
    """For graders that are code; see `tasks.grading`."""


class TaskSource(Protocol):
    """The tasks of a suite, and their grader."""

    name: str

    def tasks(self, split: str) -> Sequence[Task]:
        """All tasks of a split, in a fixed order; a procedural source makes each on access. Raises TaskError for a
        split that there is not."""
        ...

    async def grade(self, task: Task, ending: Ending) -> Reward:
        """Judge what is left; deterministic. Hostile content never raises: where code of the suite judges, what it
        does is told apart from what it says, and GradingError means that it failed."""
        ...


# ---- where the files come from ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GitFolder:
    """A folder of a repository at a commit."""

    url: str
    commit: str
    folder: str = ""

    @property
    def version(self) -> str:
        return self.commit[:12]

    def __str__(self) -> str:
        return f"{self.url} at {self.version}"


@dataclass(frozen=True, slots=True)
class PackageFolder:
    """A folder of a wheel, which is unpacked and never installed."""

    package: str
    version: str
    folder: str = ""

    def __str__(self) -> str:
        return f"the package {self.package} {self.version}"


@dataclass(frozen=True, slots=True)
class HuggingFaceData:
    """Files of a data set at a revision."""

    dataset: str
    revision: str
    patterns: tuple[str, ...] = ("*",)

    @property
    def version(self) -> str:
        return self.revision[:12]

    def __str__(self) -> str:
        return f"the Hugging Face data set {self.dataset} at {self.version}"


@dataclass(frozen=True, slots=True)
class ByHand:
    """What no program may fetch, such as files whose licence forbids to pass them on."""

    where: str
    """Whom to ask, or what to run."""
    why: str
    version: str = "local"

    def __str__(self) -> str:
        return self.where


Origin = GitFolder | PackageFolder | HuggingFaceData | ByHand


@dataclass(frozen=True, slots=True)
class Tools:
    """What a suite's tasks and graders need inside sandboxes, besides the system."""

    requirements: tuple[str, ...] = ()
    """For pip, pinned; they make a Python of their own, whose programs come first in PATH."""
    programs: tuple[str, ...] = ()
    """Of the system, such as `jq`."""
    min_python: tuple[int, int] = (3, 10)


@dataclass(frozen=True, slots=True)
class Opening:
    """What a suite is opened with."""

    folder: Path
    """Its files."""
    tools: Path | None = None
    """Where the Python of its tools lies."""


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite, as data; `open` is its code."""

    name: str
    about: str
    licence: str
    """Its name, and what it forbids."""
    origin: Origin
    size_mb: float
    """Of the files, on the disk."""
    open: Callable[[Opening], TaskSource]
    """Raises TaskError where the folder does not hold the suite."""
    holds: Callable[[Path], bool]
    """Whether a folder looks like this suite's."""
    sha256: str = ""
    """Of the files (`fetching.tree_sha256`); empty where they differ from one fetching to the next."""
    tools: Tools = field(default=Tools())
    isolated: bool = True
    """Whether its graders are code, or its tasks name a path: both need sandboxes that isolate."""
    redistributable: bool = True
    evaluation_only: str = ""
    """Why the suite must not be trained on; empty where it may be."""
    quarantine: Mapping[str, str] = field(default_factory=dict[str, str])
    """Task id -> why it is left out, known from checks of this version."""
