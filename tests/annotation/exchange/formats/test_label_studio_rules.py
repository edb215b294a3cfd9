"""The Label Studio export keeps the rules by which Label Studio 1.23 imports, and comes back as it went out.

The rules are those of `label_studio/tasks/serializers.py` and `tasks/validation.py` of release 1.23.2, where
this export was also imported by hand: `POST /api/projects/ID/import` took every row below.
"""

import json
from typing import Any

from annotation.choices import Verdict
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.formats.registry import READERS
from tests.annotation.exchange.formats.reading import ranks_of
from tests.annotation.exchange.formats.test_writers import mark, record, written

MEMBERS = {"admin@example.com": 1}
"""The people of a Label Studio that has just been installed."""


def completed_by_id(annotation: dict[str, Any]) -> int:
    """`BaseTaskSerializerBulk._insert_valid_completed_by`: who an annotation is taken for, or an error."""
    who = annotation.get("completed_by")
    if who is None:
        return 1
    if isinstance(who, dict):
        assert "email" in who, "It's expected to have 'email' field in 'completed_by' data in annotations"
        assert who["email"] in MEMBERS, "Unknown annotator's email"
        return MEMBERS[who["email"]]
    assert isinstance(who, int)
    assert who in MEMBERS.values()
    return who


def imported(task: dict[str, Any]) -> dict[str, Any]:
    """The task as Label Studio exports it again: ids are its own, `import_id` and `meta` are what came."""
    task = json.loads(json.dumps(task))
    assert isinstance(task["data"], dict)
    assert isinstance(task.get("meta", {}), dict)
    for annotation in task["annotations"]:
        annotation["completed_by"] = completed_by_id(annotation)
        assert isinstance(annotation["result"], list)
        ids = [region["id"] for region in annotation["result"]]
        assert len(set(ids)) == len(ids)
        annotation["import_id"], annotation["id"] = annotation["id"], 41
    return {**task, "id": 40}


def back(task: dict[str, Any]) -> ImportedItem:
    (item,) = READERS["label-studio"].read(imported(task))
    return item


def test_a_fresh_label_studio_takes_a_pair_and_gives_back_annotator_winner_and_spans():
    text = "🍵🍵 tea is hot 🍵."
    judgment_record = record(text, "other", ranks=(1, 2), spans=[mark("vague", 3, 6, text)], comment="Fine.")
    rows, _dropped = written("label-studio", judgment_record)
    (region,) = [entry for entry in rows[0]["annotations"][0]["result"] if entry["type"] == "labels"]
    assert region["value"]["text"] == "tea"
    item = back(rows[0])
    (judgment,) = item.judgments
    assert (judgment.annotator, judgment.verdict, ranks_of(judgment)) == ("ann", Verdict.RANKED, (1, 2))
    (span,) = judgment.spans
    assert (span.category, span.start, span.end) == ("vague", 3, 6)
    assert judgment.comment == "Fine."


def test_a_ranking_orders_the_items_of_a_list_and_keeps_its_tie():
    rows, _dropped = written("label-studio", record("a", "b", "c", ranks=(2, 1, 2)))
    data, (ranker,) = rows[0]["data"], rows[0]["annotations"][0]["result"]
    assert (ranker["type"], ranker["to_name"]) == ("ranker", "answers")
    # `Ranker` orders the ids of the `List`'s items.
    assert [answer["id"] for answer in data["answers"]] == ["answer_1", "answer_2", "answer_3"]
    # A bare list is imported, but shown by no page of 1.23; the name of the control is its only bucket.
    assert ranker["value"]["ranker"] == {"ranking": ["answer_2", "answer_1", "answer_3"]}
    item = back(rows[0])
    assert [completion.text for completion in item.completions] == ["a", "b", "c"]
    assert [completion.source for completion in item.completions] == ["m", "m", "m"]
    assert ranks_of(item.judgments[0]) == (2, 1, 2)


def test_a_verdict_without_a_winner_is_a_choice_about_the_prompt():
    rows, _dropped = written("label-studio", record("a", "b", ranks=(1, 1), verdict="both_bad"))
    (choice,) = rows[0]["annotations"][0]["result"]
    assert (choice["type"], choice["value"]) == ("choices", {"choices": ["both bad"]})
    assert back(rows[0]).judgments[0].verdict == Verdict.BOTH_BAD


def test_what_somebody_adds_in_label_studio_is_theirs_and_not_the_first_annotators():
    rows, _dropped = written("label-studio", record("a", "b", ranks=(1, 2)))
    task = imported(rows[0])
    task["annotations"].append({**task["annotations"][0], "id": 42, "import_id": None, "completed_by": 7})
    (item,) = READERS["label-studio"].read(task)
    assert [judgment.annotator for judgment in item.judgments] == ["ann", "7"]
