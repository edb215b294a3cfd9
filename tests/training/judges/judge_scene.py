"""A judge of a project, a server that answers as it, and comparisons to judge."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from annotation.models import Comparison, Project
from tests import factories
from training.engine import Engine
from training.models import Judge
from training.services import judges

Says = Callable[[list[str], dict[str, Any]], str]


class FakeJudge:
    """A server that answers as `says` does, which gets the answers in the order of the question."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.says: Says = longest
        self.trouble: Callable[[], httpx.Response | None] = lambda: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        if (trouble := self.trouble()) is not None:
            return trouble
        text = body["messages"][0]["content"]
        answers = re.findall(r"<answer \w>\n(.*?)\n</answer", text, re.S)
        choice = {"index": 0, "message": {"content": self.says(answers, body)}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})


def ranking(order: list[int]) -> str:
    """A reply that puts the answers in these places in this order."""
    return "It says more.\nRanking: " + " > ".join("ABCDEFGHI"[place] for place in order)


def longest(answers: list[str], body: dict[str, Any]) -> str:
    """The longest answer first."""
    return ranking(sorted(range(len(answers)), key=lambda place: -len(answers[place])))


def first_shown(answers: list[str], body: dict[str, Any]) -> str:
    """As they are shown: it leans to the first place."""
    return ranking(list(range(len(answers))))


def prompt(project: Project, text: str) -> Any:
    """A prompt of the train split."""
    return factories.make_prompt(project, text, split="train")


def install(monkeypatch: pytest.MonkeyPatch) -> FakeJudge:
    """A judge's server for the code under test."""
    fake_judge = FakeJudge()
    monkeypatch.setattr(judges, "engine_for", lambda _: Engine(transport=httpx.MockTransport(fake_judge)))
    return fake_judge


def make_pairs(project: Project, count: int = 2) -> list[Comparison]:
    """Pairs of the newest round, each of a short and a longer answer, after one of an earlier round."""
    factories.make_comparison(project, ["old", "older"], prompt=prompt(project, "Old?"))
    return [
        factories.make_comparison(
            project, [f"short {n}", f"a longer one {n}"], prompt=prompt(project, f"{n}?"), round_number=2
        )
        for n in range(count)
    ]


def work(judge: Judge) -> Judge:
    """Have a worker judge what is left."""
    judges.judge_comparisons(judge.pk)
    judge.refresh_from_db()
    return judge
