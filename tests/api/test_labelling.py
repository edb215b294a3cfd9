"""Labelling by a program: work, drafts, judgments with all their parts, skips, reports, leases."""

import hashlib
import uuid
from typing import Any

import pytest

from annotation.choices import AssignmentState
from annotation.models import Assignment, Draft, ItemFlag, Judgment, Project, User
from tests import factories
from tests.api.scene import Asker

ADDRESS = "/projects/tea/assignments"


def key() -> dict[str, str]:
    """A key of its own for each judgment."""
    return {"Idempotency-Key": str(uuid.uuid4())}


@pytest.fixture
def shown(project: Project, as_alice: Asker) -> dict[str, Any]:
    """The assignment that Alice's program was given."""
    factories.make_comparison(project, texts=["Two minutes 🍵.", "Ten hours."])
    assignment: dict[str, Any] = as_alice.post(f"{ADDRESS}/next/").json()["assignment"]
    return assignment


def ranked(shown: dict[str, Any], *ranks: int, **more: Any) -> dict[str, Any]:
    """A ranking in the order shown."""
    names = [answer["answer"] for answer in shown["answers"]]
    return {"verdict": "ranked", "ranks": dict(zip(names, ranks, strict=True)), **more}


def test_a_judgment_is_stored_by_completion_whatever_the_order_shown(
    shown: dict[str, Any], as_alice: Asker, alice: User
):
    response = as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", ranked(shown, 2, 1, strength=3), **key())
    assert response.status_code == 201
    judgment = Judgment.objects.get()
    order = Assignment.objects.get().display_order
    assert {row.completion_id: row.rank for row in judgment.ranks.all()} == {order[0]: 2, order[1]: 1}
    assert (judgment.annotator, judgment.strength) == (alice, 3)
    answer = response.json()["judgment"]
    assert answer["ranks"] == ranked(shown, 2, 1)["ranks"]
    # Its annotator learns neither the comparison's number nor those of the completions.
    assert answer["comparison"] is None


def test_every_part_of_a_judgment_comes_back_as_it_was_sent(
    shown: dict[str, Any], as_alice: Asker, project: Project
):
    project.ask_correction = project.ask_critique = project.ask_demonstration = True
    project.save()
    first = shown["answers"][0]
    text = first["text"]
    mark = {
        "answer": first["answer"],
        "category": "untruthful",
        "start": 0,
        "end": 3,
        "quote": text[:3],
        "text_hash": hashlib.sha256(text.encode()).hexdigest(),
        "severity": None,
        "note": "no",
        "relations": [],
    }
    gap = {
        "answer": first["answer"],
        "category": "missing",
        "text": "why",
        "insert_at": None,
        "evidence": [],
    }
    edit = {
        "start": 0,
        "end": len(text),
        "quote": text,
        "replacement": "Three minutes.",
        "continuation": None,
        "span": None,
    }
    parts = {
        "strength": 2,
        "comment": "So.",
        "span_flags": [mark],
        "missing_info": [gap],
        "corrections": [{"answer": first["answer"], "text": "Three minutes.", "edits": [edit]}],
        "critiques": [{"answer": first["answer"], "text": "Short."}],
        "demonstration": "Two to three minutes.",
        "active_seconds": 12,
    }
    body = ranked(shown, 1, 2, **parts)
    judgment = as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", body, **key()).json()["judgment"]
    assert {name: judgment[name] for name in body} == body
    read = as_alice.get(f"{ADDRESS}/{shown['id']}/").json()
    assert read["judgment"] == judgment
    assert read["state"] == AssignmentState.SUBMITTED


def test_a_judgment_sent_twice_is_one_and_another_supersedes_it(shown: dict[str, Any], as_alice: Asker):
    address, headers = f"{ADDRESS}/{shown['id']}/judgment/", key()
    body = ranked(shown, 1, 2, strength=1)
    first, second = as_alice.post(address, body, **headers), as_alice.post(address, body, **headers)
    assert first.json() == second.json()
    assert Judgment.objects.count() == 1
    changed = as_alice.post(address, ranked(shown, 2, 1, strength=1), **key())
    assert changed.status_code == 201
    stale = ranked(shown, 1, 2, strength=1, stands_on=first.json()["judgment"]["id"])
    assert as_alice.post(address, stale, **key()).status_code == 409
    assert Judgment.objects.filter(superseded_by__isnull=True).get().pk == changed.json()["judgment"]["id"]


@pytest.mark.parametrize("sent", [{}, {"Idempotency-Key": "not a uuid"}])
def test_a_judgment_needs_a_key(shown: dict[str, Any], as_alice: Asker, sent: dict[str, str]):
    refused = as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", ranked(shown, 1, 2, strength=1), **sent)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert not Judgment.objects.exists()


