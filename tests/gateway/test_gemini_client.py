import json

import httpx
import pytest
from gemini_words import CALL, DIALECT, SCHEMA, completion, read
from google import genai
from google.genai import errors, types

from whippletree.gateway.dialects.base import CONTEXT_LENGTH
from whippletree.types import Message, Tool, ToolCall

# ---- through the official client ---------------------------------------------------------------------------------

REPLIES = [
    completion(Message("assistant", "done\u2028 é 🙂")),
    completion(Message("assistant", "", (CALL, ToolCall("call8", "stop", ""))), "tool_calls", 4),
    completion(Message("assistant", "I look", (CALL,), reasoning="hm"), "tool_calls"),
    completion(Message("assistant", "cut o"), "length"),
    completion(Message("assistant", "")),
]
CONFIG = types.GenerateContentConfig(
    system_instruction="act",
    max_output_tokens=100,
    tools=[
        types.Tool(
            function_declarations=[
                types.FunctionDeclaration(
                    name="bash",
                    description="Run.",
                    parameters=types.Schema(
                        type=types.Type.OBJECT,
                        properties={"command": types.Schema(type=types.Type.STRING)},
                        required=["command"],
                    ),
                )
            ]
        )
    ],
)


def client(answer):
    http = httpx.Client(transport=httpx.MockTransport(answer))
    return genai.Client(api_key="k", http_options=types.HttpOptions(base_url="http://here/s/1", httpx_client=http))


def answering(reply, seen):
    def answer(request):
        called = request.url.path.rpartition("/")[2]
        name, _, verb = called.partition(":")
        body = {**json.loads(request.content), "model": name, "stream": verb == "streamGenerateContent"}
        seen.append(body)
        wishes = DIALECT.wishes(body)
        if not wishes.stream:
            return httpx.Response(200, json=DIALECT.reply(wishes, reply, "1f"))
        frames = [DIALECT.keep_alive, DIALECT.keep_alive, *DIALECT.events(wishes, reply, "1f")]
        return httpx.Response(200, content=b"".join(frames), headers={"content-type": "text/event-stream"})

    return answer


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_hears_the_reply_and_hands_it_back(reply, stream):
    seen = []
    with client(answering(reply, seen)) as gemini:
        conversation = [types.UserContent("do")]
        if stream:
            heard = list(gemini.models.generate_content_stream(model="any", contents=conversation, config=CONFIG))
        else:
            heard = [gemini.models.generate_content(model="any", contents=conversation, config=CONFIG)]
        given_back = [chunk.candidates[0].content for chunk in heard]
        gemini.models.generate_content(model="any", contents=[*conversation, *given_back], config=CONFIG)
    last = heard[-1]
    assert last.candidates[0].finish_reason == ("MAX_TOKENS" if reply.finish_reason == "length" else "STOP")
    assert (last.usage_metadata.prompt_token_count, last.usage_metadata.candidates_token_count) == (10, 3)
    assert (last.model_version, last.response_id) == ("any", "1f")
    assert "".join(chunk.text or "" for chunk in heard) == reply.message.content
    told = read(*seen[1]["contents"], systemInstruction=seen[1]["systemInstruction"])
    assert told[:2] == [Message("system", "act"), Message("user", "do")]
    assert (told[2].content, told[2].reasoning) == (reply.message.content, reply.message.reasoning)
    calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in reply.message.tool_calls]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in told[2].tool_calls] == calls
    assert DIALECT.tools(DIALECT.raw_tools(seen[0])) == (Tool("bash", "Run.", SCHEMA),)


def test_a_chat_of_the_official_client_keeps_a_turn_that_was_kept_alive():
    seen = []
    with client(answering(REPLIES[0], seen)) as gemini:
        chat = gemini.chats.create(model="any")
        assert [chunk.text for chunk in chat.send_message_stream("do")] == [REPLIES[0].message.content]
        list(chat.send_message_stream("more"))
    assert read(*seen[1]["contents"]) == [Message("user", "do"), REPLIES[0].message, Message("user", "more")]


def test_the_official_client_hands_back_results():
    seen = []
    with client(answering(REPLIES[1], seen)) as gemini:
        answers = [types.Part.from_function_response(name=name, response={"output": name}) for name in ("bash", "stop")]
        contents = [types.UserContent("do"), types.Content(role="user", parts=answers)]
        gemini.models.generate_content(model="any", contents=contents)
    assert [message.content for message in read(*seen[0]["contents"])] == ["do", "bash", "stop"]


def test_the_official_client_knows_the_errors():
    def refuse(request):
        return httpx.Response(400, json=DIALECT.error(400, f"{CONTEXT_LENGTH}: 9 > 8"))

    def break_off(request):
        frames = DIALECT.keep_alive + DIALECT.error_event("the session was closed")
        return httpx.Response(200, content=frames, headers={"content-type": "text/event-stream"})

    with client(refuse) as gemini, pytest.raises(errors.ClientError, match="input token count exceeds") as error:
        gemini.models.generate_content(model="any", contents="do")
    assert error.value.code == 400
    with client(break_off) as gemini, pytest.raises(errors.ServerError, match="the session was closed"):
        list(gemini.models.generate_content_stream(model="any", contents="do"))
