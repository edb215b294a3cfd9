"""Questions of a project on its pages and in the API: editing, answering, drafts, and asking again."""

import json
import uuid
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Verdict
from annotation.models import (
    Assignment,
    Comparison,
    Draft,
    Judgment,
    Project,
    ProjectQuestion,
    RepeatedQuestion,
    User,
)
from annotation.selectors.records import records_of
from annotation.services.projects.project_questions import ask_again, ask_only_new, newest
from tests import factories
from tests.annotation.judgments.answers import completions_of, prefer_first, submit
from tests.annotation.labelling.questions_scene import ClientOf, send, token_of
from tests.annotation.questions.asking import answer, ask, choices, shown_by

pytestmark = pytest.mark.django_db


def fields_of(judgment: Judgment) -> dict[str, Any]:
    return {part.question: part.value for part in records_of([judgment.pk])[judgment.pk].answers}


# ── The editor ──────────────────────────────────────────────────────────────────────────


def test_a_lead_adds_changes_and_removes_a_question(
    project: Project, carol: User, client_of: ClientOf
) -> None:
    client = client_of(carol)
    add = reverse("project-question-add", args=["tea"])
    values = {
        "text": "Which law?",
        "kind": "choice",
        "subject": "comparison",
        "choices": "Tax law [T]\nOther",
    }
    assert client.post(add, values).status_code == 302
    row = ProjectQuestion.objects.get()
    question = newest(row)
    assert (row.key, question.choice_keys, question.choices[0].shortcut) == (
        "which-law",
        ("tax-law", "other"),
        "T",
    )
    edit = reverse("project-question", args=["tea", "which-law"])
    assert b"Tax law [T]" in client.get(edit).content
    changed = {"text": "Which law?", "choices": "Tax law [T]\nOther\nNone", "is_required": "on"}
    assert client.post(edit, changed).status_code == 302
    question = newest(row)
    assert (question.version, question.choice_keys) == (2, ("tax-law", "other", "none"))
    change = reverse("project-question-change", args=["tea", "which-law"])
    assert client.post(change, {"action": "delete"}).status_code == 302
    assert not ProjectQuestion.objects.exists()


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"kind": "choice", "choices": "One"}, "choices"),
        ({"kind": "choice", "choices": "One [s]\nTwo"}, "choices"),
        ({"kind": "scale", "first": "1", "last": "12"}, "choices"),
        ({"kind": "scale", "first": "1", "last": "3", "choices": "4 = much"}, "choices"),
        ({"kind": "number", "least": "3", "most": "2"}, "most"),
        ({"text": "?"}, "key"),
    ],
)
def test_a_question_that_is_refused_comes_back_with_its_field(
    project: Project, carol: User, client_of: ClientOf, values: dict[str, str], field: str
) -> None:
    sent = {"text": "Topic", "kind": "text", "subject": "comparison", **values}
    response = client_of(carol).post(reverse("project-question-add", args=["tea"]), sent)
    assert (response.status_code, list(response.context["form"].errors)) == (422, [field])
    assert not ProjectQuestion.objects.exists()


def test_the_preview_follows_the_form_and_stores_nothing(
    project: Project, carol: User, alice: User, client_of: ClientOf
) -> None:
    preview = reverse("project-question-preview-new", args=["tea"])
    sent = {"text": "Ease", "kind": "scale", "subject": "comparison", "first": "0", "last": "2"}
    content = client_of(carol).post(preview, {**sent, "choices": "0 = hard"}).content.decode()
    assert content.count('type="radio"') == 3
    assert "hard" in content
    assert not ProjectQuestion.objects.exists()
    assert client_of(alice).post(preview, sent).status_code == 403


# ── The labelling page ──────────────────────────────────────────────────────────────────


