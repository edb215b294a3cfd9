"""One judgment for many comparisons: seen before it is stored, marked as given in bulk, undone for a day."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import AssignmentState, PayBasis, ReviewReason, Verdict
from annotation.errors import InvalidAnswer, NotAllowed
from annotation.models import (
    AnnotatorTally,
    Assignment,
    AuditEntry,
    BulkChange,
    Comparison,
    Judgment,
    Project,
    Review,
    User,
)
from annotation.record.judgment import AnswerPart, JudgmentRecord
from annotation.selectors.pay import pay_of
from annotation.services import bulk
from annotation.services.changes import undo_change
from annotation.services.judgments.submission import submit_judgment
from annotation.services.reviews import open_review
from tests import factories
from tests.annotation.questions.asking import ask
from tests.refusals import refused
from training.models import Snapshot

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
BOTH_BAD = JudgmentRecord(verdict="both_bad")


def skipped_by(effect: bulk.Effect) -> dict[str, int]:
    return {str(why): number for why, number in effect.skipped.items()}


def answer(project: Project, actor: User, chosen: list[Comparison], **more: Any) -> bulk.Effect:
    given = more.pop("answer", BOTH_BAD)
    return bulk.answer(project=project, actor=actor, chosen=[row.pk for row in chosen], answer=given, **more)


def test_one_judgment_is_stored_for_what_is_open_and_the_rest_is_named(
    project: Project, alice: User, carol: User
):
    pair, triple = factories.make_comparison(project), factories.make_comparison(project, ("a", "b", "c"))
    alone = factories.make_comparison(project, ("only",))
    gold = factories.make_gold_item(project)
    done = factories.make_comparison(project)
    factories.make_judgment(done, alice)
    leased = factories.make_comparison(project)
    factories.lease_to(leased, alice)
    mine = factories.make_comparison(project)
    Comparison.objects.filter(pk=mine.pk).update(overlap=2, open_slots=2)
    factories.make_judgment(mine, carol)
    reviewed = factories.make_comparison(project)
    open_review(comparison=reviewed, reason=ReviewReason.REQUESTED)
    reserved = factories.make_comparison(project)
    reserved.reserved_for.add(alice)
    Project.objects.filter(pk=project.pk).update(has_reservations=True)
    project.refresh_from_db()
    chosen = [pair, triple, alone, gold, done, leased, mine, reviewed, reserved]
    before = Judgment.objects.count()
    preview = answer(project, carol, chosen, dry_run=True)
    assert Judgment.objects.count() == before
    effect = answer(project, carol, chosen)
    assert effect == preview
    assert (effect.changed, effect.chosen) == (2, 9)
    assert skipped_by(effect) == {
        "gold, qualification or quarantined": 1,
        "closed": 1,
        "being labelled by somebody else": 1,
        "annotated by you": 1,
        "in review": 1,
        "reserved for others": 1,
        "A single response cannot be equal to another.": 1,
    }
    stored = Judgment.objects.filter(in_bulk=True).order_by("comparison")
    assert [row.comparison_id for row in stored] == [pair.pk, triple.pk]
    for row in stored:
        assert (row.annotator, row.verdict, row.active_seconds, row.guideline) == (
            carol,
            Verdict.BOTH_BAD,
            None,
            None,
        )
        assert set(row.ranks.values_list("rank", flat=True)) == {1}
    assert not Comparison.objects.filter(pk__in=[pair.pk, triple.pk], open_slots__gt=0).exists()
    entry = AuditEntry.objects.get(action="data.answer")
    assert entry.details == {"comparisons": 2, "answer": "both_bad"}
    # The same once more changes nothing.
    assert answer(project, carol, [pair, triple]).changed == 0


def test_what_the_manager_holds_is_answered(project: Project, carol: User):
    comparison = factories.make_comparison(project)
    held = factories.lease_to(comparison, carol)
    assert answer(project, carol, [comparison]).changed == 1
    held.refresh_from_db()
    assert held.state == AssignmentState.SUBMITTED


def test_a_refusal_that_fits_all_of_them_is_raised(project: Project, alice: User, carol: User):
    comparison = factories.make_comparison(project)
    ask(project, carol, "why", is_required=True)
    with refused("answer_missing", InvalidAnswer):
        answer(project, carol, [comparison])
    with refused("preference_missing", InvalidAnswer):
        answer(project, carol, [comparison], answer=JudgmentRecord(verdict="not_asked"))
    with refused("bulk_answer_names_winner", InvalidAnswer):
        answer(project, carol, [comparison], answer=JudgmentRecord(verdict="ranked"))
    with refused("manager_changes_data", NotAllowed):
        answer(project, alice, [comparison])
    answered = JudgmentRecord(verdict="equal", answers=(AnswerPart(question="why", value="warm"),))
    assert answer(project, carol, [comparison], answer=answered).changed == 1
    assert Judgment.objects.get().answers.get().value == "warm"


def test_no_more_than_somebody_may_submit_a_day(
    project: Project, carol: User, monkeypatch: pytest.MonkeyPatch
):
    rows = [factories.make_comparison(project) for _ in range(3)]
    Project.objects.filter(pk=project.pk).update(daily_limit=2)
    project.refresh_from_db()
    effect = answer(project, carol, rows)
    assert (effect.changed, skipped_by(effect)) == (2, {"beyond your limit of annotations": 1})
    monkeypatch.setattr(bulk, "MOST_ANSWERED", 2)
    with refused("too_many_selected_rows", most=2):
        answer(project, carol, rows)


def test_an_undo_takes_back_what_nobody_worked_on_since(project: Project, alice: User, carol: User):
    project.overlap = 2
    project.review_every = 1
    project.save()
    rows = [factories.make_comparison(project) for _ in range(4)]
    free, revised, in_snapshot, disputed = rows
    factories.make_judgment(disputed, alice)
    Review.objects.all().delete()
    before = list(Comparison.objects.order_by("pk").values_list("pk", "overlap", "open_slots", "agreement"))
    assert answer(project, carol, rows).changed == 4
    assert Comparison.objects.get(pk=disputed.pk).agreement == 0
    assert Review.objects.count() == 4
    tally = AnnotatorTally.objects.get(project=project, annotator=carol)
    assert (tally.submitted, tally.round_done) == (4, 4)
    held = Assignment.objects.get(comparison=revised, annotator=carol)
    submit_judgment(assignment=held, annotator=carol, answer=BOTH_BAD, idempotency_key=uuid.uuid4())
    assert not Judgment.objects.current().get(comparison=revised, annotator=carol).in_bulk
    snapshot = Snapshot.objects.create(project=project, digest="0" * 64, folder="s", rounds=[1], counts={})
    snapshot.judgments.set(Judgment.objects.filter(comparison=in_snapshot))
    change = BulkChange.objects.get()
    assert (change.action, change.value, change.changed) == ("answer", "both_bad", 4)
    assert undo_change(change=change, undone_by=carol) == 2
    left = Judgment.objects.filter(annotator=carol).values_list("comparison", flat=True).distinct()
    assert sorted(left) == [revised.pk, in_snapshot.pk]
    after = {
        row[0]: row for row in Comparison.objects.values_list("pk", "overlap", "open_slots", "agreement")
    }
    for row in before:
        if row[0] in (free.pk, disputed.pk):
            assert after[row[0]] == row
    assert not Review.objects.filter(comparison__in=[free, disputed]).exists()
    tally.refresh_from_db()
    assert (tally.submitted, tally.round_done) == (2, 2)
    # Open again, to the same person, too.
    assert answer(project, carol, [free]).changed == 1


def test_bulk_answers_are_told_from_single_ones(project: Project, carol: User, client_of: ClientOf):
    single, first, second = (factories.make_comparison(project) for _ in range(3))
    factories.make_judgment(single, carol, active_seconds=30)
    answer(project, carol, [first, second])
    browser = client_of(carol)
    listed = browser.get("/api/v1/projects/tea/judgments/").json()["results"]
    assert {row["comparison"]: row["in_bulk"] for row in listed} == {
        single.pk: False,
        first.pk: True,
        second.pk: True,
    }
    table = browser.get(reverse("data-annotations", args=["tea"]), {"kind": "bulk"})
    assert table.context["view"].count == 2
    figures = browser.get("/api/v1/projects/tea/statistics/").json()["people"]
    assert [(row["judgments"], row["in_bulk"], row["median_seconds"]) for row in figures] == [(3, 2, 30)]
    today = timezone.localdate()
    pay = pay_of(project, since=today, until=today, basis=PayBasis.ITEM)
    assert sum(row.annotations for row in pay) == 1
    lines: Any = browser.get("/api/v1/projects/tea/exports/jsonl/")
    rows = [json.loads(line) for line in b"".join(lines.streaming_content).splitlines()]
    assert sorted(row.get("in_bulk", False) for row in rows) == [False, True, True]


def test_a_page_asks_shows_the_effect_and_stores(project: Project, carol: User, client_of: ClientOf):
    ask(project, carol, "why", is_required=True)
    pair, alone = factories.make_comparison(project), factories.make_comparison(project, ("only",))
    browser, address = client_of(carol), reverse("data-act", args=["tea", "comparisons"])
    form = browser.post(address, {"action": "answer", "chosen": [pair.pk, alone.pk], "query": "round=1"})
    assert form.context["number"] == 2
    sent = {"action": "answer", "answered": "1", "chosen": form.context["chosen"], "query": "round=1"}
    back = browser.post(address, {**sent, "chosen": [pair.pk], "preference": "both_bad"})
    # A required question without an answer: the form again, with what was chosen.
    assert back.context["preference"] == "both_bad"
    filled = {**sent, "preference": "both_bad", "question.why.1": "warm"}
    preview = browser.post(address, filled)
    assert preview.context["effect"].changed == 1
    assert preview.context["given"] == [("Preference", "both bad"), ("Why?", "warm")]
    assert not Judgment.objects.exists()
    assert preview.context["sent"] == {
        "answered": ["1"],
        "preference": ["both_bad"],
        "question.why.1": ["warm"],
    }
    done = browser.post(address, {**filled, "confirmed": "yes"}, follow=True)
    assert done.redirect_chain[0][0].endswith("/data/comparisons/?round=1")
    stored = Judgment.objects.get()
    assert (stored.comparison, stored.in_bulk, stored.answers.get().value) == (pair, True, "warm")
    browser.post(reverse("change-undo", args=["tea", BulkChange.objects.get().pk]))
    assert not Judgment.objects.exists()


def test_the_api_previews_answers_and_undoes(project: Project, carol: User, client_of: ClientOf):
    ask(project, carol, "why")
    comparison = factories.make_comparison(project)
    browser, address = client_of(carol), "/api/v1/projects/tea/comparisons/answer/"
    body = {
        "comparisons": [comparison.pk],
        "verdict": "cannot_judge",
        "answers": [{"question": "why", "value": "warm"}],
    }
    expected = {"action": "answer", "changed": 1, "skipped": {}, "lost": {}}
    preview = browser.post(address, {**body, "dry_run": True}, content_type="application/json")
    assert (preview.json(), Judgment.objects.count()) == (expected, 0)
    assert browser.post(address, body, content_type="application/json").json() == expected
    assert Judgment.objects.get().verdict == Verdict.CANNOT_JUDGE
    change = browser.get("/api/v1/projects/tea/changes/").json()["results"][0]
    undone = browser.post(f"/api/v1/projects/tea/changes/{change['id']}/undo/")
    assert (undone.json(), Judgment.objects.count()) == ({"restored": 1}, 0)
    wrong = {**body, "answers": [{"question": "mood", "value": "warm"}]}
    answer = browser.post(address, wrong, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_question")
