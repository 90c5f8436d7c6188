"""Cline, over chat completions."""

from whippletree.gateway.kinds import Rules
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
        "baseUrl": "$base_url/v1",
        "contextWindow": $context,
        "maxTokens": $max_tokens,
        "timeout": 3600000
      },
      "updatedAt": "2026-01-01T00:00:00.000Z",
      "tokenSource": "manual"
    }
  }
}
"""

# Tools that reach for the network or the user, or for agents that would go on beside the main one, are left out.
_SETTINGS = """{
  "autoUpdateEnabled": false,
  "telemetryOptOut": true,
  "disabledTools": [
    "ask_question",
    "fetch_web_content",
    "spawn_agent",
    "team_attach_outcome_fragment",
    "team_await_runs",
    "team_broadcast",
    "team_cancel_run",
    "team_cleanup",
    "team_create_outcome",
    "team_finalize_outcome",
    "team_list_outcomes",
    "team_list_runs",
    "team_mission_log",
    "team_read_mailbox",
    "team_review_outcome_fragment",
    "team_run_task",
    "team_send_message",
    "team_shutdown_teammate",
    "team_spawn_teammate",
    "team_status",
    "team_task"
  ]
}
"""

ADAPTER = Adapter(
    name="cline",
    package=Npm("cline", "3.0.65"),
    program=("$prefix/node_modules/cline/bin/.cline",),
    command=("--json", "--auto-approve", "true", "--", "$instruction"),
    shell=ShellTool("run_commands", {"commands": ("$command",)}),
    env={"CLINE_NO_AUTO_UPDATE": "1", "CLINE_NO_INTERACTIVE": "1"},
    files={
        ".cline/data/settings/providers.json": _PROVIDERS,
        ".cline/data/settings/global-settings.json": _SETTINGS,
    },
    rules=Rules(compaction_user="^Summarize this session for continuation"),
    about="an agent with many tools",
)
