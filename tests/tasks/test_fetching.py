"""Suites come whole, with a checksum, from a repository, a wheel, the Hub or a directory; or not at all."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
from clawgym_tasks import write_suite

from whippletree.errors import TaskError
from whippletree.tasks import clawgym, fetching
from whippletree.tasks.base import ByHand, GitFolder, HuggingFaceData, PackageFolder

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")


@pytest.fixture
def folder(tmp_path):
    return write_suite(tmp_path / "given")


@pytest.fixture
def said():
    return []


def suite(origin=None, **changes):
    return replace(clawgym.SUITE, origin=origin or ByHand("ask us", "why"), sha256="", **changes)


def left(root):
    """What lies in the cache, hidden files too."""
    place = root / "suites/clawgym"
    return sorted(path.name for path in place.iterdir()) if place.exists() else []


def test_a_directory_is_copied_with_a_record(folder, tmp_path, said):
    wanted = suite(GitFolder("https://nowhere", "c0ffee" * 7))
    wanted = replace(wanted, sha256=fetching.tree_sha256(folder))
    assert fetching.added(wanted, tmp_path) is None
    with pytest.raises(
        TaskError, match="are not here: `whippletree tasks add clawgym` fetches them from https://nowhere"
    ):
        fetching.folder_of(wanted, tmp_path)
    place = fetching.add(wanted, tmp_path, folder, said.append)
    assert fetching.folder_of(wanted, tmp_path) == place
    record = fetching.added(wanted, tmp_path)
    assert (record.source, record.version, record.known) == (str(folder), "c0ffeec0ffee", True)
    assert fetching.tree_sha256(place) == wanted.sha256
    assert "not the files" not in "".join(said)
    fetching.add(wanted, tmp_path, folder, said.append)
    assert said[-1].endswith("already; remove that directory to add it anew")
    with pytest.raises(TaskError, match=r"holds clawgym c0ffeec0ffee, but deadbeefdead is wanted"):
        fetching.folder_of(replace(wanted, origin=GitFolder("https://nowhere", "deadbeef" * 5)), tmp_path)


def test_the_checksum_is_of_names_and_contents_alone(folder, tmp_path):
    before = fetching.tree_sha256(folder)
    (folder / "clawgym_eval/task_0000/data_entry.json").touch(0o600)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/x.pyc").touch()
    assert fetching.tree_sha256(folder) == before
    (folder / "clawgym_eval/task_0000/data_entry.json").rename(folder / "clawgym_eval/task_0000/other.json")
    assert fetching.tree_sha256(folder) != before


def test_files_of_ones_own_are_told_from_the_suites(folder, tmp_path, said):
    wanted = replace(suite(), sha256="0" * 64)
    fetching.add(wanted, tmp_path, folder, said.append)
    assert any("so scores on them compare with no others" in line for line in said)
    assert fetching.added(wanted, tmp_path).known is False


def test_directories_that_are_not_the_suite(folder, tmp_path, said):
    with pytest.raises(TaskError, match=r"there is no directory .*typo"):
        fetching.add(suite(), tmp_path, tmp_path / "typo", said.append)
    with pytest.raises(TaskError, match="does not hold clawgym"):
        fetching.add(suite(), tmp_path, tmp_path, said.append)
    assert left(tmp_path) == []


def test_what_may_not_be_passed_on_is_fetched_by_hand(tmp_path, said):
    wanted = suite(
        ByHand("https://example.com/form", "its licence forbids to pass its files on"), redistributable=False
    )
    with pytest.raises(TaskError, match=r"cannot be fetched: its licence forbids .* yourself .*/form.* --path DIR"):
        fetching.add(wanted, tmp_path, None, said.append)
    assert "its files may not be passed on: keep them on this machine" in fetching.terms(wanted, tmp_path)


def test_the_terms_name_source_size_licence_and_place(tmp_path):
    terms = fetching.terms(replace(clawgym.SUITE, evaluation_only="its authors ask for it"), tmp_path)
    for words in ("github.com/ClawGym", "91 MB", "Apache-2.0", str(tmp_path), "evaluation only: its authors"):
        assert words in terms


# ---- from elsewhere ---------------------------------------------------------------------------------------------


def git(place, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", place, *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(folder, tmp_path):
    """A repository with the suite in a folder; returns its origin."""
    place = tmp_path / "repository"
    shutil.copytree(folder, place / "RL/data")
    (place / "README.md").write_text("large things beside\n")
    git(place, "init", "-q")
    git(place, "config", "uploadpack.allowFilter", "true")
    git(place, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "tasks")
    return GitFolder(f"file://{place}", git(place, "rev-parse", "HEAD").strip(), "RL/data")


@needs_git
def test_a_folder_of_a_repository(repository, folder, tmp_path, said):
    wanted = replace(suite(repository), sha256=fetching.tree_sha256(folder))
    killed = tmp_path / "suites/clawgym/.data.partial/half"
    killed.mkdir(parents=True)
    place = fetching.add(wanted, tmp_path, None, said.append)
    assert "clawgym: an earlier try was not finished; beginning anew" in said
    assert sorted(path.name for path in place.iterdir()) == [".added.json", "clawgym_eval", "clawgym_train"]
    assert left(tmp_path) == ["data"]


@needs_git
def test_what_is_fetched_must_be_what_was_expected(repository, tmp_path, said):
    with pytest.raises(TaskError, match=r"the checksum of clawgym does not match: .* has 0000.* Nothing was kept"):
        fetching.add(replace(suite(repository), sha256="0" * 64), tmp_path, None, said.append)
    with pytest.raises(TaskError, match="has no folder elsewhere; nothing was kept"):
        fetching.add(suite(replace(repository, folder="elsewhere")), tmp_path, None, said.append)
    with pytest.raises(TaskError, match=r"cannot be installed: the installer failed. It said: .*nowhere"):
        fetching.add(suite(replace(repository, url=f"file://{tmp_path}/nowhere")), tmp_path, None, said.append)
    assert left(tmp_path) == []


def test_a_missing_git_is_told(tmp_path, said, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(TaskError, match="is fetched by git, which was not found"):
        fetching.add(suite(GitFolder("https://nowhere", "c" * 40)), tmp_path, None, said.append)


@needs_pip
def test_a_wheel_is_unpacked_and_not_installed(folder, tmp_path, said, monkeypatch):
    wheel = tmp_path / "wheels/tinysuite-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, f"tinysuite/tasks/{path.relative_to(folder)}")
        archive.writestr("tinysuite-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinysuite\nVersion: 1.0\n")
        archive.writestr(
            "tinysuite-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tinysuite-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    place = fetching.add(suite(PackageFolder("tinysuite", "1.0", "tinysuite/tasks")), tmp_path, None, said.append)
    assert fetching.tree_sha256(place) == fetching.tree_sha256(folder)
    assert "tinysuite" not in sys.modules


def test_files_of_the_hub(folder, tmp_path, said, monkeypatch):
    def snapshot_download(dataset, *, repo_type, revision, allow_patterns, local_dir):
        if dataset == "them/gone":
            raise OSError("404")
        assert (repo_type, revision, allow_patterns) == ("dataset", "r" * 40, ["*"])
        shutil.copytree(folder, local_dir)
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(
        TaskError, match=r"the Hugging Face data set them/gone at rrrr.* cannot be fetched: OSError: 404"
    ):
        fetching.add(suite(HuggingFaceData("them/gone", "r" * 40)), tmp_path, None, said.append)
    place = fetching.add(suite(HuggingFaceData("them/tasks", "r" * 40)), tmp_path, None, said.append)
    assert fetching.tree_sha256(place) == fetching.tree_sha256(folder)
