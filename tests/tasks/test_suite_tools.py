"""Tools are a Python of their own, made once, with programs that run wherever they are seen."""

import importlib.util
import zipfile
from pathlib import Path

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import tools
from whippletree.tasks.base import Tools


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "tinytool-1.0-py3-none-any.whl"
    info = "tinytool-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tinytool.py", "def main():\n    print('tiny')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinytool\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntinytool = tinytool:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="pip is not installed")
def test_they_are_made_once(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wanted, said = Tools((str(wheel),)), []
    place = tools.build(wanted, tmp_path, said.append)
    assert place == tools.place_of(wanted, tmp_path)
    assert (place / "bin/tinytool").read_text().startswith("#!/usr/bin/env python3\n")
    assert Path(place / "bin/python3").exists()
    assert tools.build(wanted, tmp_path, said.append) == place
    assert len(said) == 1


def test_other_requirements_lie_elsewhere(tmp_path):
    assert tools.place_of(Tools(("a==1",)), tmp_path) != tools.place_of(Tools(("a==2",)), tmp_path)
    assert tools.place_of(Tools(), tmp_path) is None


def test_programs_of_the_system_are_asked_for(tmp_path):
    assert tools.missing_programs(Tools(programs=("sh", "no-such-program"))) == ("no-such-program",)
    with pytest.raises(TaskError, match="need no-such-program below /usr: install it"):
        tools.build(Tools(programs=("no-such-program",)), tmp_path, print)
