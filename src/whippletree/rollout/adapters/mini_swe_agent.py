"""mini-SWE-agent: one tool, a short loop, over chat completions that are not streamed."""

from whippletree.rollout.adapters.base import Adapter, Pip, ShellTool

ADAPTER = Adapter(
    name="mini-swe-agent",
    package=Pip(("mini-swe-agent==2.4.6",)),
    program=("$prefix/bin/python", "$prefix/bin/mini"),
    command=(
        "--model=openai/$model",
        "--yolo",
        "--exit-immediately",
        "--cost-limit=0",
        "--output=$home/trajectory.json",
        "--task=$instruction",
    ),
    shell=ShellTool(
        "bash",
        {"command": "$command"},
        final_tool="bash",
        final_arguments={"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"},
    ),
    env={
        "OPENAI_API_KEY": "$key",
        "OPENAI_API_BASE": "$base_url/v1",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_GLOBAL_CONFIG_DIR": "$home/.mswea",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    version_args=("--help",),  # prints the version first
    about="a loop of a hundred lines with one tool",
)
