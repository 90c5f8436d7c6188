"""How the files of a suite come to this machine: from where they live, or from a local directory, with a checksum.

Invariant: `<root>/suites/<name>/data` holds a whole suite and a record of where it is from, or does not exist. Nothing
is fetched but by `add`, which is asked for by name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from whippletree.errors import TaskError
from whippletree.home import Say, make_whole, run_installer
from whippletree.tasks.base import ByHand, GitFolder, HuggingFaceData, PackageFolder, Suite

_RECORD = ".added.json"
_IGNORED = (".git", "__pycache__", _RECORD)


@dataclass(frozen=True, slots=True)
class Added:
    """What is known of files that are here."""

    source: str
    version: str
    """Of the origin for which they were added."""
    sha256: str
    known: bool
    """Whether the checksum is the one that the suite states."""


def place_of(suite: Suite, root: Path) -> Path:
    return root / "suites" / suite.name / "data"


def added(suite: Suite, root: Path) -> Added | None:
    """None where the suite is not here."""
    record = place_of(suite, root) / _RECORD
    return Added(**json.loads(record.read_text(encoding="utf-8"))) if record.is_file() else None


def folder_of(suite: Suite, root: Path) -> Path:
    """Where the suite's files are. Raises TaskError where they are not here, or are those of another version."""
    place, found = place_of(suite, root), added(suite, root)
    if found is None:
        raise TaskError(
            f"the files of {suite.name} are not here: `whippletree tasks add {suite.name}` fetches them from "
            f"{suite.origin}, or takes them from a directory (--path DIR)"
        )
    if found.version != suite.origin.version:
        raise TaskError(
            f"{place} holds {suite.name} {found.version}, but {suite.origin.version} is wanted: remove the directory "
            f"and run `whippletree tasks add {suite.name}`"
        )
    return place


def terms(suite: Suite, root: Path) -> str:
    """What one agrees to by adding the suite."""
    lines = [
        f"{suite.name}: {suite.about}",
        f"  from      {suite.origin}, {suite.size_mb:g} MB",
        f"  licence   {suite.licence}",
        f"  goes to   {place_of(suite, root)}",
    ]
    if not suite.redistributable:
        lines.append("  its files may not be passed on: keep them on this machine, and out of repositories and images")
    if suite.evaluation_only:
        lines.append(f"  for evaluation only: {suite.evaluation_only}")
    return "\n".join(lines)


def add(suite: Suite, root: Path, path: Path | None, say: Say) -> Path:
    """Fetch the suite, or copy it from a local directory, unless it is here; returns where it is.

    Raises TaskError where it cannot be had, may not be fetched by a program, is not what was expected, or `path` does
    not hold it.
    """
    place = place_of(suite, root)
    if path is None and isinstance(suite.origin, ByHand):
        raise TaskError(
            f"{suite.name} cannot be fetched: {suite.origin.why}. Get it yourself ({suite.origin.where}) and give "
            "--path DIR"
        )
    source = None if path is None else _given(suite, path)

    def build(partial: Path) -> None:
        if source is None:
            say(f"fetching {suite.name} from {suite.origin}")
            _fetch(suite, partial)
        else:
            say(f"copying {source}")
            shutil.copytree(
                source, partial, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_IGNORED)
            )
        if not suite.holds(partial):
            raise TaskError(f"{source or suite.origin} does not hold {suite.name}; nothing was kept")
        _record(suite, partial, source, say)

    if make_whole(place, suite.name, build, say, TaskError):
        say(f"{suite.name} is in {place}")
    else:
        say(f"{suite.name} is in {place} already; remove that directory to add it anew")
    return place


def tree_sha256(folder: Path) -> str:
    """Of the names and contents of all files, whatever their modes, times and order."""
    total = hashlib.sha256()
    for path in sorted(_files(folder), key=lambda path: path.relative_to(folder).as_posix()):
        content = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return total.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for where, folders, names in os.walk(folder):
        links = [name for name in folders if Path(where, name).is_symlink()]
        folders[:] = [name for name in folders if name not in _IGNORED and name not in links]
        yield from (Path(where, name) for name in (*names, *links) if name not in _IGNORED)


