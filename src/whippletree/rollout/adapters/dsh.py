"""DeepSeek Harness: run by a short script with its SDK, over chat completions."""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Pip, ShellTool, Variant

_SCRIPT = '''"""Run one task in a profile of the harness: run.py PROFILE TASK."""

import os
import sys

from deepseek_harness import DeepSeekHarness

profile, task = sys.argv[1:]
with DeepSeekHarness(
    dsh_home=os.environ["DSH_HOME"],
    profile=profile,
    patches=(os.environ["HOME"] + "/profile.patch.yml",),
    provider="local",
    model=os.environ["DSH_LOCAL_MODEL"],
    initialize_timeout_seconds=600,
    shutdown_timeout_seconds=20,
) as harness:
    result = harness.run(task)
print(result.finish_reason, result.final_response)
'''

_PROVIDER = """id: llm-pi-ai
  name: '@deepseek-ai/dsh-llm-pi-ai'
  config:
    providers:
      local:
        apiKeyEnv: DSH_LOCAL_KEY
        api: openai-completions
        baseURL: $base_url/v1
        compat:
          supportsDeveloperRole: false
          supportsStore: false
          maxTokensField: max_tokens
        retryPolicy:
          mode: normal
          maxRetries: 1
        models:
          - id: $model
            contextWindow: $context
            maxTokens: $max_tokens
"""


def _patch(profile_has_provider: bool, *disabled: str) -> str:
    """What a profile is changed by: the model it uses, and the rows that it does without."""
    rows = [f"- id: {row}\n  disabled: true\n" for row in disabled]
    if profile_has_provider:
        return f"- {_PROVIDER}" + "".join(rows)
    return "- insert:\n    - " + _PROVIDER.replace("\n  ", "\n      ") + "".join(rows)


# They would send the session, or a list of what is installed, with each request.
_TELLING = (
    "llm-deepseek",
    "deepseek-llm-api-extensions",
    "session-log-deepseek",
    "plugin-package-inventory-deepseek",
)
# They reach for the network, or for agents and jobs that would go on beside the main agent and end with it.
_BESIDE = (
    "command-feedback",
    "session-telemetry-otel",
    "otel",
    "tool-jobs",
    "tool-subagent",
    "tool-subagent-control",
    "tool-subagent-fork",
    "tool-subagent-list-agents",
    "tool-web",
    "tool-workflow",
)

ADAPTER = Adapter(
    name="dsh",
    package=Pip(("deepseek-harness-sdk==0.2.1rc2",)),
    program=("$prefix/bin/python",),
    command=("$home/run.py", "$args", "$instruction"),
    shell=ShellTool("bash", {"command": "$command"}),
    env={
        "DSH_HOME": "$home/.dsh",
        "DSH_LOCAL_KEY": "$key",
        "DSH_LOCAL_MODEL": "$model",
        "DSH_TELEMETRY_MODE": "DISABLED",
        "DSH_PERMISSION_MODE": "danger-full-access",
    },
    files={"run.py": _SCRIPT},
    variants={
        "": Variant(
            args=("sdk-minimal",),
            files={"profile.patch.yml": _patch(False, *_TELLING)},
            about="one sentence of prompt",
        ),
        "full": Variant(
            args=("sdk",),
            files={"profile.patch.yml": _patch(True, *_TELLING, *_BESIDE)},
            shell=ShellTool("bash", {"command": "$command", "description": "Run a command"}),
            about="the SDK's profile",
        ),
    },
    rules=Rules(compaction_user="You are now acting as a compaction engine"),
    version_args=("-m", "deepseek_harness_runtime", "--version"),
    about="DeepSeek's harness",
)