@pytest.mark.parametrize(
    ("change", "status", "field"),
    [
        ({"ranks": {"nobody": 1}}, 422, "ranks"),
        ({"strength": 9}, 422, "strength"),
        ({"verdict": "best"}, 422, "verdict"),
        ({"guideline": 99}, 422, "guideline"),
        ({"ratings": [{"answer": "nobody", "criterion": "x", "value": 1}]}, 422, "ratings.0.answer"),
        ({"comment": "a\u0000b"}, 422, "comment"),
    ],
)
def test_what_is_wrong_with_a_judgment_is_named(
    shown: dict[str, Any], as_alice: Asker, change: dict[str, Any], status: int, field: str
):
    body = {**ranked(shown, 1, 2, strength=1), **change}
    refused = as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", body, **key())
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (status, field)
    assert not Judgment.objects.exists()


def test_a_mark_on_another_text_is_a_conflict(shown: dict[str, Any], as_alice: Asker):
    first = shown["answers"][0]
    mark = {
        "answer": first["answer"],
        "category": "untruthful",
        "start": 0,
        "end": 3,
        "quote": first["text"][:3],
        "text_hash": "0" * 64,
    }
    body = ranked(shown, 1, 2, strength=1, span_flags=[mark])
    assert as_alice.post(f"{ADDRESS}/{shown['id']}/judgment/", body, **key()).status_code == 409


def test_a_draft_follows_the_one_before_it(shown: dict[str, Any], as_alice: Asker):
    address = f"{ADDRESS}/{shown['id']}/draft/"
    page = str(uuid.uuid4())

    def save(version: int, text: str, by: str = page) -> int:
        body = {"fields_saved": {"comment": [text]}, "base_version": version, "saved_from": by}
        return int(as_alice("PUT", address, body).status_code)

    assert [save(0, "a"), save(1, "b"), save(1, "b")] == [200, 200, 200]
    assert save(1, "c", str(uuid.uuid4())) == 409
    assert Draft.objects.get().fields == {"comment": ["b"]}
    assert as_alice.get(f"{ADDRESS}/{shown['id']}/").json()["draft"]["version"] == 2


def test_what_is_skipped_or_given_back_goes_to_others(shown: dict[str, Any], as_alice: Asker, bob: User):
    skipped = as_alice.post(f"{ADDRESS}/{shown['id']}/skip/", {"reason": "Too hard", "details": "for me"})
    assert skipped.status_code == 204
    assert Assignment.objects.get().reason == "Too hard: for me"
    nothing = as_alice.post(f"{ADDRESS}/next/").json()
    assert (nothing["assignment"], nothing["why_nothing"]) == (None, "nothing_left")
    as_bob = Asker(bob)
    theirs = as_bob.post(f"{ADDRESS}/next/").json()["assignment"]
    assert as_bob.post(f"{ADDRESS}/{theirs['id']}/release/").status_code == 204
    assert as_bob.post(f"{ADDRESS}/next/").json()["assignment"]["id"] != theirs["id"]


def test_a_report_leaves_the_comparison_in_hand(shown: dict[str, Any], as_alice: Asker):
    address = f"{ADDRESS}/{shown['id']}/"
    for _time in range(2):
        assert as_alice.post(f"{address}flag/", {"reason": "Personal data"}).status_code == 204
    assert ItemFlag.objects.count() == 1
    assert as_alice.get(address).json()["state"] == AssignmentState.LEASED
    assert as_alice.post(f"{address}renew/").status_code == 204


def test_asking_for_work_again_gives_what_one_holds(shown: dict[str, Any], as_alice: Asker):
    again = as_alice.post(f"{ADDRESS}/next/", **key()).json()["assignment"]
    assert again["id"] == shown["id"]
    held = as_alice.get(f"{ADDRESS}/?state=leased").json()["results"]
    assert [assignment["id"] for assignment in held] == [shown["id"]]


def test_feedback_on_a_known_item_comes_after_the_answer_and_only_where_it_is_given(
    project: Project, as_alice: Asker
):
    project.gold_share, project.gold_feedback = 1.0, True
    project.save()
    factories.make_gold_item(project, texts=["right", "wrong"])
    factories.make_comparison(project)
    shown = as_alice.post(f"{ADDRESS}/next/").json()["assignment"]
    ranks = [1 if answer["text"] == "right" else 2 for answer in shown["answers"]]
    result = as_alice.post(
        f"{ADDRESS}/{shown['id']}/judgment/", ranked(shown, *ranks, strength=1), **key()
    ).json()
    assert result["feedback"]["right"] is True
    assert result["feedback"]["explanation"] == "Two minutes are enough."
