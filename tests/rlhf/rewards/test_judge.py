"""A judge behind an OpenAI-compatible server: both orders, contradictions, silence and nonsense."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from training.contract import Message
from training.rlhf.rewards.judge import Judge, verdict_of

PROMPT = (
    Message(role="user", content="How are you?"),
    Message(role="assistant", content="Well."),
    Message(role="user", content="Name a fruit."),
)


def answering(
    verdict: Callable[[str, str], str], requests: list[dict[str, Any]] | None = None
) -> httpx.MockTransport:
    """A server whose judge says what `verdict` makes of the two answers."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        if requests is not None:
            requests.append({"path": request.url.path, "key": request.headers.get("Authorization"), **body})
        text = body["messages"][0]["content"]
        match = re.search(r"\[Answer A\]\n(.*)\n\n\[Answer B\]\n(.*)\n\nGive your reasons", text, re.S)
        answer = f"Some reasons.\n{verdict(match[1], match[2])}"
        return httpx.Response(200, json={"choices": [{"message": {"content": answer}}]})

    return httpx.MockTransport(handle)


def longer(first: str, second: str) -> str:
    return "TIE" if len(first) == len(second) else "A" if len(first) > len(second) else "B"


def judge(transport: httpx.BaseTransport, **options) -> Judge:
    return Judge(
        url="http://judge.example", model="wise", key="sesame", transport=transport, pause=0.0, **options
    )


def test_a_better_answer_wins_in_both_orders_and_an_equal_one_ties():
    with judge(answering(longer)) as reward:
        scores = reward([PROMPT] * 3, ["pineapple", "fig", "apple"], ["grape"] * 3)
    assert [score.value for score in scores] == [1, 0, 0.5]


def test_the_judge_is_asked_with_the_whole_conversation_in_both_orders():
    requests: list[dict[str, Any]] = []
    with judge(answering(longer, requests), workers=1) as reward:
        reward([PROMPT], ["pineapple"], ["fig"])
    assert len(requests) == 2
    texts = [body["messages"][0]["content"] for body in requests]
    assert all("user: How are you?\n\nassistant: Well.\n\nuser: Name a fruit." in text for text in texts)
    assert "[Answer A]\npineapple\n\n[Answer B]\nfig\n" in texts[0]
    assert "[Answer A]\nfig\n\n[Answer B]\npineapple\n" in texts[1]
    assert [(body["path"], body["key"], body["model"], body["temperature"]) for body in requests] == [
        ("/v1/chat/completions", "Bearer sesame", "wise", 0)
    ] * 2


def test_a_judge_that_always_prefers_the_first_decides_nothing_and_shows():
    with judge(answering(lambda first, second: "A")) as reward:
        scores = reward([PROMPT] * 2, ["apple", "fig"], ["grape"] * 2)
    assert [score.value for score in scores] == [0.5, 0.5]
    assert reward.verdicts == {"A": 4}


def test_a_win_in_one_order_and_a_tie_in_the_other_is_three_quarters():
    def verdict(first: str, second: str) -> str:
        return "A" if first == "apple" else "TIE"

    with judge(answering(verdict)) as reward:
        assert reward([PROMPT], ["apple"], ["grape"])[0].value == 0.75


def test_in_a_group_each_completion_meets_every_other_of_its_prompt():
    other = (Message(role="user", content="Another prompt"),)
    with judge(answering(longer), against="group") as reward:
        scores = reward(
            [PROMPT, other, PROMPT, PROMPT, other, PROMPT], ["aaa", "x", "a", "aa", "xx", "aa"], [None] * 6
        )
    # aaa wins 3 of 3; a loses all; each aa wins one, loses one, ties one. Of the other prompt xx wins.
    assert [score.value for score in scores] == [1, 0, 0, 0.5, 1, 0.5]


def test_a_completion_without_anything_to_compare_with_cannot_be_scored():
    with judge(answering(longer), against="group") as reward:
        assert not reward([PROMPT], ["alone"], [None])[0].scored
    with judge(answering(longer)) as reward:
        assert not reward([PROMPT], ["alone"], [None])[0].scored


def test_an_answer_with_braces_or_a_field_in_it_is_only_text():
    requests: list[dict[str, Any]] = []
    with judge(answering(longer, requests), workers=1) as reward:
        reward([PROMPT], ["{second} {} {0}"], ["{conversation}"])
    assert (
        "[Answer A]\n{second} {} {0}\n\n[Answer B]\n{conversation}\n" in requests[0]["messages"][0]["content"]
    )


def test_a_judge_without_a_verdict_leaves_its_pair_out():
    def verdict(first: str, second: str) -> str:
        return "I cannot decide." if "odd" in (first, second) else longer(first, second)

    with judge(answering(verdict), against="group") as reward:
        scores = reward([PROMPT] * 3, ["long", "odd", "a"], [None] * 3)
    assert [score.value if score.scored else None for score in scores] == [1, None, 0]
    assert scores[1].reason == "the judge gave no verdict"
    assert reward.verdicts["none"] == 2


@pytest.mark.parametrize("failure", [503, 429, httpx.ReadTimeout("slow"), httpx.ConnectError("away")])
def test_a_busy_server_is_asked_again(failure):
    calls = 0
    willing = answering(longer)

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls % 3:
            if isinstance(failure, Exception):
                raise failure
            return httpx.Response(failure)
        return willing.handle_request(request)

    with judge(httpx.MockTransport(handle), workers=1) as reward:
        assert reward([PROMPT], ["pineapple"], ["fig"])[0].value == 1
    assert calls == 6


def test_a_server_that_stays_away_leaves_the_sample_unscored():
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("away")

    with judge(httpx.MockTransport(away), attempts=2) as reward:
        score = reward([PROMPT], ["a"], ["b"])[0]
    assert not score.scored
    assert score.reason == "the judge at http://judge.example does not answer (ConnectError)"


def test_a_refusal_is_not_asked_again():
    calls = 0

    def refuse(request: httpx.Request) -> httpx.Response:
        nonlocal calls
        calls += 1
        return httpx.Response(401)

    with judge(httpx.MockTransport(refuse)) as reward:
        assert reward([PROMPT], ["a"], ["b"])[0].reason == "the judge answered with status 401"
    assert calls == 1


@pytest.mark.parametrize("body", ["no json", "[]", '{"choices": []}', '{"choices": [{}]}'])
def test_an_answer_of_another_kind_is_said_to_be_one(body):
    with judge(httpx.MockTransport(lambda request: httpx.Response(200, text=body))) as reward:
        assert "not that of an OpenAI-compatible server" in reward([PROMPT], ["a"], ["b"])[0].reason


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("A", "A"),
        ("reasons\n\n**B**\n", "B"),
        ("tie.", "TIE"),
        ("[[A]]", "A"),
        ("A\nB is worse", None),
        ("Answer A", None),
        ("AB", None),
        ("", None),
    ],
)
def test_the_verdict_is_the_last_line(text, verdict):
    assert verdict_of(text) == verdict


def test_an_instruction_that_leaves_an_answer_out_is_refused():
    with pytest.raises(ValueError, match="lacks second in braces"):
        Judge(url="http://judge.example", model="wise", instruction="{conversation} {first}")
