"""Rankings of the best alone in files: read as such, or refused with the reason."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from annotation.choices import NOT_ORDERED, Verdict
from annotation.exchange.formats.fields import FieldError
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedItem,
    ImportedJudgment,
    checked,
    ranks_by_place,
)
from annotation.exchange.formats.registry import READERS
from annotation.models import Judgment, Project
from tests.refusals import refused

TEXTS = {"answer_1": "one", "answer_2": "two", "answer_3": "three", "answer_4": "four"}


def item(ranks: Sequence[int], verdict: str = Verdict.RANKED) -> ImportedItem:
    return ImportedItem(
        messages=[{"role": "user", "content": "Tea?"}],
        completions=tuple(ImportedCompletion(text=str(number)) for number in range(len(ranks))),
        judgments=(ImportedJudgment(verdict=verdict, ranks=ranks_by_place(ranks)),),
    )


@pytest.mark.parametrize("ranks", [(1, 0, 0), (0, 2, 1, 0), (1, 1, 0, 0), (0, 1, 2)])
def test_three_or_more_may_be_ranked_in_part(ranks: tuple[int, ...]):
    assert NOT_ORDERED == 0
    checked(item(ranks))


@pytest.mark.parametrize(
    ("ranks", "verdict"),
    [((1, 0), "ranked"), ((0, 0, 0), "ranked"), ((1, 0, 0), "equal"), ((1, -1, 2), "ranked")],
)
def test_a_pair_nothing_and_a_verdict_without_a_winner_may_not(ranks: tuple[int, ...], verdict: str):
    with refused("ranks_expected", FieldError, field="ranks"):
        checked(item(ranks, verdict))


def label_studio(*results: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"question": "Tea?", **TEXTS}, "annotations": [{"id": 1, "result": list(results)}]}


def ranker(order: Any, **more: Any) -> dict[str, Any]:
    return {"from_name": "r", "to_name": "answers", "type": "ranker", "value": {"ranker": order}, **more}


def read(name: str, row: dict[str, Any]) -> ImportedJudgment:
    (read_item,) = READERS[name].read(row)
    return read_item.judgments[0]


def test_a_ranker_that_names_some_items_is_a_partial_ranking():
    judgment = read("label-studio", label_studio(ranker(["answer_3", "answer_1"])))
    assert (judgment.verdict, judgment.ranks) == (Verdict.RANKED, {"0": 2, "2": 1})
    in_a_bucket = label_studio(ranker({"ranking": ["answer_3"]}))
    assert read("label-studio", in_a_bucket).ranks == {"2": 1}
    with_ties = label_studio(ranker(["answer_3", "answer_1"], meta={"ranks": [1, None, 1, None]}))
    assert read("label-studio", with_ties).ranks == {"0": 1, "2": 1}


@pytest.mark.parametrize("order", [[], ["answer_9"], ["answer_1", "answer_1"]])
def test_a_ranker_that_names_nothing_or_others_is_refused(order: list[str]):
    with pytest.raises(FieldError):
        read("label-studio", label_studio(ranker(order)))


@pytest.mark.parametrize(
    "value", [["answer_3", "answer_1"], [{"value": "answer_3", "rank": 1}, {"value": "answer_1", "rank": 3}]]
)
def test_an_argilla_ranking_of_some_is_a_partial_ranking(value: list[Any]):
    row = {
        "fields": {"question": "Tea?", **TEXTS},
        "responses": {"order": [{"value": value, "status": "submitted", "user_id": "ann"}]},
    }
    judgment = read("argilla", row)
    assert (judgment.verdict, judgment.ranks) == (Verdict.RANKED, {"0": 2, "2": 1})


def line(ranks: dict[str, int], verdict: str = "ranked") -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": "Tea?"}],
        "completions": [{"id": pk, "text": f"text {pk}"} for pk in "abcd"],
        "verdict": verdict,
        "ranks": ranks,
        "annotator": "ann",
    }


@pytest.mark.django_db
def test_a_line_without_some_ranks_comes_in_as_a_partial_ranking(project: Project, tmp_path: Path):
    path = tmp_path / "lines.jsonl"
    # The second leaves out one alone, which is then simply the last; gaps close.
    lines = [line({"c": 1, "a": 5}), {**line({"c": 1, "a": 1, "b": 4}), "annotator": "bob"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))
    call_command("import_judgments", str(path), project=project.slug, format="jsonl")
    stored = [
        {row.completion.text[-1]: row.rank for row in judgment.ranks.all()}
        for judgment in Judgment.objects.order_by("pk")
    ]
    assert stored == [{"c": 1, "a": 2}, {"a": 1, "c": 1, "b": 2, "d": 3}]


@pytest.mark.django_db
@pytest.mark.parametrize("ranks", [{"a": 1, "b": 0}, {"a": 1, "b": -1}])
def test_a_rank_of_0_is_a_mistake_and_no_partial_ranking(
    project: Project, tmp_path: Path, ranks: dict[str, int]
):
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(line(ranks)) + "\n")
    with pytest.raises(CommandError, match="count from 1"):
        call_command("import_judgments", str(path), project=project.slug, format="jsonl")
    assert not Judgment.objects.exists()