def test_answers_of_the_page_are_stored(
    project: Project, carol: User, assignment: Assignment, pair: Comparison, client_of: ClientOf, alice: User
) -> None:
    ask(project, carol, "topic", is_required=True)
    ask(project, carol, "faults", shown_when=shown_by("topic", "tax"))
    ask(project, carol, "age", subject="completion")
    first = completions_of(pair)[0]
    token = token_of(assignment, first.text)
    client = client_of(alice)
    page = client.get(reverse("label", args=["tea"])).content.decode()
    assert 'name="question.topic.1"' in page
    assert "data-off" in page.split('data-question="faults"')[1].split(">")[0]
    lacking = send(client, assignment)
    assert (lacking.status_code, list(lacking.context["screen"].form.errors)) == (422, ["answers"])
    fields = {
        "question.topic.1": "tax",
        "question.faults.1": ["form", "tone"],
        f"question.age.1.{token}": "4,5",
    }
    assert send(client, assignment, **fields).status_code == 200
    judgment = Judgment.objects.get()
    assert fields_of(judgment) == {"topic": "tax", "faults": ("tone", "form"), "age": 4.5}
    revise = client.get(reverse("revise", args=["tea", assignment.pk])).context["screen"]
    assert {place.field: list(place.values) for place in revise.questions if place.values} == {
        "question.topic.1": ["tax"],
        "question.faults.1": ["tone", "form"],
        f"question.age.1.{token}": ["4.5"],
    }


def test_a_page_from_before_a_change_is_asked_again(
    project: Project, carol: User, assignment: Assignment, client_of: ClientOf, alice: User
) -> None:
    ask(project, carol, "topic")
    ask(project, carol, "topic", text="Subject")
    response = send(client_of(alice), assignment, **{"question.topic.1": "tax"})
    assert (response.status_code, list(response.context["screen"].form.errors)) == (422, ["answers"])
    assert not Judgment.objects.exists()


def test_a_draft_keeps_the_answers(
    project: Project, carol: User, assignment: Assignment, client_of: ClientOf, alice: User
) -> None:
    ask(project, carol, "topic")
    Draft.objects.create(
        assignment=assignment,
        fields={"question.topic.1": ["tax"], "question.gone.1": ["x"]},
        saved_from="9b2a6b5e-6d0c-4c58-9d0b-0f6a52c3a001",
    )
    screen = client_of(alice).get(reverse("label", args=["tea"])).context["screen"]
    assert screen.entered.answers == {"question.topic.1": ["tax"]}


# ── A question added or changed in the middle ───────────────────────────────────────────


def test_a_question_added_in_the_middle_is_put_again_to_the_same_people(
    project: Project, carol: User, alice: User, bob: User, client_of: ClientOf
) -> None:
    comparisons = [factories.make_comparison(project) for _ in range(3)]
    judged = [factories.make_judgment(comparison, alice, strength=2) for comparison in comparisons[:2]]
    row = ask(project, carol, "topic", is_required=True)
    listed = client_of(carol).get(reverse("project-questions", args=["tea"])).content.decode()
    assert "2 annotations lack this" in listed
    again = reverse("project-question-again", args=["tea", "topic"])
    assert client_of(carol).post(again, {"action": "again"}).status_code == 302
    # Asked twice, each is put again once.
    assert ask_again(question=row, asked_by=carol) == 0
    assert RepeatedQuestion.objects.count() == 2
    client = client_of(alice)
    for judgment in judged:
        screen = client.get(reverse("label", args=["tea"])).context["screen"]
        assert (screen.assignment.pk, set(screen.repeated)) == (judgment.assignment_id, {"topic"})
        assert screen.entered.choice == f"win:{screen.candidates[0].token}:2" or screen.entered.choice
        fields = {"choice": screen.entered.choice, "stands_on": str(judgment.pk), "question.topic.1": "law"}
        assert send(client, screen.assignment, **fields).status_code == 200
    assert not RepeatedQuestion.objects.filter(answered_at__isnull=True).exists()
    revised = [Judgment.objects.get(supersedes=judgment) for judgment in judged]
    assert [fields_of(each) for each in revised] == [{"topic": "law"}] * 2
    assert [(each.verdict, each.strength) for each in revised] == [(Verdict.RANKED, 2)] * 2
    # Then comes what nobody has judged yet.
    assert client.get(reverse("label", args=["tea"])).context["screen"].assignment.comparison_id == (
        comparisons[2].pk
    )


def test_only_new_annotations_are_asked_where_the_lead_wants_it(
    project: Project, carol: User, alice: User
) -> None:
    factories.make_judgment(factories.make_comparison(project), alice)
    row = ask(project, carol, "topic")
    assert ask_again(question=row, asked_by=carol) == 1
    assert ask_only_new(question=row, asked_by=carol) == 1
    assert not RepeatedQuestion.objects.exists()


