"""Drafts: what one entered is kept, and no page overwrites another by chance."""

import json
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState
from annotation.errors import AnsweredElsewhere, InvalidAnswer, LeaseLost, NotAllowed
from annotation.models import Assignment, Comparison, Draft, Judgment, Project, User
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.leases import skip_assignment
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.drafts import MOST_IN_A_DRAFT, DraftConflict, save_draft
from tests import factories
from tests.annotation.judgments.answers import prefer_first, submit
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ONE_PAGE = uuid.UUID(int=1)
OTHER_PAGE = uuid.UUID(int=2)


def save(assignment: Assignment, comment: str, base: int, page: uuid.UUID = ONE_PAGE, **more: Any) -> Draft:
    return save_draft(
        assignment=assignment,
        annotator=more.pop("annotator", assignment.annotator),
        fields={"comment": [comment]},
        base_version=base,
        saved_from=page,
        **more,
    )


def stored(assignment: Assignment) -> tuple[int, str]:
    draft = Draft.objects.get(assignment=assignment)
    return draft.version, draft.fields["comment"][0]


def test_each_save_is_the_next_version(assignment: Assignment):
    assert save(assignment, "a", 0).version == 1
    assert save(assignment, "ab", 1).version == 2
    assert stored(assignment) == (2, "ab")


@pytest.mark.parametrize("base", [0, 1, 3])
def test_a_save_on_another_version_than_the_stored_is_refused_with_what_is_stored(
    assignment: Assignment, base: int
):
    save(assignment, "a", 0)
    save(assignment, "ab", 1)
    with refused("draft_conflict", DraftConflict) as refusal:
        save(assignment, "mine", base, OTHER_PAGE)
    assert refusal.value.stored is not None
    assert (refusal.value.stored.version, refusal.value.stored.fields) == (2, {"comment": ["ab"]})
    assert stored(assignment) == (2, "ab")


def test_the_same_save_sent_twice_is_one_save(assignment: Assignment):
    save(assignment, "a", 0)
    assert save(assignment, "a", 0).version == 1
    save(assignment, "ab", 1)
    assert save(assignment, "ab", 1).version == 2
    with refused("draft_conflict", DraftConflict):
        save(assignment, "ab", 1, OTHER_PAGE)


@pytest.mark.postgres
@pytest.mark.skipif(connection.vendor != "postgresql", reason="threads share one connection on SQLite")
def test_of_many_saves_on_one_version_at_once_exactly_one_is_stored(
    transactional_db: None, assignment: Assignment
):
    save(assignment, "first", 0)
    results: list[str] = []

    def from_page(number: int) -> None:
        try:
            save(assignment, f"page {number}", 1, uuid.UUID(int=100 + number))
            results.append("stored")
        except DraftConflict:
            results.append("refused")
        finally:
            connection.close()

    pages = [threading.Thread(target=from_page, args=(number,)) for number in range(8)]
    for page in pages:
        page.start()
    for page in pages:
        page.join()
    assert sorted(results) == ["refused"] * 7 + ["stored"]
    assert stored(assignment)[0] == 2


def test_nobody_saves_a_draft_of_what_another_has(assignment: Assignment, bob: User):
    with refused("assigned_to_another", NotAllowed):
        save(assignment, "a", 0, annotator=bob)
    assert not Draft.objects.exists()


def test_a_submit_takes_the_draft_away_and_a_late_save_does_not_bring_it_back(
    pair: Comparison, assignment: Assignment
):
    save(assignment, "a", 0)
    submit(assignment, prefer_first(pair), key=ONE_PAGE)
    assert not Draft.objects.exists()
    for base in (0, 1):
        for page in (ONE_PAGE, OTHER_PAGE):
            with refused("comparison_submitted", LeaseLost):
                save(assignment, "late", base, page)
    # Nor does the page count as one that changes the answer that it gave itself.
    with refused("comparison_submitted", LeaseLost):
        save(assignment, "late", 0, ONE_PAGE, is_revision=True)
    assert not Draft.objects.exists()


def test_a_change_of_mind_has_a_draft_too(pair: Comparison, assignment: Assignment):
    submit(assignment, prefer_first(pair), key=ONE_PAGE)
    assert save(assignment, "on second thoughts", 0, OTHER_PAGE, is_revision=True).version == 1
    submit(assignment, prefer_first(pair), key=OTHER_PAGE)
    assert not Draft.objects.exists()


def test_what_was_given_back_has_no_draft(assignment: Assignment, alice: User):
    skip_assignment(assignment=assignment, annotator=alice, reason="unclear")
    with refused("lease_lost", LeaseLost):
        save(assignment, "a", 0)


def test_a_draft_longer_than_any_page_is_refused(assignment: Assignment):
    save(assignment, "x" * (MOST_IN_A_DRAFT - len("comment")), 0)
    with refused("draft_too_long", InvalidAnswer):
        save(assignment, "x" * (MOST_IN_A_DRAFT - len("comment") + 1), 1)


def test_text_that_a_database_cannot_hold_is_stored_without_what_it_cannot(assignment: Assignment):
    save(assignment, "a\x00b\ud83d 🍵", 0)
    assert stored(assignment) == (1, "ab? 🍵")


