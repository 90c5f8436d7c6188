import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from whippletree.chat.template import TemplateRenderer
from whippletree.errors import PolicyError
from whippletree.types import Message, Tool, ToolCall

SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "</s>",
]

QWEN = """
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nReturn <tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args>}\\n</tool_call>" }}
    {{- "<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=0) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""

LLAMA = """
{{- '<|begin_of_text|>' }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system }}
{%- if tools %}
    {{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.' }}
    {%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length > 1 %}{{- raise_exception('only single tool-calls') }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson + '}' + '<|eot_id|>' }}
    {%- else %}
        {%- set role = 'ipython' if message.role == 'tool' else message.role %}
        {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

MISTRAL_LIKE = """
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if tools and loop.last %}{{- '[TOOLS]' + tools | tojson }}{%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}{{- message.content + '</s>' }}
    {%- else %}{{- '[RESULT]' + message.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- ' ' }}{%- endif %}
"""

OPENS = "{% if add_generation_prompt %}{{ 'answer:' }}{% endif %}"
LAST_ONLY = "{% for m in messages %}{% if loop.last %}{{ m.role + m.content + '</s>' }}{% endif %}{% endfor %}" + OPENS

SYSTEM, TASK = Message("system", "You act."), Message("user", "List the files.")
CALL = ToolCall("call_0", "bash", '{"command": "ls"}')
BASH = Tool("bash", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}})


def make(template: str, stop: str, **kwargs) -> tuple[PreTrainedTokenizerFast, TemplateRenderer]:
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([template] * 2, trainer)
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=stop, additional_special_tokens=SPECIALS)
    tokenizer.chat_template = template
    return tokenizer, TemplateRenderer(tokenizer, **kwargs)


@pytest.fixture(scope="module")
def qwen():
    return make(QWEN, "<|im_end|>")


@pytest.fixture(scope="module")
def llama():
    return make(LLAMA, "<|eot_id|>")


def rendered(tokenizer, messages: list[dict], tools=None) -> str:
    return tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_a_spliced_conversation_is_what_the_template_renders(kind, request):
    tokenizer, renderer = request.getfixturevalue(kind)
    results = [Message("tool", "a.txt", tool_call_id="call_0"), Message("tool", "b.txt", tool_call_id="call_1")]
    said = renderer.encode_completion(Message("assistant", "", (CALL,)))
    parts = [renderer.encode_head([SYSTEM, TASK], [BASH]), renderer.opening, said, renderer.closing(said)]
    spliced = np.concatenate([*parts, renderer.encode_messages(results), renderer.opening])
    function = {"name": "bash", "arguments": {"command": "ls"}}
    tool = {"name": "bash", "description": "Run.", "parameters": dict(BASH.parameters)}
    messages = [
        {"role": "system", "content": SYSTEM.content},
        {"role": "user", "content": TASK.content},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        *({"role": "tool", "content": m.content} for m in results),
    ]
    assert renderer.text(spliced) == rendered(tokenizer, messages, [{"type": "function", "function": tool}])


def test_sampled_turns_end_with_the_stop_token(qwen, llama):
    for (tokenizer, renderer), stop, after in [(qwen, "<|im_end|>", "\n"), (llama, "<|eot_id|>", "")]:
        assert renderer.stop_ids == (tokenizer.convert_tokens_to_ids(stop),)
        said = renderer.encode_completion(Message("assistant", "done"))
        assert said[-1] == renderer.stop_ids[0]
        assert renderer.text(renderer.closing(said)) == after
        assert renderer.text(renderer.closing(said[:-1])) == stop + after


def test_a_new_user_turn_does_not_touch_sampled_thinking(qwen):
    _, renderer = qwen
    assert renderer.text(renderer.encode_messages([TASK])) == "<|im_start|>user\nList the files.<|im_end|>\n"


@pytest.mark.parametrize("kind", ["qwen", "llama"])
def test_calls_are_read_back(kind, request):
    _, renderer = request.getfixturevalue(kind)
    message, error = renderer.parse(renderer.encode_completion(Message("assistant", "", (CALL,))), [BASH])
    assert error is None
    assert [(c.name, json.loads(c.arguments)) for c in message.tool_calls] == [("bash", {"command": "ls"})]


def test_thinking_is_kept_in_the_ids_only(qwen):
    _, renderer = qwen
    ids = renderer._encode("<think>\nhm\n</think>\n\nDone.<|im_end|>")
    assert renderer.parse(ids, [BASH]) == (Message("assistant", "Done."), None)
    _, error = renderer.parse(renderer._encode("<think>\nhm"), [BASH])
    assert error is not None
    assert "thinking" in error


def test_thinking_opened_by_the_template():
    _, renderer = make(QWEN, "<|im_end|>", template_kwargs={"enable_thinking": True})
    assert renderer.text(renderer.opening).endswith("<think>\n")
    assert renderer.parse(renderer._encode("hm</think>Done.<|im_end|>"), []) == (Message("assistant", "Done."), None)


def test_malformed_calls_are_told_in_words(qwen):
    _, renderer = qwen
    raw = "<tool_call>{oops}</tool_call>"
    message, error = renderer.parse(renderer._encode(raw + "<|im_end|>"), [BASH])
    assert error is not None
    assert "not valid JSON" in error
    assert message == Message("assistant", raw)


def test_without_tools_everything_is_text(llama):
    _, renderer = llama
    raw = '{"name": "bash", "parameters": {}}'
    assert renderer.parse(renderer._encode(raw + "<|eot_id|>"), []) == (Message("assistant", raw), None)


def test_templates_that_cannot_be_spliced_are_refused():
    with pytest.raises(PolicyError, match=r"rewrites earlier messages.*tools"):
        make(MISTRAL_LIKE, "</s>", parser="hermes")
    with pytest.raises(PolicyError, match="drops an answer"):
        make(LAST_ONLY, "</s>")
    with pytest.raises(PolicyError, match="opens no answer"):
        make(LAST_ONLY.removesuffix(OPENS), "</s>")
    with pytest.raises(PolicyError, match="no known form"):
        make(MISTRAL_LIKE, "</s>")
    with pytest.raises(PolicyError, match="ends an answer with"):
        make(QWEN.replace("<|im_end|>", "."), "</s>")


def test_a_refused_request_says_so(llama):
    _, renderer = llama
    with pytest.raises(PolicyError, match="only single tool-calls"):
        renderer.encode_messages([Message("assistant", "", (CALL, CALL))])
    _, silent = make(QWEN.replace("if tools", "if false"), "<|im_end|>")
    with pytest.raises(PolicyError, match="does not show tools"):
        silent.encode_head([TASK], [BASH])
