"""pi: a small agent with four tools, over chat completions."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool

_MODELS = """{
  "providers": {
    "local": {
      "baseUrl": "$base_url/v1",
      "api": "openai-completions",
      "apiKey": "$key",
      "models": [
        {
          "id": "$model",
          "name": "$model",
          "reasoning": false,
          "input": ["text"],
          "contextWindow": $context,
          "maxTokens": $max_tokens,
          "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
        }
      ]
    }
  }
}
"""
# What is kept for a summary and after one has to fit a small context too, so it is measured in completions.
_SETTINGS = """{
  "enableInstallTelemetry": false,
  "compaction": {"enabled": true, "reserveTokens": $max_tokens, "keepRecentTokens": $max_tokens},
  "retry": {"enabled": true, "maxRetries": 1, "provider": {"maxRetries": 1, "timeoutMs": 3600000}}
}
"""

ADAPTER = Adapter(
    name="pi",
    package=Npm("@mariozechner/pi-coding-agent", "0.73.1", min_node=(20, 6)),
    program=("$prefix/bin/node", "$prefix/node_modules/@mariozechner/pi-coding-agent/dist/cli.js"),
    command=("--provider", "local", "--model", "$model", "--mode", "json", "--print", "$instruction"),
    misread="-@",
    shell=ShellTool("bash", {"command": "$command"}),
    env={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    files={".pi/agent/models.json": _MODELS, ".pi/agent/settings.json": _SETTINGS},
    rules=Rules(compaction_system="context summarization assistant"),
    about="four tools and a short prompt",
)
