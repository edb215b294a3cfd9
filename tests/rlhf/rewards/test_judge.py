"""Rewards by a language model that judges: pairwise preferences and rubrics."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from training.contract import ContractError
from training.contract.methods.policy import RewardPart
from training.contract.snapshot import Message
from training.judging import read_choice
from training.rlhf.rewards.combination import (
    JUDGE_KEY_VARIABLE,
    JUDGE_URL_VARIABLE,
    Combination,
    WeightedReward,
    build_rewards,
)
from training.rlhf.rewards.judge import JudgeReward, RubricReward

# ── A judge behind an OpenAI-compatible server: both orders, contradictions, silence and nonsense ──

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


def judge(transport: httpx.BaseTransport, **options) -> JudgeReward:
    return JudgeReward(
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
    assert read_choice(text) == verdict


def test_an_instruction_that_leaves_an_answer_out_is_refused():
    with pytest.raises(ValueError, match="lacks second in braces"):
        JudgeReward(url="http://judge.example", model="wise", instruction="{conversation} {first}")


# ── A rubric as a reward: weighted scores of a served model, and what is left unscored ──

RUBRIC_PROMPT = (Message(role="user", content="Name a fruit."),)
RUBRIC = {
    "name": "Fruit",
    "version": 3,
    "criteria": [
        {"key": "true", "name": "True", "text": "Is it a fruit?", "scale": "thumbs", "weight": 3},
        {"key": "long", "name": "Long", "scale": "five", "weight": 1},
    ],
}


def answering_rubric(reply: Callable[[str, int], str], requests: list[dict[str, Any]]) -> httpx.MockTransport:
    """A server that says what `reply` makes of the answer and of the number of turns so far."""

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        requests.append({"key": request.headers.get("Authorization"), **body})
        text = body["messages"][0]["content"]
        answer = text.split("[Answer A]\n")[1].split("\n\n[Criteria]")[0]
        content = reply(answer, len(body["messages"]))
        return httpx.Response(200, json={"choices": [{"message": {"content": content}}]})

    return httpx.MockTransport(handle)


def scored(answer: str, turns: int) -> str:
    return f"A1: {'yes' if answer != 'brick' else 'no'} | So.\nA2: {min(len(answer), 5)} | So."


def reward(reply: Callable[[str, int], str], requests: list[dict[str, Any]], **options: Any) -> RubricReward:
    return RubricReward(
        url="http://judge.example",
        model="wise",
        rubric=RUBRIC,
        key="sesame",
        transport=answering_rubric(reply, requests),
        pause=0.0,
        **options,
    )


def test_a_completion_gets_the_weighted_mean_of_its_scores_between_zero_and_one():
    requests: list[dict[str, Any]] = []
    with reward(scored, requests, workers=1) as scores:
        results = scores([RUBRIC_PROMPT] * 3, ["apple", "fig", "brick"], [None] * 3)
    # (3 · 1 + 1 · 1) / 4; (3 · 1 + 1 · ½) / 4; (3 · 0 + 1 · 1) / 4
    assert [score.value for score in results] == [1.0, 0.875, 0.25]
    [first, *_] = requests
    assert (first["model"], first["key"], first["temperature"]) == ("wise", "Bearer sesame", 0)
    text = first["messages"][0]["content"]
    assert "user: Name a fruit." in text
    assert "1. True (yes or no)\nIs it a fruit?\n\n2. Long (1 to 5, 5 is best)" in text


def test_an_unreadable_reply_is_asked_for_again_and_then_leaves_the_completion_unscored():
    requests: list[dict[str, Any]] = []

    def reply(answer: str, turns: int) -> str:
        if answer == "apple":
            return scored(answer, turns) if turns > 1 else "Good."
        return "A1: yes | So." if answer == "fig" else "Scores: none"

    with reward(reply, requests, workers=1) as scores:
        results = scores([RUBRIC_PROMPT] * 3, ["apple", "fig", "brick"], [None] * 3)
    assert results[0].value == 1.0
    assert [(score.scored, score.reason) for score in results[1:]] == [
        (False, "The score A2 is missing."),
        (False, "the judge could not judge the answer"),
    ]
    assert "The score A1 is missing." in requests[1]["messages"][-1]["content"]


def test_a_server_that_fails_leaves_the_completion_out_of_the_sum_instead_of_calling_it_zero():
    def down(request: httpx.Request) -> httpx.Response:
        return httpx.Response(500)

    judge = RubricReward(
        url="http://judge.example",
        model="wise",
        rubric=RUBRIC,
        attempts=2,
        pause=0.0,
        transport=httpx.MockTransport(down),
    )
    with judge as scores:
        both = Combination(
            [WeightedReward(name="rubric", reward=scores), WeightedReward(name="one", reward=_ones)]
        )
        combined = both.combine([RUBRIC_PROMPT], ["apple"], [None])
    assert not combined.parts["rubric"][0].scored
    assert combined.totals[0].value == 1.0
    assert both.unscored["rubric"] == 1


def _ones(prompts: Any, completions: Any, references: Any) -> Any:
    from training.rlhf.rewards.protocol import Score

    return [Score(1.0) for _ in completions]


def test_braces_and_fields_inside_a_completion_are_only_text():
    requests: list[dict[str, Any]] = []
    with reward(scored, requests, workers=1) as scores:
        assert scores([RUBRIC_PROMPT], ["{rubric} {form}"], [None])[0].value == 1.0
    assert "[Answer A]\n{rubric} {form}\n" in requests[0]["messages"][0]["content"]


def built(options: dict[str, Any], environment: dict[str, str], tmp_path: Any) -> Any:
    part = RewardPart(name="people", kind="rubric", options=options)
    return build_rewards([part], backbone=None, folder=tmp_path, environment=environment)


def test_settings_build_it_and_the_key_goes_to_the_server_of_the_environment_alone(tmp_path):
    environment = {JUDGE_URL_VARIABLE: "http://judge.example", JUDGE_KEY_VARIABLE: "sesame"}

    def key_of(options: dict[str, Any]) -> Any:
        combination = built({"model": "wise", "rubric": RUBRIC, **options}, environment, tmp_path)
        [part] = combination.parts
        assert part.reward.rubric.version == 3
        key = part.reward._server._client.headers.get("Authorization")
        combination.close()
        return key

    assert key_of({}) == "Bearer sesame"
    assert key_of({"url": "http://other.example"}) is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"model": "wise"}, "'rubric' is missing"),
        ({"model": "wise", "rubric": {"name": "R", "criteria": []}}, "criteria"),
        ({"model": "wise", "rubric": {**RUBRIC, "colour": "red"}}, "colour"),
        ({"model": "wise", "rubric": "Fruit"}, "rubric"),
        ({"model": "wise", "rubric": RUBRIC, "instruction": "{answer}"}, "lacks conversation, form, rubric"),
        ({"model": "wise", "rubric": RUBRIC, "key": "mine"}, "unknown option 'key'"),
        ({"model": "wise", "rubric": RUBRIC, "max_tokens": 0}, "max_tokens 0"),
    ],
)
def test_what_makes_no_rubric_is_refused_by_name(options: dict[str, Any], problem: str, tmp_path):
    with pytest.raises(ContractError, match=problem):
        built(options, {JUDGE_URL_VARIABLE: "http://judge.example"}, tmp_path)
