"""Real harnesses: one file each, and one line in this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module

from whippletree.errors import HarnessError
from whippletree.rollout.adapters import (
    claude_code,
    cline,
    codex,
    dsh,
    gemini_cli,
    kilocode,
    mini_swe_agent,
    openclaw,
    opencode,
    pi,
    qwen_code,
    smolagents,
)
from whippletree.rollout.adapters.base import Adapter, Variant

ADAPTERS: Mapping[str, Adapter] = {
    module.ADAPTER.name: module.ADAPTER
    for module in (
        claude_code,
        cline,
        codex,
        dsh,
        gemini_cli,
        kilocode,
        mini_swe_agent,
        openclaw,
        opencode,
        pi,
        qwen_code,
        smolagents,
    )
}


def known(modules: Sequence[str] = ()) -> Mapping[str, Adapter]:
    """The table with the adapters of other modules: dotted names of what has an `ADAPTER`.

    Raises HarnessError where a module cannot be imported, has none, or uses a name that is taken.
    """
    table = dict(ADAPTERS)
    for name in modules:
        adapter = _imported(name)
        if adapter.name in table:
            raise HarnessError(f"the adapter of module '{name}' is named '{adapter.name}', which is taken; rename it")
        table[adapter.name] = adapter
    return table


def find(name: str, adapters: Mapping[str, Adapter] = ADAPTERS) -> tuple[Adapter, Variant]:
    """The harness `name` or `name:variant`; the adapter has the variant's shell tool.

    Raises HarnessError, with the names that there are, for one that is none of them.
    """
    plain, _, suffix = name.partition(":")
    if plain not in adapters:
        raise HarnessError(f"there is no harness '{plain}'; known are {', '.join(sorted(adapters))}")
    adapter = adapters[plain]
    if suffix not in adapter.variants or name.endswith(":"):
        names = ", ".join(f"{plain}:{each}" if each else plain for each in adapter.variants)
        raise HarnessError(f"harness '{plain}' has no variant '{suffix}'; known are {names}")
    variant = adapter.variants[suffix]
    return replace(adapter, shell=variant.shell) if variant.shell else adapter, variant


def _imported(name: str) -> Adapter:
    try:
        found = getattr(import_module(name), "ADAPTER", None)
    except ImportError as error:
        raise HarnessError(f"the module '{name}' of a harness cannot be imported: {error}") from error
    if not isinstance(found, Adapter):
        raise HarnessError(f"the module '{name}' must define ADAPTER, a whippletree.rollout.adapters.base.Adapter")
    return found
