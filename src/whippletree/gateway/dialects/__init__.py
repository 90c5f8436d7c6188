"""The wire protocols by which harnesses reach the gateway: one file and one line each."""

from whippletree.gateway.dialects.chat_completions import ChatCompletions
from whippletree.gateway.dialects.gemini import Gemini
from whippletree.gateway.dialects.messages import Messages
from whippletree.gateway.dialects.responses import Responses

CHAT_COMPLETIONS, RESPONSES, MESSAGES, GEMINI = ChatCompletions(), Responses(), Messages(), Gemini()

__all__ = ["CHAT_COMPLETIONS", "GEMINI", "MESSAGES", "RESPONSES"]
