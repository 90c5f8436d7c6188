"""OpenClaw: an assistant for everything, run for one headless turn; over chat completions."""

from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool, Variant

_CONFIG = """{
  "agents": {"defaults": {"model": {"primary": "local/$model"}, "skipBootstrap": true}},
  "update": {"checkOnStart": false},
  "tools": {TOOLS, "exec": {"security": "full", "ask": "off"}},
  "models": {
    "mode": "replace",
    "providers": {
      "local": {
        "baseUrl": "$base_url/v1",
        "apiKey": "$key",
        "api": "openai-completions",
        "models": [
          {
            "id": "$model",
            "name": "$model",
            "reasoning": false,
            "input": ["text"],
            "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
            "contextWindow": $context,
            "maxTokens": $max_tokens
          }
        ]
      }
    }
  }
}
"""

ADAPTER = Adapter(
    name="openclaw",
    package=Npm("openclaw", "2026.9.6", min_node=(26, 1)),
    program=("$prefix/bin/node", "$prefix/node_modules/openclaw/openclaw.mjs"),
    command=(
        "agent",
        "exec",
        "--config",
        "$home/openclaw.json",
        "--cwd",
        ".",
        "--json",
        "--timeout",
        "86400",
        "--",
        "$instruction",
    ),
    shell=ShellTool("exec", {"command": "$command"}),
    variants={
        # With these alone no notes that come and go are put at the end of each request.
        "": Variant(
            files={
                "openclaw.json": _CONFIG.replace(
                    "TOOLS", '"allow": ["exec", "read", "write", "edit"], "toolSearch": false'
                )
            },
            about="four tools",
        ),
        "full": Variant(
            files={"openclaw.json": _CONFIG.replace("TOOLS", '"profile": "coding"')},
            about="the profile for coding with a tool search; each request ends in notes that the next does not repeat",
        ),
    },
    memory_mb=16_384,
    about="an assistant with skills and a long prompt",
)