def _given(suite: Suite, path: Path) -> Path:
    """The directory that is to be copied: the one that is named, or the suite's folder in it."""
    inner = path / getattr(suite.origin, "folder", "")
    source = inner if inner.is_dir() else path
    if not source.is_dir():
        raise TaskError(f"there is no directory {path}; --path names one that holds {suite.name}")
    if not suite.holds(source):
        raise TaskError(f"{path} does not hold {suite.name}, which comes from {suite.origin}")
    return source


def _record(suite: Suite, partial: Path, source: Path | None, say: Say) -> None:
    """Check what was fetched, and write down where it is from. Files of one's own may be others, and are told so."""
    found = tree_sha256(partial)
    known = found == suite.sha256
    if suite.sha256 and not known:
        wanted = f"{suite.origin} has {suite.sha256[:16]}..., these files have {found[:16]}..."
        if source is None:
            raise TaskError(f"the checksum of {suite.name} does not match: {wanted} Nothing was kept; try again")
        say(f"these are not the files of {suite.origin}, so scores on them compare with no others: {wanted}")
    record = Added(str(source or suite.origin), suite.origin.version, found, known)
    (partial / _RECORD).write_text(json.dumps(asdict(record)) + "\n", encoding="utf-8")


def _fetch(suite: Suite, partial: Path) -> None:
    """Fill an empty directory from the suite's origin."""
    work = partial / ".work"
    work.mkdir()
    match suite.origin:
        case GitFolder() as origin:
            folder = _clone(origin, work)
        case PackageFolder() as origin:
            folder = _unpack(origin, work)
        case HuggingFaceData() as origin:
            folder = _download(origin, work)
        case ByHand():
            raise TaskError(f"{suite.name} cannot be fetched")
    if not folder.is_dir():
        raise TaskError(f"{suite.origin} has no folder {folder.relative_to(work)}; nothing was kept")
    for path in list(folder.iterdir()):
        if path.name not in _IGNORED:
            path.rename(partial / path.name)
    shutil.rmtree(work)


def _clone(origin: GitFolder, work: Path) -> Path:
    git = shutil.which("git")
    if git is None:
        raise TaskError(f"{origin} is fetched by git, which was not found: install it (`apt install git`)")
    folder = [origin.folder] if origin.folder else []
    for arguments in (
        ("init", "--quiet"),
        ("remote", "add", "origin", origin.url),
        ("sparse-checkout", "set", "--no-cone", *(f"/{name}/" for name in folder)) if folder else ("status", "--short"),
        ("fetch", "--quiet", "--depth=1", "--filter=blob:none", "origin", origin.commit),
        ("checkout", "--quiet", "FETCH_HEAD"),
    ):
        run_installer([git, "-C", str(work), *arguments], str(origin), TaskError, GIT_TERMINAL_PROMPT="0")
    return work / origin.folder


def _unpack(origin: PackageFolder, work: Path) -> Path:
    wanted = f"{origin.package}=={origin.version}"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check")
    run_installer([*pip, "--no-deps", "--only-binary=:all:", "--dest", str(work), wanted], wanted, TaskError)
    for wheel in list(work.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work / "unpacked")
    return work / "unpacked" / origin.folder


def _download(origin: HuggingFaceData, work: Path) -> Path:
    import huggingface_hub  # takes a second

    try:
        huggingface_hub.snapshot_download(  # pyright: ignore
            origin.dataset,
            repo_type="dataset",
            revision=origin.revision,
            allow_patterns=list(origin.patterns),
            local_dir=work / "files",
        )
    except Exception as error:  # of the client, of its HTTP library, of the disk
        raise TaskError(f"{origin} cannot be fetched: {type(error).__name__}: {error}") from error
    shutil.rmtree(work / "files" / ".cache", ignore_errors=True)
    return work / "files"
