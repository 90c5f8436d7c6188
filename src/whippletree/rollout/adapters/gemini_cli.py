"""Gemini CLI, over Gemini's generateContent."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool

_SETTINGS = """{
  "general": {
    "enableAutoUpdate": false,
    "enableAutoUpdateNotification": false,
    "maxAttempts": 2,
    "checkpointing": {"enabled": false}
  },
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
  "model": {"disableLoopDetection": true, "skipNextSpeakerCheck": true},
  "tools": {
    "shell": {"enableInteractiveShell": false},
    "useRipgrep": false,
    "exclude": [
      "enter_plan_mode",
      "google_web_search",
      "list_background_processes",
      "read_background_output",
      "web_fetch"
    ]
  }
}
"""

ADAPTER = Adapter(
    name="gemini-cli",
    package=Npm("@google/gemini-cli", "0.61.0", min_node=(20,)),
    program=("$prefix/bin/node", "$prefix/node_modules/@google/gemini-cli/bundle/gemini.js"),
    # It knows the models that it runs with; which one samples is the gateway's matter.
    command=(
        "--model=gemini-2.5-pro",
        "--approval-mode=yolo",
        "--skip-trust",
        "--output-format=json",
        "--prompt=$instruction",
    ),
    shell=ShellTool("run_shell_command", {"command": "$command", "description": "Run a command"}),
    env={"GEMINI_API_KEY": "$key", "GOOGLE_GEMINI_BASE_URL": "$base_url", "GEMINI_CLI_NO_RELAUNCH": "true"},
    files={".gemini/settings.json": _SETTINGS},
    rules=Rules(
        subagent_system="If you stop calling tools without calling this, you have failed",
        compaction_system="responsible for distilling chat history",
    ),
    about="Google's coding agent",
)
