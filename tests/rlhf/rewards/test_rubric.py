"""A rubric as a reward: weighted scores of a served model, and what is left unscored."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from training.contract import ContractError, Message, RewardPart
from training.rlhf.rewards.combination import Combination, Part
from training.rlhf.rewards.from_settings import JUDGE_KEY_VARIABLE, JUDGE_URL_VARIABLE, build_rewards
from training.rlhf.rewards.judge import RubricReward

PROMPT = (Message(role="user", content="Name a fruit."),)
RUBRIC = {
    "name": "Fruit",
    "version": 3,
    "criteria": [
        {"key": "true", "name": "True", "text": "Is it a fruit?", "scale": "thumbs", "weight": 3},
        {"key": "long", "name": "Long", "scale": "five", "weight": 1},
    ],
}


def answering(reply: Callable[[str, int], str], requests: list[dict[str, Any]]) -> httpx.MockTransport:
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
        transport=answering(reply, requests),
        pause=0.0,
        **options,
    )


def test_a_completion_gets_the_weighted_mean_of_its_scores_between_zero_and_one():
    requests: list[dict[str, Any]] = []
    with reward(scored, requests, workers=1) as scores:
        results = scores([PROMPT] * 3, ["apple", "fig", "brick"], [None] * 3)
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
        results = scores([PROMPT] * 3, ["apple", "fig", "brick"], [None] * 3)
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
        both = Combination([Part(name="rubric", reward=scores), Part(name="one", reward=_ones)])
        combined = both.combine([PROMPT], ["apple"], [None])
    assert not combined.parts["rubric"][0].scored
    assert combined.totals[0].value == 1.0
    assert both.unscored["rubric"] == 1


def _ones(prompts: Any, completions: Any, references: Any) -> Any:
    from training.rlhf.rewards.protocol import Score

    return [Score(1.0) for _ in completions]


def test_braces_and_fields_inside_a_completion_are_only_text():
    requests: list[dict[str, Any]] = []
    with reward(scored, requests, workers=1) as scores:
        assert scores([PROMPT], ["{rubric} {form}"], [None])[0].value == 1.0
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
