"""Kilo Code, which stems from opencode; over chat completions."""

from whippletree.rollout.adapters import opencode
from whippletree.rollout.adapters.base import Adapter, Npm

_BIN = "$prefix/node_modules/@kilocode/cli/bin"

ADAPTER = Adapter(
    name="kilocode",
    package=Npm("@kilocode/cli", "7.7.7"),
    program=(f"{_BIN}/.kilo",),
    command=("run", "--auto", "--format", "json", "--model", "local/$model", "--title", "task", "--", "$instruction"),
    shell=opencode.ADAPTER.shell,
    env={
        "KILO_TREE_SITTER_WASM_DIR": f"{_BIN}/tree-sitter",
        "KILO_TELEMETRY_LEVEL": "off",
        "KILO_NO_DAEMON": "1",
        "KILO_DISABLE_AUTOUPDATE": "1",
        "KILO_DISABLE_CODEBASE_INDEXING": "1",
        "KILO_DISABLE_DEFAULT_PLUGINS": "1",
        "KILO_DISABLE_EMBEDDED_WEB_UI": "1",
        "KILO_DISABLE_LSP_DOWNLOAD": "1",
        "KILO_DISABLE_MODELS_FETCH": "1",
        "KILO_DISABLE_PRESENCE": "1",
        "KILO_DISABLE_SESSION_INGEST": "1",
        "KILO_DISABLE_SHARE": "1",
    },
    files={".config/kilo/kilo.json": opencode.CONFIG},
    rules=opencode.ADAPTER.rules,
    about="opencode with more tools",
)
