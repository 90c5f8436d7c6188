"""Contents and completions in Gemini's words, shared by its tests."""

import numpy as np

from whippletree.gateway.dialects.gemini import Gemini
from whippletree.types import Completion, ToolCall

DIALECT = Gemini()
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CALL = ToolCall("call7", "bash", '{"command": "ls"}')


def completion(message, finish_reason="stop", cached_tokens=0):
    ids = np.arange(3)
    return Completion(message, finish_reason, np.arange(10), ids, np.zeros(3, np.float32), 0, None, cached_tokens)


def read(*contents, **body):
    return [message for message, _ in DIALECT.read(DIALECT.items({"contents": list(contents), **body}), 0)]


def user(*parts):
    return {"role": "user", "parts": list(parts)}


def model(*parts):
    return {"role": "model", "parts": list(parts)}


def text(value, **more):
    return {"text": value, **more}


def called(name="bash", **args):
    return {"functionCall": {"name": name, "args": args}}


def result(response, **more):
    return {"functionResponse": {"name": "bash", "response": response, **more}}
