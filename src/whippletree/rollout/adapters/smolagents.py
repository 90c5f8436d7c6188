"""smolagents: a library, run by a short script with one tool; over chat completions that are not streamed.

It sends its history as text: calls and results become user and assistant messages.
"""

from whippletree.gateway.kinds import Rules
from whippletree.rollout.adapters.base import Adapter, Pip, ShellTool, Variant

_SCRIPT = '''"""Run one task with an agent of smolagents that has a shell: run.py KIND TASK."""

import os
import subprocess
import sys

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

MAX_CHARS = 16_000


@tool
def bash(command: str) -> str:
    """Runs a shell command in the working directory. Returns its output, and its exit code where that is not 0.

    Args:
        command: The command line, as for `bash -c`. Each command runs in a shell of its own.
    """
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
        )
    except subprocess.TimeoutExpired as late:
        return (late.output or b"").decode(errors="replace")[:MAX_CHARS] + "\\n[stopped after 120 s]"
    output = done.stdout.decode(errors="replace")[:MAX_CHARS]
    return output if done.returncode == 0 else output + f"\\n[exit code {done.returncode}]"


kind, task = sys.argv[1:]
model = OpenAIModel(
    model_id=os.environ["SMOLAGENTS_MODEL"],
    api_base=os.environ["SMOLAGENTS_BASE_URL"],
    api_key=os.environ["SMOLAGENTS_KEY"],
    client_kwargs={"max_retries": 1, "timeout": 3600.0},
)
agent_class = CodeAgent if kind == "code" else ToolCallingAgent
agent_class(tools=[bash], model=model, max_steps=100, verbosity_level=0).run(task)
'''

ADAPTER = Adapter(
    name="smolagents",
    package=Pip(("smolagents[openai]==1.26.0",)),
    program=("$prefix/bin/python",),
    command=("$home/run.py", "$args", "$instruction"),
    shell=ShellTool(
        "bash",
        {"command": "$command"},
        final_tool="final_answer",
        final_arguments={"answer": "$answer"},
    ),
    env={"SMOLAGENTS_BASE_URL": "$base_url/v1", "SMOLAGENTS_KEY": "$key", "SMOLAGENTS_MODEL": "$model"},
    files={"run.py": _SCRIPT.replace("$", "$$")},
    variants={
        "": Variant(args=("tools",), about="calls tools"),
        "code": Variant(
            args=("code",),
            shell=ShellTool(
                "",
                {"text": "Thought: I run a command.\n<code>\nprint(bash($quoted))\n</code>"},
                final="Thought: I am done.\n<code>\nfinal_answer($quoted)\n</code>",
            ),
            about="writes Python that calls tools",
        ),
    },
    rules=Rules(auxiliary_system="An agent tried to answer a user query but it got stuck"),
    version_args=("-c", "import smolagents; print(smolagents.__version__)"),
    about="Hugging Face's library",
)
