"""opencode, over chat completions."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool

CONFIG = """{
  "autoupdate": false,
  "share": "disabled",
  "snapshot": false,
  "model": "local/$model",
  "small_model": "local/$model",
  "permission": {
    "*": "allow",
    "background_process": "deny",
    "board_post": "deny",
    "board_read": "deny",
    "cancel_wakeup": "deny",
    "kilo_local_recall": "deny",
    "schedule_wakeup": "deny",
    "webfetch": "deny",
    "websearch": "deny"
  },
  "provider": {
    "local": {
      "npm": "@ai-sdk/openai-compatible",
      "name": "local",
      "options": {"baseURL": "$base_url/v1", "apiKey": "$key", "timeout": false},
      "models": {
        "$model": {
          "name": "$model",
          "tool_call": true,
          "reasoning": true,
          "interleaved": {"field": "reasoning_content"},
          "limit": {"context": $context, "output": $max_tokens}
        }
      }
    }
  }
}
"""
"""Of kilocode too, which stems from it."""

ADAPTER = Adapter(
    name="opencode",
    package=Npm("opencode-ai", "1.18.33"),
    program=("$prefix/node_modules/opencode-ai/bin/opencode.exe",),
    command=("run", "--format", "json", "--title", "task", "--", "$instruction"),
    shell=ShellTool("bash", {"command": "$command", "description": "Run a command"}),
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_SHARE": "1",
        "OPENCODE_DISABLE_EMBEDDED_WEB_UI": "1",
    },
    files={".config/opencode/opencode.json": CONFIG},
    rules=Rules(
        subagent_header=r"x-parent-session-id: .",
        auxiliary_system="You are a title generator",
        compaction_system="You are a context summarization agent",
    ),
    about="an open agent with sub-agents",
)
