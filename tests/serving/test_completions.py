"""Answers to chats and texts, as the official client reads them."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.model_server import RunningServer
from tests.serving.conftest import BASE, Folders

CHAT: list[Any] = [{"role": "user", "content": "What is the sun? ☀️"}]


@pytest.fixture(scope="module")
def oracle(folders: Folders) -> tuple[Any, Any]:
    """Model and tokenizer as transformers itself runs them."""
    model = AutoModelForCausalLM.from_pretrained(folders.base, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folders.base)


def rendered(tokenizer: Any) -> torch.Tensor:
    encoded = tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    ids: torch.Tensor = encoded["input_ids"]
    return ids


def test_a_greedy_chat_is_what_transformers_writes(client: openai.OpenAI, oracle: tuple[Any, Any]):
    model, tokenizer = oracle
    completion = client.chat.completions.create(model=BASE, messages=CHAT, temperature=0, max_tokens=20)
    ids = rendered(tokenizer)
    written = model.generate(ids, do_sample=False, max_new_tokens=20)[0, ids.shape[1] :]
    expected = tokenizer.decode(written, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert completion.choices[0].message.content == expected
    assert completion.choices[0].message.role == "assistant"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == ids.shape[1]
    assert completion.usage.completion_tokens == len(written)
    assert completion.usage.total_tokens == ids.shape[1] + len(written)


def test_a_raw_text_is_continued_without_a_chat_around_it(client: openai.OpenAI, oracle: tuple[Any, Any]):
    model, tokenizer = oracle
    completion = client.completions.create(model=BASE, prompt="the sun", temperature=0, max_tokens=9)
    ids = tokenizer("the sun", return_tensors="pt")["input_ids"]
    written = model.generate(ids, do_sample=False, max_new_tokens=9)[0, ids.shape[1] :]
    expected = tokenizer.decode(written, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert completion.choices[0].text == expected
    by_tokens = client.completions.create(model=BASE, prompt=ids[0].tolist(), temperature=0, max_tokens=9)
    assert by_tokens.choices[0].text == expected


def test_a_chat_goes_on_from_the_text_of_its_last_message(client: openai.OpenAI, oracle: tuple[Any, Any]):
    model, tokenizer = oracle
    begun = [*CHAT, {"role": "assistant", "content": "The sun is 👩\u200d🏫 a"}]
    continuing = {"add_generation_prompt": False, "continue_final_message": True}
    completion = client.chat.completions.create(
        model=BASE, messages=begun, temperature=0, max_tokens=12, extra_body=continuing
    )
    encoded = tokenizer.apply_chat_template(
        begun, return_tensors="pt", return_dict=True, continue_final_message=True
    )
    ids = encoded["input_ids"]
    written = model.generate(ids, do_sample=False, max_new_tokens=12)[0, ids.shape[1] :]
    expected = tokenizer.decode(written, skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
    assert completion.choices[0].message.content == expected
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == ids.shape[1]


def test_every_choice_names_the_seed_that_draws_it_again_alone(client: openai.OpenAI):
    completion = client.chat.completions.create(model=BASE, messages=CHAT, n=4, seed=40, max_tokens=16)
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    seeds = [choice.model_extra["seed"] for choice in completion.choices if choice.model_extra]
    assert seeds == [40, 41, 42, 43]
    for seed, choice in zip(seeds, completion.choices, strict=True):
        again = client.chat.completions.create(model=BASE, messages=CHAT, seed=seed, max_tokens=16)
        assert again.choices[0].message.content == choice.message.content


def test_without_a_seed_answers_differ_and_still_name_theirs(client: openai.OpenAI):
    first, second = (
        client.chat.completions.create(model=BASE, messages=CHAT, max_tokens=16).choices[0] for _ in range(2)
    )
    assert first.message.content != second.message.content
    assert first.model_extra is not None
    again = client.chat.completions.create(
        model=BASE, messages=CHAT, max_tokens=16, seed=first.model_extra["seed"]
    )
    assert again.choices[0].message.content == first.message.content


def test_several_prompts_are_answered_in_order_with_seeds_of_their_own(client: openai.OpenAI):
    completion = client.completions.create(
        model=BASE, prompt=["the sun", "a question"], n=2, seed=7, max_tokens=8
    )
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    alone = client.completions.create(model=BASE, prompt="a question", seed=9, max_tokens=8)
    assert alone.choices[0].text == completion.choices[2].text


def test_a_stream_tells_the_same_text_as_a_whole_answer(client: openai.OpenAI):
    request: dict[str, Any] = {"model": BASE, "messages": CHAT, "n": 3, "seed": 5, "max_tokens": 24}
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    texts, ended, roles = ["", "", ""], {}, {}
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        if choice.delta.role:
            roles[choice.index] = choice.delta.role
        if choice.finish_reason:
            ended[choice.index] = (choice.finish_reason, (choice.model_extra or {})["seed"])
    assert texts == [choice.message.content for choice in whole.choices]
    assert roles == {0: "assistant", 1: "assistant", 2: "assistant"}
    expected = [choice.finish_reason for choice in whole.choices]
    assert ended == {index: (reason, 5 + index) for index, reason in enumerate(expected)}
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 10


def test_a_text_stream_tells_the_same_text_as_a_whole_answer(client: openai.OpenAI):
    request: dict[str, Any] = {"model": BASE, "prompt": "the sun", "seed": 5, "max_tokens": 24}
    whole = client.completions.create(**request)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**request, stream=True)]
    assert "".join(pieces) == whole.choices[0].text


def test_a_stream_ends_with_done_as_openai_ends_it(server: RunningServer):
    body = {"model": BASE, "messages": CHAT, "max_tokens": 3, "stream": True}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = response.read().decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])


def test_the_text_ends_before_a_stop_string(client: openai.OpenAI):
    free = client.completions.create(model=BASE, prompt="the sun", seed=2, max_tokens=40).choices[0].text
    stop = free[5:8]
    for stop_parameter in (stop, ["never written by chance", stop]):
        completion = client.completions.create(
            model=BASE, prompt="the sun", seed=2, max_tokens=40, stop=stop_parameter
        )
        assert completion.choices[0].text == free[: free.index(stop)]
        assert completion.choices[0].finish_reason == "stop"
    assert (
        client.completions.create(model=BASE, prompt="the sun", seed=2, max_tokens=3).choices[0].finish_reason
        == "length"
    )


def test_top_k_one_is_greedy(client: openai.OpenAI):
    greedy = client.chat.completions.create(model=BASE, messages=CHAT, temperature=0, max_tokens=12)
    top_one = client.chat.completions.create(
        model=BASE, messages=CHAT, max_tokens=12, extra_body={"top_k": 1}
    )
    nearly = client.chat.completions.create(model=BASE, messages=CHAT, max_tokens=12, top_p=1e-6)
    assert top_one.choices[0].message.content == greedy.choices[0].message.content
    assert nearly.choices[0].message.content == greedy.choices[0].message.content


def test_log_probabilities_of_a_chat_are_the_models_own(client: openai.OpenAI, oracle: tuple[Any, Any]):
    model, tokenizer = oracle
    completion = client.chat.completions.create(
        model=BASE, messages=CHAT, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    assert completion.choices[0].logprobs is not None
    content = completion.choices[0].logprobs.content or []
    prompt = rendered(tokenizer)
    row = model.generate(prompt, do_sample=False, max_new_tokens=6)
    with torch.inference_mode():
        log_probs = torch.log_softmax(model(row).logits[0, prompt.shape[1] - 1 : -1], -1)
    for token, expected in zip(content, log_probs, strict=False):
        best = expected.topk(3).values.tolist()
        # The likeliest token was taken, though not by its own probability.
        assert token.logprob == pytest.approx(best[0], abs=1e-4)
        assert [other.logprob for other in token.top_logprobs] == pytest.approx(best, abs=1e-4)
        assert token.bytes is None or bytes(token.bytes).decode() == token.token
    assert len(content) >= 5


def test_log_probabilities_of_a_stream_are_those_of_the_whole_answer(client: openai.OpenAI):
    request: dict[str, Any] = {"model": BASE, "messages": CHAT, "seed": 5, "max_tokens": 12, "logprobs": True}
    whole = client.chat.completions.create(**request).choices[0].logprobs
    streamed = [
        token
        for chunk in client.chat.completions.create(**request, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert whole is not None
    assert [token.logprob for token in streamed] == [token.logprob for token in whole.content or []]


def test_log_probabilities_of_a_text_have_openais_older_shape(client: openai.OpenAI):
    completion = client.completions.create(model=BASE, prompt="the sun", seed=3, max_tokens=8, logprobs=2)
    log_probs = completion.choices[0].logprobs
    assert log_probs is not None
    assert log_probs.tokens
    assert log_probs.text_offset is not None
    assert log_probs.text_offset[0] == 0
    assert log_probs.token_logprobs is not None
    assert all(value is not None and value < 0 for value in log_probs.token_logprobs)
    assert log_probs.top_logprobs is not None
    assert all(1 <= len(best) <= 2 for best in log_probs.top_logprobs)


def test_content_given_in_parts_is_put_together(client: openai.OpenAI):
    parts: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "it?"}]}
    ]
    whole: list[Any] = [{"role": "user", "content": "What is it?"}]
    first, second = (
        client.chat.completions.create(model=BASE, messages=messages, seed=1, max_tokens=8)
        for messages in (parts, whole)
    )
    assert first.choices[0].message.content == second.choices[0].message.content


def test_the_defaults_of_openai_spelled_out_are_taken(client: openai.OpenAI):
    completion = client.chat.completions.create(
        model=BASE,
        messages=CHAT,
        max_completion_tokens=4,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        user="somebody",
        response_format={"type": "text"},
        stop=None,
    )
    assert completion.choices[0].message.content is not None
