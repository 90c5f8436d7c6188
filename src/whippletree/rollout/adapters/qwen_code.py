"""Qwen Code, over chat completions."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool

_SETTINGS = """{
  "general": {
    "enableAutoUpdate": false,
    "disableAutoUpdate": true,
    "disableUpdateNag": true,
    "checkpointing": {"enabled": false}
  },
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": false}},
  "model": {
    "skipNextSpeakerCheck": true,
    "skipLoopDetection": true,
    "generationConfig": {"timeout": 3600000, "maxRetries": 1, "contextWindowSize": $context}
  },
  "memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false},
  "tools": {
    "shell": {"enableInteractiveShell": false},
    "toolSearch": {"enabled": false},
    "exclude": [
      "agent",
      "cron_create",
      "cron_delete",
      "cron_list",
      "enter_worktree",
      "exit_worktree",
      "list_agents",
      "loop_wakeup",
      "monitor",
      "record_artifact",
      "send_message",
      "task_stop",
      "web_fetch",
      "web_search"
    ]
  }
}
"""

ADAPTER = Adapter(
    name="qwen-code",
    package=Npm("@qwen-code/qwen-code", "0.24.4", min_node=(22,)),
    program=("$prefix/bin/node", "$prefix/node_modules/@qwen-code/qwen-code/cli-entry.js"),
    command=("--auth-type", "openai", "--approval-mode", "yolo", "--output-format", "json", "--prompt=$instruction"),
    shell=ShellTool("run_shell_command", {"command": "$command", "description": "Run a command"}),
    env={
        "OPENAI_API_KEY": "$key",
        "OPENAI_BASE_URL": "$base_url/v1",
        "OPENAI_MODEL": "$model",
        "QWEN_CODE_MAX_OUTPUT_TOKENS": "$max_tokens",
    },
    files={".qwen/settings.json": _SETTINGS},
    # It asks in the thread first, and with a system prompt where that fails.
    rules=Rules(
        compaction_system="You are the component that summarizes a conversation",
        compaction_user="You are the component that summarizes a conversation",
    ),
    about="Alibaba's coding agent",
)
