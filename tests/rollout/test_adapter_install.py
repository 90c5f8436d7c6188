"""Installing for real, from a registry of one test."""

import base64
import hashlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from whippletree.errors import HarnessError
from whippletree.home import default_root
from whippletree.python import furnish_python
from whippletree.rollout.adapters.base import Adapter, Npm, Pip, ShellTool
from whippletree.rollout.adapters.install import install, installed

needs_npm = pytest.mark.skipif(not (shutil.which("npm") and shutil.which("node")), reason="npm is not installed")
needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
SHELL = ShellTool("sh", {"command": "$command"})


def npm_adapter(version="1.2.3", **package):
    return Adapter(
        name="tiny",
        package=Npm("tiny", version, **package),
        program=("$prefix/bin/node", "$prefix/node_modules/tiny/cli.js")
        if package.get("min_node")
        else ("$prefix/node_modules/.bin/tiny",),
        command=(),
        shell=SHELL,
    )


def pip_adapter(requirement="tinyagent==1.2.0rc1"):
    return Adapter(
        name="tiny",
        package=Pip((requirement,)),
        program=("$prefix/bin/python", "$prefix/bin/tinyagent"),
        command=(),
        shell=SHELL,
    )


def say(line):
    pass


def left(root):
    """Everything below the root that is no empty directory."""
    return [path for path in root.rglob("*") if not path.is_dir() or path.name.startswith(".")]


# ---- npm ---------------------------------------------------------------------------------------------------------


def packed(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode = len(text), 0o700
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def package(name, version, bin_path, text):
    manifest = {"name": name, "version": version, "bin": {name: bin_path}}
    return manifest, packed({"package.json": json.dumps(manifest), bin_path: text})


@contextmanager
def registry(*packages):
    """A registry of npm packages; the yield is its address."""
    archives = {f"/{manifest['name']}.tgz": archive for manifest, archive in packages}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.lstrip("/")
            body = archives.get(self.path) or next((described(*p) for p in packages if p[0]["name"] == name), None)
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *_):
            pass

    def described(manifest, archive):
        digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
        dist = {"tarball": f"{address}/{manifest['name']}.tgz", "integrity": f"sha512-{digest}"}
        version = manifest["version"]
        versions = {version: {**manifest, "dist": dist}}
        return json.dumps({"name": manifest["name"], "dist-tags": {"latest": version}, "versions": versions}).encode()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """npm sees one package `tiny`, which says that it is version 1.2.3, and a `node` that is the one there is."""
    node = f'#!/bin/sh\nexec {shutil.which("node")} "$@"\n'
    tiny = package("tiny", "1.2.3", "cli.js", "#!/usr/bin/env node\nconsole.log('tiny 1.2.3 (abc)')\n")
    with registry(tiny, package("node", "26.10.0", "bin/node", node)) as address:
        monkeypatch.setenv("npm_config_registry", address)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
        monkeypatch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
        yield


@needs_npm
def test_npm_installs_what_runs_wherever_it_is_put(tmp_path, npm, monkeypatch):
    root, lines = tmp_path / "root", []
    old = os.umask(0o077)
    try:
        place = install(npm_adapter(), root, lines.append)
    finally:
        os.umask(old)
    assert place == root / "harnesses/tiny/1.2.3" == installed(npm_adapter(), root)
    assert lines[-1].startswith("installed tiny 1.2.3")
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in place.rglob("*") if not path.is_symlink())
    assert all(path.stat().st_mode & 0o005 == 0o005 for path in (place, *place.parents[:3]))

    moved = shutil.move(place, tmp_path / "elsewhere")
    said = subprocess.run([f"{moved}/node_modules/.bin/tiny"], capture_output=True, text=True, check=True).stdout
    assert said == "tiny 1.2.3 (abc)\n"
    assert installed(npm_adapter(), root) is None


@needs_npm
def test_what_is_installed_is_not_installed_again(tmp_path, npm, monkeypatch):
    place = install(npm_adapter(), tmp_path, say)
    (place / "mark").touch()
    monkeypatch.setenv("PATH", "/nowhere")
    assert install(npm_adapter(), tmp_path, say) == place
    assert (place / "mark").exists()


@needs_npm
def test_a_newer_node_comes_along_where_the_system_has_none(tmp_path, npm):
    lines = []
    place = install(npm_adapter(min_node=(999,)), tmp_path, lines.append)
    assert lines[0].startswith("installing Node 26.10.0: 999 or newer is needed")
    assert (place / "bin/node").readlink() == Path("../node_modules/node/bin/node")


