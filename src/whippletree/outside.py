"""What a user adds from outside the package, named as MODULE:NAME.

Invariant: a name either leads to an object, or the error says at which part of the way it does not.
"""

from __future__ import annotations

import difflib
import importlib
from types import ModuleType


def load(path: str) -> object:
    """What is at MODULE:NAME. Raises ValueError that says what is missing and what to do."""
    module_name, _, attribute = path.partition(":")
    try:
        module: ModuleType = importlib.import_module(module_name)
    except Exception as error:  # whatever a module of the user's raises
        raise ValueError(_not_imported(module_name, error)) from error
    found = getattr(module, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, vars(module), n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"{module.__file__} is what was read"
        raise ValueError(f"module '{module_name}' has no '{attribute}'; {hint}")
    return found


def _not_imported(module_name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        return f"there is no module '{error.name}'; install it, or name its directory in PYTHONPATH"
    return f"importing '{module_name}' failed with {type(error).__name__}: {error}"
