"""What the two OpenAI protocols share: content parts, function tools, and the form of errors.

Invariant: one part of text is the same as the bare string.
"""

from __future__ import annotations

from collections.abc import Mapping

from whippletree.gateway.dialects.base import CONTEXT_LENGTH, DialectError, json_of, list_of, object_of, shown, text_of
from whippletree.types import Json, Tool

KEEP_ALIVE = b": keep-alive\n\n"
_TEXTS = frozenset({"text", "input_text", "output_text", "summary_text"})
_NAMED = {
    "image_url": "image",
    "input_image": "image",
    "computer_screenshot": "image",
    "input_audio": "audio",
    "input_file": "file",
}
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def content_text(content: Json, where: str) -> str:
    """Text of a string or of a list of parts, one to a line. Raises DialectError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DialectError(f"{where} must be a string or a list of parts, got {shown(content)}")
    parts = list_of(content, where)
    return "\n".join(_part_text(object_of(part, f"{where}[{i}]"), f"{where}[{i}]") for i, part in enumerate(parts))


def _part_text(part: Mapping[str, Json], where: str) -> str:
    kind = text_of(part.get("type"), f"{where}.type")
    if kind in _TEXTS:
        return text_of(part.get("text"), f"{where}.text")
    if kind == "refusal":
        return text_of(part.get("refusal"), f"{where}.refusal")
    return f"[{_NAMED.get(kind, kind)}]"


def function_tool(function: Mapping[str, Json], name: str, where: str) -> Tool:
    """A function under a name; without parameters it takes an empty object. Raises DialectError."""
    parameters = function.get("parameters")
    schema: Mapping[str, Json] = {"type": "object", "properties": {}}
    if parameters is not None:
        schema = object_of(json_of(parameters, f"{where}.parameters"), f"{where}.parameters")
    return Tool(name, described(function, where), schema)


def described(tool: Mapping[str, Json], where: str) -> str:
    """The description of a tool, empty where there is none. Raises DialectError."""
    description = tool.get("description")
    return "" if description is None else text_of(description, f"{where}.description")


def asked(body: Mapping[str, Json], names: tuple[str, ...]) -> dict[str, Json]:
    """The named settings that a body has. Raises DialectError."""
    return {name: json_of(body[name], name) for name in names if name in body}


def error_body(status: int, problem: str) -> dict[str, Json]:
    """A context that overflows is known by its code, or by words: all that are looked for are in the message."""
    code = None
    if status == 400 and problem.startswith(CONTEXT_LENGTH):
        code = "context_length_exceeded"
        problem = f"This model's maximum context length is exceeded: {problem}"
    kind = _ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": problem, "type": kind, "param": None, "code": code}}


def late_error(problem: str) -> dict[str, Json]:
    """As `error_body`, after a stream has begun."""
    return error_body(400 if problem.startswith(CONTEXT_LENGTH) else 500, problem)