def test_a_changed_question_is_lacking_where_its_earlier_version_was_answered(
    project: Project, carol: User, assignment: Assignment, pair: Comparison
) -> None:
    row = ask(project, carol, "topic")
    assignment.comparison.project = project
    submit(assignment, prefer_first(pair, answers=(answer("topic", "law"),)))
    assert ask_again(question=row, asked_by=carol) == 0
    ask(project, carol, "topic", choices=choices("law", "tax"))
    assert ask_again(question=row, asked_by=carol) == 1


# ── The API ─────────────────────────────────────────────────────────────────────────────


def call(client: Client, method: str, path: str, body: Any = None) -> Any:
    return getattr(client, method)(
        f"/api/v1/projects/tea/{path}", json.dumps(body), content_type="application/json"
    )


def test_questions_are_made_read_ordered_and_deleted_over_the_api(
    project: Project, carol: User, client_of: ClientOf
) -> None:
    client = client_of(carol)
    listed = [{"key": "law", "label": "Law"}, {"key": "tax", "label": "Tax", "shortcut": "T"}]
    body = {"kind": "choice", "text": "Topic", "choices": listed}
    made = call(client, "put", "questions/topic/", body)
    assert (made.status_code, made.json()["version"], made.json()["choices"][1]["shortcut"]) == (200, 1, "T")
    condition = {"question": "topic", "values": ["tax"]}
    why = {"kind": "text", "text": "Why?", "subject": "completion", "shown_when": condition}
    assert call(client, "put", "questions/why/", why).json()["shown_when"] == condition
    assert call(client, "put", "questions/topic/", {**body, "text": "Subject"}).json()["version"] == 2
    whole = client.get("/api/v1/projects/tea/").json()
    assert [(each["key"], each["text"]) for each in whole["questions"]] == [
        ("topic", "Subject"),
        ("why", "Why?"),
    ]
    refused = call(client, "put", "questions/", {"keys": ["why", "topic"]})
    assert refused.json()["code"] == "condition_comes_later"
    assert call(client, "patch", "questions/why/", {"is_archived": True}).json()["is_archived"]
    assert call(client, "delete", "questions/why/").status_code == 204
    assert call(client, "put", "questions/topic/", {**body, "choices": listed[:1]}).json()["code"] == (
        "invalid_question"
    )


def test_answers_are_sent_and_read_over_the_api(
    project: Project, carol: User, assignment: Assignment, pair: Comparison, client_of: ClientOf, alice: User
) -> None:
    ask(project, carol, "faults")
    ask(project, carol, "age", subject="completion")
    token = token_of(assignment, completions_of(pair)[0].text)
    client = client_of(alice)
    body = {
        "verdict": "both_good",
        "answers": [
            {"question": "faults", "value": ["form", "tone"]},
            {"question": "age", "completion": token, "value": 12},
        ],
    }
    sent = client.post(
        f"/api/v1/projects/tea/assignments/{assignment.pk}/judgment/",
        json.dumps(body),
        content_type="application/json",
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    assert sent.status_code == 201, sent.content
    first_of_the_whole = {"version": 1, "step": None, "span": None}
    assert sent.json()["judgment"]["answers"] == [
        {"question": "faults", "completion": None, "value": ["tone", "form"], **first_of_the_whole},
        {"question": "age", "completion": token, "value": 12, **first_of_the_whole},
    ]


def test_the_table_of_annotations_filters_by_answers(
    project: Project, carol: User, alice: User, client_of: ClientOf
) -> None:
    for key in ("topic", "faults", "ease"):
        ask(project, carol, key)
    given = [
        (answer("topic", "law"), answer("ease", 1)),
        (answer("faults", ("tone", "form")), answer("ease", 10)),
        (),
    ]
    judged = []
    for answers in given:
        comparison = factories.make_comparison(project)
        comparison.project = project
        judged.append(factories.make_judgment(comparison, alice, answers=answers))
    table = reverse("data-annotations", args=["tea"])

    def found(value: str) -> set[int]:
        response = client_of(carol).get(table, {"answer": value})
        return {
            judged.index(row)
            for row in Judgment.objects.all()
            if f"/items/{row.comparison_id}/" in (response.content.decode())
        }

    assert found("topic=law") == {0}
    assert found("faults=form") == {1}
    assert found("ease=1") == {0}
    assert found("topic=") == {1, 2}
