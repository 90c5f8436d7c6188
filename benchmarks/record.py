"""How the benchmarks keep what they have measured: as JSON beside the script, with the machine it was measured on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def machine(load: float) -> dict[str, Any]:
    """What figures depend on; `load` is the machine's mean load over the last minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return {
        "cpu": next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unknown"),
        "cores": os.cpu_count(),
        "load_average_1_min": round(load, 1),
        "linux": platform.release(),
        "python": platform.python_version(),
    }


def keep(script: str, result: Mapping[str, Any]) -> None:
    """Write the result beside the script, and print it."""
    text = json.dumps(result, indent=2)
    Path(script).with_suffix(".json").write_text(text + "\n")
    print(text)
