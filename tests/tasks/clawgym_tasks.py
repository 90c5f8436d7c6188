"""Small tasks in ClawGym's format: folders with data_entry.json, input_files and reward/check.py."""

import json

CHECK = """
import json, sys
from pathlib import Path
ws = Path(sys.argv[1])
answer = ws / "out/answer.txt"
print(json.dumps({
    "exists": answer.is_file(),
    "right": float(answer.is_file() and answer.read_text().strip() == "42"),
    "kept": 1.0 if (ws / "input/data.csv").read_bytes() == b"a,b\\r\\n20,22\\n" and answer.is_file() else 0.0,
}))
"""
SOLVE = "mkdir -p out && echo 42 > out/answer.txt"


def write_task(folder, check=CHECK, *, query="Add the numbers of input/data.csv; write out/answer.txt.", inputs=True):
    """One task in `folder`; returns the folder."""
    (folder / "reward").mkdir(parents=True)
    (folder / "reward/check.py").write_text(check)
    (folder / "reward/reward.sh").write_text("#!/bin/sh\nfalse\n")
    entry = {"task_id": folder.name, "user_query": query, "metadata": {"category": "", "grading_type": "automated"}}
    if inputs:
        (folder / "input_files/input").mkdir(parents=True)
        (folder / "input_files/input/data.csv").write_bytes(b"a,b\r\n20,22\n")
        (folder / "input_files/input/logo.png").write_bytes(bytes(range(256)))
        (folder / "input_files/input/notes.csv").write_text("x\n")
        entry["input_mount_dir"] = "/root/.openclaw/workspace"
    (folder / "data_entry.json").write_text(json.dumps(entry))
    return folder


def write_suite(folder, train=3, test=2):
    """A suite of sound tasks; returns the folder."""
    for split, count in (("clawgym_train", train), ("clawgym_eval", test)):
        for number in range(count):
            write_task(folder / split / f"task_{number:04}")
    return folder
