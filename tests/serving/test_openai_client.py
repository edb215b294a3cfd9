"""Requests of the `openai` client, in the order of its reference: those that are answered, and the refusals
of those that are not."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS, chat_of_nulls
from tests.serving.conftest import BASE, Folders

CHAT: list[Any] = [{"role": "user", "content": "Say hello."}]


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    request = {"model": BASE, "messages": CHAT, "max_tokens": 3, "temperature": 0, **fields}
    return client.chat.completions.create(**request)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    request = {"model": BASE, "prompt": "the sun", "max_tokens": 3, "temperature": 0, **fields}
    return client.completions.create(**request)


def spelled(fields: Any) -> str:
    """The name of a case, the same in every process: what is left out has no address in it."""
    return str(fields).replace(str(openai.omit), "omitted")


@pytest.mark.parametrize("field", CHAT_FIELDS)
def test_a_field_of_a_chat_that_is_null_asks_for_nothing(client: openai.OpenAI, field: str):
    expected = chat(client).choices[0].message.content
    fields: dict[str, Any] = {"extra_body": {field: None}}
    if field == "max_tokens":
        fields |= {"max_completion_tokens": 3, "max_tokens": openai.omit}
    if field == "temperature":
        fields |= {"top_p": 0.001}
    assert chat(client, **fields).choices[0].message.content == expected


@pytest.mark.parametrize("field", COMPLETION_FIELDS)
def test_a_field_of_a_text_request_that_is_null_asks_for_nothing(client: openai.OpenAI, field: str):
    assert complete(client, extra_body={field: None}).choices[0].finish_reason == "length"


def test_messages_with_every_field_as_null_are_answered(client: openai.OpenAI):
    assert chat(client, messages=chat_of_nulls()).choices[0].message.content


def test_the_servers_own_answer_is_accepted_when_it_is_sent_back(client: openai.OpenAI):
    answer = chat(client).choices[0].message
    as_object = chat(client, messages=[*CHAT, answer, *CHAT])
    as_fields = chat(client, messages=[*CHAT, answer.model_dump(), *CHAT])
    assert as_object.choices[0].message == as_fields.choices[0].message


def test_a_developers_message_is_read_as_one_of_the_system(client: openai.OpenAI):
    texts = [
        chat(client, max_tokens=8, messages=[{"role": role, "content": "be brief"}, *CHAT]).choices[0]
        for role in ("developer", "system")
    ]
    assert texts[0].message == texts[1].message


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3, "seed": 7, "temperature": 1},
        {"stop": ["!", "."]},
        {"stop": "\n"},
        {"stop": []},
        {"logprobs": True, "top_logprobs": 2},
        {"max_tokens": openai.omit, "max_completion_tokens": 3},
        {"max_completion_tokens": 3},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tools": [], "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"functions": [], "function_call": "none"},
        {"parallel_tool_calls": False},
        {"store": False},
        {"user": "u", "metadata": {"a": "b"}, "store": False},
        {"safety_identifier": "u", "prompt_cache_key": "k"},
        {"service_tier": "auto"},
        {"modalities": ["text"]},
        {"verbosity": "medium"},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"logit_bias": {}},
        {"temperature": 1, "top_p": 1, "seed": 1},
        {"temperature": 2.0, "seed": 1},
        {"extra_body": {"min_p": 0.0, "repetition_penalty": 1.0, "top_k": -1}},
        {"messages": [{"role": "system", "content": "You are a bot."}, *CHAT]},
        {"messages": [{"role": "user", "content": "hi", "name": "bob"}]},
        {"messages": [*CHAT, *CHAT]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Say "}]}]},
        {
            "messages": [
                *CHAT,
                {"role": "assistant", "content": "ok", "refusal": None, "tool_calls": []},
                *CHAT,
            ]
        },
        {
            "messages": [
                *CHAT,
                {"role": "assistant", "content": "ok", "annotations": [], "audio": None},
                *CHAT,
            ]
        },
    ],
    ids=spelled,
)
def test_a_request_is_answered(client: openai.OpenAI, fields: dict[str, Any]):
    answer = chat(client, **fields)
    assert all(choice.finish_reason in ("stop", "length") for choice in answer.choices)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "a", "format": "mp3"}}, "audio"),
        ({"prediction": {"type": "content", "content": "a"}}, "prediction"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"store": True}, "store"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"logit_bias": {"50": -100}}, "logit_bias"),
        ({"service_tier": "priority"}, "service_tier"),
        (
            {"messages": [*CHAT, {"role": "assistant", "content": "a", "refusal": "no"}]},
            "messages[1].refusal",
        ),
        ({"extra_body": {"foo": 1}}, "foo"),
        ({"extra_body": {"chat_template_kwargs": {}}}, "chat_template_kwargs"),
    ],
    ids=spelled,
)
def test_a_request_for_more_than_text_is_refused_by_name(
    client: openai.OpenAI, fields: dict[str, Any], param: str
):
    with pytest.raises(openai.BadRequestError) as refusal:
        chat(client, **fields)
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [*CHAT, {"role": "judge", "content": "1"}]}, "messages[1].role"),
        ({"messages": [*CHAT, {"role": "assistant", "content": None}, *CHAT]}, "messages[1].content"),
        ({"messages": []}, "messages"),
        ({"n": 17}, "n"),
        ({"top_p": 0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
    ids=spelled,
)
def test_a_value_that_cannot_be_is_refused_by_name(client: openai.OpenAI, fields: dict[str, Any], param: str):
    with pytest.raises(openai.BadRequestError) as refusal:
        chat(client, **fields)
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", param)


@pytest.fixture(scope="module")
def oracle(folders: Folders) -> tuple[Any, Any]:
    """Model and tokenizer as transformers itself runs them."""
    model = AutoModelForCausalLM.from_pretrained(folders.base, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folders.base)


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("by_ids", [True, False])
def test_an_echoed_prompt_has_the_log_probability_of_each_token(
    client: openai.OpenAI, oracle: tuple[Any, Any], max_tokens: int, by_ids: bool
):
    model, tokenizer = oracle
    texts = ["the sun rises in the east", "why"]
    rows = [tokenizer(text)["input_ids"] for text in texts]
    answer = complete(client, prompt=rows if by_ids else texts, echo=True, logprobs=1, max_tokens=max_tokens)
    assert answer.usage.prompt_tokens == sum(map(len, rows))
    assert answer.usage.completion_tokens == 2 * max_tokens
    for choice, text, ids in zip(answer.choices, texts, rows, strict=True):
        assert choice.text.startswith(text) if max_tokens else choice.text == text
        with torch.no_grad():
            log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = log_probs[range(len(ids) - 1), ids[1:]].tolist()
        read = choice.logprobs
        assert read.tokens[: len(ids)] == [tokenizer.decode([id]) for id in ids]
        assert len(read.tokens) <= len(ids) + max_tokens
        assert (read.token_logprobs[0], read.top_logprobs[0]) == (None, None)
        assert read.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)
        likeliest = [max(top.values()) for top in read.top_logprobs[1 : len(ids)]]
        assert likeliest == pytest.approx(log_probs[:-1].amax(-1).tolist(), abs=1e-4)
        # So an evaluation tells whether greedy decoding writes the text.
        assert read.text_offset[:2] == [0, len(read.tokens[0])]


def test_an_echoed_prompt_without_log_probabilities_is_its_text(client: openai.OpenAI):
    answer = complete(client, prompt=["the sun", "why"], n=2, echo=True, temperature=1, seed=1)
    assert [choice.text[:3] for choice in answer.choices] == ["the", "the", "why", "why"]
    assert answer.choices[0].logprobs is None


def test_a_prompt_as_long_as_the_context_is_echoed_and_not_continued(client: openai.OpenAI):
    answer = complete(client, prompt=[5] * 2048, echo=True, logprobs=0, max_tokens=0)
    assert len(answer.choices[0].logprobs.tokens) == 2048
    with pytest.raises(openai.BadRequestError) as refusal:
        complete(client, prompt=[5] * 2048, echo=True, max_tokens=1)
    assert refusal.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"echo": True, "stream": True}, {"echo": True, "return_token_ids": True}]
)
def test_fields_of_a_text_request_that_do_not_go_together_are_refused(
    client: openai.OpenAI, fields: dict[str, Any]
):
    extra = {name: fields[name] for name in ("return_token_ids",) if name in fields}
    fields = {name: value for name, value in fields.items() if name not in extra}
    with pytest.raises(openai.BadRequestError) as refusal:
        complete(client, **fields, extra_body=extra)
    assert refusal.value.code == "invalid_value"


def test_what_the_server_has_no_route_for_is_not_found(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=BASE, input="a")