@needs_npm
@pytest.mark.parametrize(
    ("adapter", "problem"),
    [
        (npm_adapter("1.2.4"), "the registry has no such package or version"),
        (Adapter("tiny", Npm("huge", "1.0.0"), ("x",), (), SHELL), "huge@1.0.0 cannot be installed: the registry has"),
    ],
)
def test_what_npm_cannot_find_is_named_and_leaves_nothing(tmp_path, npm, adapter, problem):
    with pytest.raises(HarnessError, match=problem):
        install(adapter, tmp_path / "root", say)
    assert left(tmp_path / "root") == []


@needs_npm
def test_a_program_of_another_version_is_refused(tmp_path, monkeypatch):
    liar = package("tiny", "1.2.3", "cli.js", "#!/usr/bin/env node\nconsole.log('tiny 1.2.30')\n")
    with registry(liar) as address:
        monkeypatch.setenv("npm_config_registry", address)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache"))
        with pytest.raises(HarnessError, match=r"version 1\.2\.3 was installed, but .* says: tiny 1\.2\.30"):
            install(npm_adapter(), tmp_path / "root", say)
    assert left(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("npm ERR! code ENOSPC", "the disk is full; make room, or set WHIPPLETREE_HOME"),
        ("npm ERR! code ENOTFOUND", "the registry cannot be reached"),
        ("npm ERR! oh", "the installer failed. It said: npm ERR! oh"),
    ],
)
def test_why_an_installer_failed_is_explained(tmp_path, monkeypatch, said, problem):
    (tmp_path / "npm").write_text(f"#!/bin/sh\necho {said}\nexit 1\n")
    (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(HarnessError, match=problem):
        install(npm_adapter(), tmp_path / "root", say)
    assert left(tmp_path / "root") == []


def test_without_npm_there_is_advice(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HarnessError, match="installed by npm, which was not found: install Node"):
        install(npm_adapter(), tmp_path / "root", say)
    assert left(tmp_path / "root") == []


# ---- pip ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """pip sees one wheel, whose program says its version as other registries write it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    info = "tinyagent-1.2.0rc1.dist-info"
    files = {
        "tinyagent.py": "def main():\n    print('tinyagent v1.2.0-rc.1')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tinyagent\nVersion: 1.2.0rc1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntinyagent = tinyagent:main\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / "tinyagent-1.2.0rc1-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@needs_pip
def test_pip_installs_what_runs_wherever_it_is_put(tmp_path, wheels):
    place = install(pip_adapter(), tmp_path / "root", say)
    assert place == tmp_path / "root/harnesses/tiny/1.2.0rc1"
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in place.rglob("*") if not path.is_symlink())
    moved = shutil.move(place, tmp_path / "elsewhere")
    command = [f"{moved}/bin/python", f"{moved}/bin/tinyagent"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "tinyagent v1.2.0-rc.1\n"


@needs_pip
def test_what_pip_cannot_find_is_named_and_leaves_nothing(tmp_path, wheels):
    with pytest.raises(HarnessError, match="hugeagent==1 cannot be installed: the registry has no such package"):
        install(pip_adapter("hugeagent==1"), tmp_path / "root", say)
    assert left(tmp_path / "root") == []


@needs_pip
@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_nothing_and_the_next_one_starts_anew(tmp_path, wheels, failure):
    def stop(line):
        raise failure

    root = tmp_path / "root"
    with pytest.raises(failure):
        install(pip_adapter(), root, stop)
    assert left(root) == []
    killed = root / "harnesses/tiny/.1.2.0rc1.partial/bin"
    killed.mkdir(parents=True)
    (killed / "rubbish").touch()
    assert not (install(pip_adapter(), root, say) / "bin/rubbish").exists()


def test_a_copied_python_runs_wherever_it_is_put(tmp_path):
    (tmp_path / "prefix").mkdir()
    assert furnish_python(tmp_path / "prefix", tmp_path / "empty", (3, 10)) == tmp_path / "prefix/bin/python"
    moved = shutil.move(tmp_path / "prefix", tmp_path / "elsewhere")
    code = "import json, ssl, subprocess, sys; print(sys.prefix)"
    done = subprocess.run(
        [f"{moved}/bin/python", "-c", code], capture_output=True, text=True, env={"PATH": ""}, check=True
    )
    assert done.stdout.strip() == str(moved)


# ---- places ------------------------------------------------------------------------------------------------------


def test_the_root_is_named_by_the_environment_or_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("WHIPPLETREE_HOME", str(tmp_path))
    assert default_root() == tmp_path
    monkeypatch.delenv("WHIPPLETREE_HOME")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_root() == Path("/opt/whippletree")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local/share/whippletree"


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "root").write_text("a file")
    with pytest.raises(HarnessError, match=r"tiny cannot be installed in .*set WHIPPLETREE_HOME"):
        install(npm_adapter(), tmp_path / "root", say)
