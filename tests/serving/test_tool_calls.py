"""Calls of functions: offered, written, read while they are written, and sent back with their results."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.serving.conftest import BASE
from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer
from training.rlhf.rollout.distribution import Grammars
from training.serving.requests import ChatMessage, ChatRequest, Function
from training.serving.structures import CallReader, ToolPrompts, request_grammar

CHAT: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": PARAMETERS,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
SCHEMAS = {
    "weather": PARAMETERS,
    "clock": {"type": "object", "additionalProperties": False},
}

HERMES_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}{{ '<|im_start|>system\n<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '</tools><|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def answered(client: openai.OpenAI, **fields: Any) -> Any:
    asked = {
        "model": BASE,
        "messages": CHAT,
        "max_tokens": 400,
        "seed": 1,
        "tools": [WEATHER, CLOCK],
        **fields,
    }
    return client.chat.completions.create(**asked)


def check(call: Any) -> None:
    assert (call.type, call.id[:5]) == ("function", "call_")
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("seed", range(3))
def test_a_call_that_is_required_is_written_with_arguments_of_the_schema(client: openai.OpenAI, seed: int):
    answer = answered(client, tool_choice="required", seed=seed, parallel_tool_calls=False, logprobs=True)
    [choice] = answer.choices
    [call] = choice.message.tool_calls
    check(call)
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.logprobs.content


def test_the_function_that_is_named_is_called(client: openai.OpenAI):
    for name in ("weather", "clock"):
        choice = answered(
            client,
            tool_choice={"type": "function", "function": {"name": name}},
            parallel_tool_calls=False,
        ).choices[0]
        [call] = choice.message.tool_calls
        assert call.function.name == name
        assert choice.finish_reason == "tool_calls"
        check(call)


def test_a_stream_tells_the_same_calls(client: openai.OpenAI):
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "n": 2, "seed": 5}
    whole = answered(client, **fields)
    calls: dict[int, dict[str, str]] = {0: {}, 1: {}}
    ended, ids = {}, set()
    for chunk in answered(client, **fields, stream=True):
        [choice] = chunk.choices
        for piece in choice.delta.tool_calls or ():
            assert piece.index == 0
            if piece.id:
                ids.add(piece.id)
                calls[choice.index] = {"name": piece.function.name, "arguments": ""}
            calls[choice.index]["arguments"] += piece.function.arguments or ""
        if choice.finish_reason:
            ended[choice.index] = choice.finish_reason
    expected = [choice.message.tool_calls[0].function for choice in whole.choices]
    assert [calls[0], calls[1]] == [{"name": each.name, "arguments": each.arguments} for each in expected]
    assert ended == {0: "tool_calls", 1: "tool_calls"}
    assert len(ids) == 2


def test_without_a_choice_the_model_answers_or_calls(client: openai.OpenAI):
    choice = answered(client, max_tokens=30).choices[0]
    assert choice.message.content or choice.message.tool_calls


def test_tools_that_must_not_be_called_leave_the_answer_as_without_them(client: openai.OpenAI):
    forbidden = answered(client, tool_choice="none", max_tokens=20).choices[0]
    without = answered(client, tools=openai.omit, max_tokens=20).choices[0]
    assert forbidden.message == without.message
    assert forbidden.finish_reason == without.finish_reason


def test_a_call_that_is_cut_off_says_so(client: openai.OpenAI):
    choice = answered(
        client, tool_choice={"type": "function", "function": {"name": "weather"}}, max_tokens=60
    )
    assert choice.choices[0].finish_reason in ("length", "tool_calls")
    short = answered(client, tool_choice="required", max_tokens=5).choices[0]
    assert (short.finish_reason, short.message.tool_calls) == ("length", None)


def test_a_call_and_its_result_are_accepted_when_they_are_sent_back(client: openai.OpenAI):
    message = answered(client, tool_choice="required", parallel_tool_calls=False).choices[0].message
    results = [{"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 °C"}]
    as_object = answered(client, messages=[*CHAT, message, *results], max_tokens=8)
    as_fields = answered(client, messages=[*CHAT, message.model_dump(), *results], max_tokens=8)
    assert as_object.choices[0].message == as_fields.choices[0].message
    without_tools = answered(client, messages=[*CHAT, message, *results], max_tokens=8, tools=openai.omit)
    assert without_tools.usage.prompt_tokens < as_object.usage.prompt_tokens


CALL = {"id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tool_choice": "required", "tools": openai.omit}, "invalid_value", "tool_choice"),
        ({"tool_choice": "any"}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "invalid_value", "tool_choice"),
        ({"tools": [CLOCK, CLOCK]}, "invalid_value", "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "invalid_value", "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "invalid_value",
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "invalid_value",
            "tools[0].function.parameters",
        ),
        (
            {"tools": [CLOCK, {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]},
            "invalid_schema",
            "tools[1].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}]},
            "control_token",
            "tools[0]",
        ),
        (
            {"messages": [*CHAT, {"role": "tool", "tool_call_id": "a", "content": "1"}]},
            "invalid_value",
            "messages[1].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": "a", "tool_calls": [CALL]}]},
            "invalid_value",
            "messages[0].tool_calls",
        ),
        (
            {
                "messages": [
                    *CHAT,
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "clock", "arguments": "{"}}],
                    },
                ]
            },
            "invalid_value",
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
    ids=lambda value: str(value).replace(str(openai.omit), "omitted")[:60],
)
def test_tools_and_messages_that_cannot_be_are_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], code: str, param: str
):
    with pytest.raises(openai.BadRequestError) as refusal:
        answered(client, **fields)
    assert (refusal.value.code, refusal.value.param) == (code, param)


def test_a_score_is_asked_for_without_tools(client: openai.OpenAI):
    body = {"model": "reward", "messages": [{"role": "tool", "content": "a"}], "completions": ["a"]}
    with pytest.raises(openai.BadRequestError) as refusal:
        client.post("/score", body=body, cast_to=object)
    assert refusal.value.param == "messages[0].role"


# ── Grammars ──────────────────────────────────────────────────────────────────────────

ONE_CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def may_end(text: str, *, added: bool = False, **fields: Any) -> bool | None:
    """Return whether an answer of this text may end here; None where it cannot be written.

    added: its tags are tokens of the tokenizer, as in Qwen's.
    """
    tokenizer = tiny_tokenizer()
    if added:
        tokenizer.add_tokens(["<tool_call>", "</tool_call>", "<think>", "</think>"])
    request = ChatRequest.model_validate_json(
        json.dumps({"model": BASE, "messages": CHAT, "tools": [WEATHER, CLOCK], **fields})
    )
    end = tokenizer.eos_token_id
    grammars = Grammars(tokenizer, vocabulary=len(tokenizer), ends=[end])
    constraint = grammars.compile(request_grammar(request, grammars.named_tokens))
    for id in tokenizer(text, add_special_tokens=False)["input_ids"]:
        if not constraint.allowed()[id]:
            return None
        constraint.advance(id)
    return bool(constraint.allowed()[end])


@pytest.mark.parametrize("added", [True, False])
def test_an_answer_is_text_calls_or_text_and_then_calls(added: bool):
    for text in (
        "",
        "It is a warm < day.\n",
        ONE_CALL,
        f"Let me see.\n{ONE_CALL}",
        f"{ONE_CALL}\n{ONE_CALL}",
    ):
        assert may_end(text, added=added) is True, text
    assert may_end("<tool_call>", added=added) is False
    for text in ("<tool_call> a", f"Let me see.{ONE_CALL} And so on.", ONE_CALL.replace("clock", "watch")):
        assert may_end(text, added=added) is None, text


def test_one_call_at_most_where_calls_are_not_made_together():
    assert may_end(ONE_CALL, parallel_tool_calls=False) is True
    assert may_end(f"{ONE_CALL}\n{ONE_CALL}", parallel_tool_calls=False) is None


@pytest.mark.parametrize("added", [True, False])
def test_an_answer_in_a_format_may_still_be_a_call(added: bool):
    form = {"type": "json_object"}
    assert may_end('{"a": 1}', response_format=form) is True
    assert may_end(ONE_CALL, response_format=form, added=added) is True
    assert may_end("Let me see.", response_format=form) is None
    assert may_end("{}", tool_choice="required", added=added) is None
    assert may_end(ONE_CALL, tool_choice="required", added=added) is True


# ── Prompts ───────────────────────────────────────────────────────────────────────────

TALK = [
    ChatMessage(role="user", content="a"),
    ChatMessage.model_validate(
        {"role": "assistant", "content": "Let me look.", "tool_calls": [CALL, {**CALL, "id": "b"}]}
    ),
    ChatMessage(role="tool", tool_call_id="a", content="one"),
    ChatMessage(role="tool", tool_call_id="b", content="two"),
]


def test_a_template_that_writes_our_format_renders_tools_itself():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = HERMES_TEMPLATE
    prompts = ToolPrompts(tokenizer)
    assert prompts.template_knows_tools
    text = prompts.render(TALK, [Function(name="clock")], thinks=True)
    assert "<tools>" in text
    assert text.count('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>') == 2
    assert "<|im_start|>tool\none<|im_end|>" in text


@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, HERMES_TEMPLATE.replace("<tool_call>", "<call>"), "{{ messages[0].content }}"]
)
def test_for_any_other_template_tools_are_written_into_the_chat(template: str):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    prompts = ToolPrompts(tokenizer)
    assert not prompts.template_knows_tools
    chat = prompts.plain(TALK, [Function(name="clock", description="Tell the time.")])
    assert [message.role for message in chat] == ["system", "user", "assistant", "user"]
    assert '"description": "Tell the time."' in chat[0].content
    assert chat[2].content.startswith('Let me look.\n<tool_call>\n{"name": "clock", "arguments": {}}\n')
    assert chat[3].content == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )


def test_instructions_follow_the_system_message_of_the_chat():
    prompts = ToolPrompts(tiny_tokenizer())
    system = ChatMessage(role="developer", content="Be brief.")
    chat = prompts.plain([system, TALK[0]], [Function(name="clock")])
    assert [message.role for message in chat] == ["system", "user"]
    assert chat[0].content.startswith("Be brief.\n\n# Tools")


# ── Reading ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_read_from_pieces_of_any_size(size: int):
    call = '<tool_call>\n{"name": "f", "arguments": {"a": "}\\n</tool_call>"}}\n</tool_call>'
    text = f"I look < it up. \n{call}\n" + call.replace('"f"', '"g"')
    reader, content = CallReader(), ""
    calls: dict[int, dict[str, str]] = {}
    for start in range(0, len(text), size):
        delta = reader.push(text[start : start + size], ended=start + size >= len(text))
        content += delta.get("content", "")
        for piece in delta.get("tool_calls", ()):
            entry = calls.setdefault(piece["index"], {"name": piece["function"].get("name"), "arguments": ""})
            entry["arguments"] += piece["function"]["arguments"]
    assert content == "I look < it up."
    arguments = '{"a": "}\\n</tool_call>"}'
    assert calls == {0: {"name": "f", "arguments": arguments}, 1: {"name": "g", "arguments": arguments}}


def test_a_text_that_holds_the_tag_is_told_as_text():
    reader = CallReader()
    assert reader.push("Models write <tool_call> and\n", ended=False)["content"].startswith("Models write")
    assert reader.push("so on.", ended=True) == {"content": "\nso on."}


def test_a_call_that_is_cut_off_before_its_name_is_no_text():
    reader = CallReader()
    assert reader.push('Well.\n<tool_call>\n{"na', ended=True) == {"content": "Well."}


def test_a_text_without_calls_is_told_whole_at_its_end():
    reader = CallReader()
    told = [reader.push(piece, ended=False).get("content", "") for piece in ("A <tool", "box", " <tool_c")]
    told.append(reader.push("", ended=True).get("content", ""))
    assert "".join(told) == "A <toolbox <tool_c"
    assert told[0] == "A"
