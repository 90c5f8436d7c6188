"""Drawing the names and contents of one tier-1 job.

Invariant: draws are without replacement, so no word or name occurs twice but where a job wants it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from whippletree.tasks.paddock.pools import FOLDERS, STEMS, WORDS


class Deal:
    """A shuffled deck of words, file names and folders, and the files made from it so far."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.files: dict[str, str] = {}
        self._words = rng.sample(WORDS, len(WORDS))
        self._stems = rng.sample(STEMS, len(STEMS))
        self._folders = rng.sample(FOLDERS, len(FOLDERS))
        self.other = self.file()
        """A file that no job is about."""

    def word(self) -> str:
        return self._words.pop()

    def name(self) -> str:
        return self._stems.pop() + ".txt"

    def folder(self) -> str:
        return self._folders.pop()

    def lines(self, count: int | None = None) -> list[str]:
        """`count` lines, else 2 to 4, of one or two words each."""
        count = count or self.rng.randint(2, 4)
        return [" ".join(self.word() for _ in range(self.rng.randint(1, 2))) for _ in range(count)]

    def with_word(self, word: str, lines: Sequence[str], times: int = 1) -> list[str]:
        """The lines with the word in `times` of them, beside the first word that was there."""
        chosen = self.rng.sample(range(len(lines)), times)
        return [self._pair(word, line) if i in chosen else line for i, line in enumerate(lines)]

    def file(self, lines: Sequence[str] | None = None) -> str:
        """The name of a new file of these lines, else of random ones."""
        name = self.name()
        self.files[name] = "\n".join(self.lines() if lines is None else lines) + "\n"
        return name

    def _pair(self, word: str, line: str) -> str:
        pair = [word, line.split()[0]]
        self.rng.shuffle(pair)
        return " ".join(pair)