def test_an_answer_given_on_another_page_is_not_superseded_unasked(pair: Comparison, assignment: Assignment):
    first = submit(assignment, prefer_first(pair), stands_on=0)
    with refused("submitted_since", AnsweredElsewhere):
        submit(assignment, prefer_first(pair, comment="later"), stands_on=0)
    assert Judgment.objects.get() == first
    second = submit(assignment, prefer_first(pair, comment="later"), stands_on=first.pk)
    assert second.supersedes == first


# ── By request and response ───────────────────────────────────────────────────────────


@pytest.fixture
def browser(alice: User, client_of: Callable[[User], Client]) -> Client:
    return client_of(alice)


def post(browser: Client, assignment: Assignment, *, page: uuid.UUID = ONE_PAGE, **sent: Any) -> Any:
    body = {"fields": {}, "base_version": 0, "saved_from": str(page), **sent}
    address = reverse("draft", args=[assignment.comparison.project.slug, assignment.pk])
    return browser.post(address, json.dumps(body), content_type="application/json")


def test_the_view_answers_with_the_version_and_a_conflict_with_what_is_stored(
    browser: Client, assignment: Assignment
):
    answer = post(browser, assignment, fields={"comment": ["a"]})
    assert (answer.status_code, answer.json()["version"]) == (200, 1)
    answer = post(browser, assignment, fields={"comment": ["b"]}, page=OTHER_PAGE)
    assert answer.status_code == 409
    assert answer.json()["stored"]["fields"] == {"comment": ["a"]}
    assert answer.json()["stored"]["version"] == 1


@pytest.mark.parametrize(
    "sent",
    [{"fields": 3}, {"fields": {"comment": [3]}}, {"base_version": "x"}, {"saved_from": "me"}],
    ids=["fields", "values", "version", "page"],
)
def test_the_view_refuses_what_is_no_draft(browser: Client, assignment: Assignment, sent: dict[str, Any]):
    assert post(browser, assignment, **sent).status_code == 400
    assert not Draft.objects.exists()


def test_the_label_page_begins_with_the_draft(browser: Client, assignment: Assignment, project: Project):
    token = next(iter(tokens_of(assignment)))
    fields = {
        "comment": ["half a thought"],
        "choice": [f"win:{token}:3"],
        "idempotency_key": [str(ONE_PAGE)],
        "missing-candidate": [token],
        "missing-category": ["missing"],
        "missing-text": ["the temperature"],
        "missing-evidence": ["0:1"],
    }
    assert post(browser, assignment, fields=fields).status_code == 200
    page = browser.get(reverse("label", args=[project.slug])).content.decode()
    assert "half a thought</textarea>" in page
    assert "the temperature</textarea>" in page
    assert re.search(rf'value="win:{token}:3"[^>]*checked', page)
    assert " restored</span>" in page
    # Two pages that go on from one draft stay two pages: neither answers in the other's name.
    assert str(ONE_PAGE) not in page


def test_a_page_begins_empty_after_its_answer_was_submitted(
    browser: Client, pair: Comparison, assignment: Assignment, project: Project
):
    post(browser, assignment, fields={"comment": ["half a thought"]})
    submit(assignment, prefer_first(pair, comment="whole"))
    factories.make_comparison(project)
    page = browser.get(reverse("label", args=[project.slug])).content.decode()
    assert "half a thought" not in page
    assert " restored</span>" not in page
    page = browser.get(reverse("revise", args=[project.slug, assignment.pk])).content.decode()
    assert "whole</textarea>" in page


def test_a_draft_of_a_change_is_shown_in_place_of_the_answer(
    browser: Client, pair: Comparison, assignment: Assignment, project: Project
):
    submit(assignment, prefer_first(pair, comment="whole"))
    assert post(browser, assignment, fields={"comment": ["new"]}, is_revision=True).status_code == 200
    page = browser.get(reverse("revise", args=[project.slug, assignment.pk])).content.decode()
    assert "new</textarea>" in page
    assert assign_next(project=project, annotator=assignment.annotator) is None
    assert Assignment.objects.get().state == AssignmentState.SUBMITTED


def test_two_pages_that_submit_different_answers_are_told(
    browser: Client, pair: Comparison, assignment: Assignment
):
    address = reverse("submit", args=[pair.project.slug, assignment.pk])
    form = {"choice": "both_bad", "stands_on": "0", "idempotency_key": str(ONE_PAGE)}
    assert browser.post(address, form, headers={"HX-Request": "true"}).status_code == 200
    # The same page once more is the same answer; another page is asked.
    assert browser.post(address, form, headers={"HX-Request": "true"}).status_code == 200
    other = {**form, "choice": "both_good", "idempotency_key": str(OTHER_PAGE)}
    assert browser.post(address, other, headers={"HX-Request": "true"}).status_code == 409
    without_script = browser.post(address, other)
    assert without_script.status_code == 422
    assert "since this page was opened" in without_script.content.decode()
    assert Judgment.objects.get().verdict == "both_bad"
