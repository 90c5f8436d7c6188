"""Claude Code, over Anthropic's Messages."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Npm, ShellTool, Variant

_ENV = {
    "IS_SANDBOX": "1",
    "ANTHROPIC_BASE_URL": "$base_url",
    "ANTHROPIC_AUTH_TOKEN": "$key",
    "ANTHROPIC_MODEL": "$model",
    "ANTHROPIC_SMALL_FAST_MODEL": "$model",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "$max_tokens",
    "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "$context",
    "CLAUDE_CODE_MAX_RETRIES": "2",
    "API_TIMEOUT_MS": "3600000",
    # Nothing but the model calls leaves the program.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    # Each request extends the one before, byte for byte, with the same tools.
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
    "DISABLE_PROMPT_CACHING": "1",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS": "1",
    "MAX_THINKING_TOKENS": "0",
    # Nothing goes on beside the main agent, and nothing outlives the rollout.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_DISABLE_CRON": "1",
    "CLAUDE_CODE_DISABLE_WORKFLOWS": "1",
    "CLAUDE_CODE_DISABLE_BUNDLED_SKILLS": "1",
    "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
}

# Tools that reach for the network, or for agents and work that would go on beside or after the main agent.
_LEFT_OUT = (
    "EnterWorktree,ExitWorktree,ListAgents,Monitor,ScheduleWakeup,SendMessage,TaskOutput,TaskStop,WebFetch,WebSearch"
)

ADAPTER = Adapter(
    name="claude-code",
    package=Npm("@anthropic-ai/claude-code", "2.1.332"),
    program=("$prefix/node_modules/@anthropic-ai/claude-code/bin/claude.exe",),
    command=(
        "--print",
        "--dangerously-skip-permissions",
        "--output-format",
        "json",
        "--strict-mcp-config",
        "--setting-sources",
        "",
        "$args",
        "--",
        "$instruction",
    ),
    shell=ShellTool("Bash", {"command": "$command", "description": "Run a command"}),
    env=_ENV,
    variants={
        "": Variant(
            args=("--disallowedTools", _LEFT_OUT), about="the whole prompt; sub-agents, for which the main agent waits"
        ),
        "four-tools": Variant(args=("--tools", "Bash,Read,Edit,Write"), about="the whole prompt with four tools"),
        "minimal": Variant(env={"CLAUDE_CODE_SIMPLE": "1"}, about="two sentences of prompt and three tools"),
    },
    rules=Rules(
        subagent_header=r"x-claude-code-agent-id: .",
        compaction_user=r"Your task is to create a detailed summary of (the|this)",
    ),
    about="Anthropic's coding agent",
)
