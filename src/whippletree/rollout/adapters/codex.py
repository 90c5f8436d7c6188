"""Codex, over OpenAI's Responses."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool, Variant

_CONFIG = """model = "$model"
model_provider = "local"
model_context_window = $context
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.local]
name = "local"
base_url = "$base_url/v1"
env_key = "CODEX_LOCAL_KEY"
wire_api = "responses"
request_max_retries = 1
stream_max_retries = 1
stream_idle_timeout_ms = 3600000

[analytics]
enabled = false

[feedback]
enabled = false

[features]
apps = false
plugins = false
remote_plugin = false
"""

ADAPTER = Adapter(
    name="codex",
    package=Npm("@openai/codex", "0.171.0", min_node=(16,)),
    program=("$prefix/bin/node", "$prefix/node_modules/@openai/codex/bin/codex.js"),
    command=(
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "--json",
        "$args",
        "--",
        "$instruction",
    ),
    shell=ShellTool("exec_command", {"cmd": "$command"}),
    env={"CODEX_LOCAL_KEY": "$key"},
    files={".codex/config.toml": _CONFIG},
    variants={
        "": Variant(args=("--disable", "multi_agent"), about="one agent"),
        "multi-agent": Variant(about="with tools to spawn sub-agents, which run beside it"),
    },
    rules=Rules(
        subagent_header=r"x-openai-subagent: .",
        compaction_header=r'x-codex-turn-metadata: .*"request_kind":\s*"compaction"',
        compaction_user="You are performing a CONTEXT CHECKPOINT COMPACTION",
    ),
    about="OpenAI's coding agent",
)
