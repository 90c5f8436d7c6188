"""Cline, over chat completions."""

from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool

_PROVIDERS = """{
  "version": 1,
  "lastUsedProvider": "openai-compatible",
  "modes": {},
  "providers": {
    "openai-compatible": {
      "settings": {
        "provider": "openai-compatible",
        "apiKey": "$key",
        "model": "$model",
        "baseUrl": "$base_url/v1"
      },
      "updatedAt": "2026-01-01T00:00:00.000Z",
      "tokenSource": "manual"
    }
  }
}
"""

ADAPTER = Adapter(
    name="cline",
    package=Npm("cline", "3.0.65"),
    program=("$prefix/node_modules/cline/bin/.cline",),
    command=("--json", "--auto-approve", "true", "--", "$instruction"),
    shell=ShellTool("run_commands", {"commands": ("$command",)}),
    env={"CLINE_NO_AUTO_UPDATE": "1", "CLINE_NO_INTERACTIVE": "1"},
    files={".cline/data/settings/providers.json": _PROVIDERS},
    about="an agent with many tools",
)
