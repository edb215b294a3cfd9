"""Questions, criteria and categories of a project on their pages and in the API."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import CategoryScope, Granularity, RatingScale
from annotation.errors import Refusal
from annotation.forms.judgment import rating_field
from annotation.models import AuditEntry, Category, Completion, Criterion, Judgment, Project, User
from annotation.record.judgment import SpanPart
from annotation.selectors.configuration import configuration_of
from annotation.services.projects.questions import archive_question, delete_question, move_question
from tests import factories
from tests.api.scene import Asker

ClientOf = Callable[[User], Client]
CATEGORY = {"granularity": "sentence", "polarity": "error", "severity_steps": "3", "colour": "#112233"}


@pytest.fixture
def criterion(project: Project) -> Criterion:
    return Criterion.objects.create(project=project, key="helpful", label="Helpful", position=1)


def keys(project: Project) -> list[str]:
    return list(project.categories.order_by("position", "id").values_list("key", flat=True))


def span_of(completion: Completion, category: Category) -> SpanPart:
    """The first three characters of a completion."""
    return SpanPart(
        completion=str(completion.pk),
        category=category.key,
        start=0,
        end=3,
        quote=completion.text[:3],
        text_hash=completion.text_hash,
    )


def page(project: Project, name: str, *parts: str) -> str:
    return reverse(name, args=[project.slug, *parts])


def test_a_manager_adds_a_category_after_the_others(project: Project, carol: User, client_of: ClientOf):
    address = page(project, "category-add")
    values = {**CATEGORY, "label": "Off topic", "scope": "span", "shortcut": "f"}
    answer = client_of(carol).post(address, values)
    assert answer["Location"] == page(project, "project-categories")
    made = Category.objects.get(key="off-topic")
    assert keys(project) == ["irrelevant", "untruthful", "missing", "off-topic"]
    assert (made.severity_steps, made.shortcut, made.colour) == (3, "f", "#112233")
    assert AuditEntry.objects.get(action="category.set").details == {"key": "off-topic"}


def test_a_new_category_is_offered_a_colour_that_no_other_has(
    project: Project, carol: User, client_of: ClientOf
):
    def offered() -> str:
        form = client_of(carol).get(page(project, "category-add")).context["form"]
        return str(form["colour"].value())

    first = offered()
    assert first not in project.categories.values_list("colour", flat=True)
    Category.objects.filter(key="missing").update(colour=first.upper())
    assert offered() not in (first, *project.categories.values_list("colour", flat=True))
    changed = client_of(carol).get(page(project, "category", "untruthful")).context["form"]
    assert changed["colour"].value() == Category.objects.get(key="untruthful").colour


def test_the_way_to_missing_information_fills_its_scope_in(
    project: Project, carol: User, client_of: ClientOf
):
    form = client_of(carol).get(page(project, "category-add") + "?scope=missing").context["form"]
    assert (form["scope"].initial, form["granularity"].initial) == (CategoryScope.MISSING, Granularity.WHOLE)


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"label": "Other", "key": "missing"}, "key", "The key missing is in use."),
        ({"label": "Other", "shortcut": "u"}, "shortcut", "“Untruthful” has the key u already."),
        ({"label": "Other", "shortcut": "s"}, "shortcut", "uses + , - . 0 1 2 3 4 5 6 7 8 9 = ? j k l"),
        ({"label": "Other", "colour": "red"}, "colour", "Write a colour as #rrggbb."),
        ({"label": "Other", "severity_steps": "10"}, "severity_steps", "less than or equal to 9"),
        ({"label": ""}, "label", "required"),
        ({"label": "茶"}, "key", "The label has no letter for a key."),
    ],
)
def test_a_category_that_cannot_be_is_refused_at_its_field(
    project: Project, carol: User, client_of: ClientOf, values: dict[str, str], field: str, words: str
):
    answer = client_of(carol).post(page(project, "category-add"), {**CATEGORY, "scope": "span", **values})
    assert answer.status_code == 422
    assert words in answer.context["form"].errors[field][0]
    assert project.categories.count() == 3


def test_a_category_is_changed_but_for_its_key_and_scope(project: Project, carol: User, client_of: ClientOf):
    client = client_of(carol)
    address = page(project, "category", "untruthful")
    assert not {"key", "scope"} & set(client.get(address).context["form"].fields)
    values = {**CATEGORY, "label": "Wrong", "shortcut": "e", "key": "x", "scope": "missing"}
    assert client.post(address, values).status_code == 302
    changed = project.categories.get(key="untruthful")
    assert (changed.label, changed.shortcut, changed.scope) == ("Wrong", "e", CategoryScope.SPAN)


def test_buttons_move_a_category_and_the_screen_follows(project: Project, carol: User, client_of: ClientOf):
    client = client_of(carol)
    client.post(page(project, "category-change", "missing"), {"action": "up"})
    assert keys(project) == ["irrelevant", "missing", "untruthful"]
    answer = client.post(
        page(project, "category-change", "irrelevant"), {"action": "down"}, headers={"HX-Request": "true"}
    )
    assert answer.templates[0].name == "annotation/settings/question_list.html"
    assert [row.key for row in answer.context["rows"]] == ["missing", "irrelevant", "untruthful"]
    project.refresh_from_db()
    assert [c.key for c in configuration_of(project).asked_categories] == keys(project)


def test_the_first_stays_first_when_it_is_moved_up(project: Project, carol: User):
    move_question(question=project.categories.get(key="irrelevant"), by=-1, changed_by=carol)
    assert keys(project) == ["irrelevant", "untruthful", "missing"]
    assert not AuditEntry.objects.exists()


def test_what_annotations_use_is_not_deleted_and_the_message_names_how_many(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    category = project.categories.get(key="untruthful")
    project.overlap = 2
    project.save()
    comparison = factories.make_comparison(project)
    first = comparison.completions.order_by("pk")[0]
    span = span_of(first, category)
    for user in (alice, bob):
        factories.make_judgment(comparison, user, spans=(span,))
    words = "2 annotations use “Untruthful”: it cannot be deleted. Archive it instead."
    with pytest.raises(Refusal, match=words):
        delete_question(question=category, deleted_by=carol)
    client = client_of(carol)
    address = page(project, "category-change", "untruthful")
    answer = client.post(address, {"action": "delete"}, headers={"HX-Request": "true"})
    assert (answer.status_code, answer.context["error"]) == (422, words)
    assert words in client.post(address, {"action": "delete"}, follow=True).content.decode()
    client.post(page(project, "category-change", "missing"), {"action": "delete"})
    assert keys(project) == ["irrelevant", "untruthful"]


def test_an_archived_category_is_not_offered_and_its_spans_stay(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    category = project.categories.get(key="untruthful")
    comparison = factories.make_comparison(project)
    first = comparison.completions.order_by("pk")[0]
    span = span_of(first, category)
    judgment = factories.make_judgment(comparison, alice, spans=(span,))
    client_of(carol).post(page(project, "category-change", "untruthful"), {"action": "archive"})
    client = client_of(alice)
    screen = client.get(page(project, "revise", str(judgment.assignment_id))).context["screen"]
    assert [c.key for c in screen.span_categories] == ["irrelevant"]
    # A change of mind about something else keeps the span.
    values = {
        "choice": "equal",
        "span_flags": screen.entered.span_flags,
        "idempotency_key": screen.idempotency_key,
        "stands_on": judgment.pk,
    }
    answer = client.post(page(project, "submit", str(judgment.assignment_id)), values)
    assert answer.status_code == 302, answer.content.decode()
    newest = Judgment.objects.get(superseded_by__isnull=True)
    assert [flag.category for flag in newest.span_flags.all()] == [category]
    client_of(carol).post(page(project, "category-change", "untruthful"), {"action": "restore"})
    screen = client.get(page(project, "revise", str(judgment.assignment_id))).context["screen"]
    assert [c.key for c in screen.span_categories] == ["irrelevant", "untruthful"]


def test_an_archived_criterion_is_no_longer_required(
    project: Project, criterion: Criterion, alice: User, carol: User, client_of: ClientOf
):
    project.ask_verdict = False
    project.save()
    other = Criterion.objects.create(project=project, key="polite", label="Polite", position=2)
    archive_question(question=criterion, archived=True, changed_by=carol)
    factories.make_comparison(project)
    client = client_of(alice)
    screen = client.get(page(project, "label")).context["screen"]
    assert [shown.key for shown in screen.criteria] == ["polite"]
    values: dict[str, Any] = {"idempotency_key": screen.idempotency_key, "span_flags": "[]"}
    values |= {rating_field(c.token, "polite"): 4 for c in screen.candidates}
    answer = client.post(page(project, "submit", str(screen.assignment.pk)), values)
    assert answer.status_code == 302, answer.content.decode()
    assert {rating.criterion for rating in Judgment.objects.get().ratings.all()} == {other}


def test_criteria_are_added_and_changed_but_for_their_scale(
    project: Project, criterion: Criterion, carol: User, client_of: ClientOf
):
    client = client_of(carol)
    client.post(page(project, "criterion-add"), {"label": "Safe", "scale": "thumbs"})
    made = project.criteria.get(key="safe")
    assert (made.scale, made.position) == (RatingScale.THUMBS, 2)
    client.post(page(project, "criterion", "safe"), {"label": "Harmless", "scale": "five"})
    made.refresh_from_db()
    assert (made.label, made.scale) == ("Harmless", RatingScale.THUMBS)
    answer = client.post(page(project, "criterion-change", "safe"), {"action": "fly"}, follow=True)
    assert "Choose one of the actions." in answer.content.decode()
    assert client.post(page(project, "criterion-change", "nothing"), {"action": "up"}).status_code == 404


def test_an_unticked_question_is_no_longer_asked(project: Project, carol: User, client_of: ClientOf):
    form = {"ask_verdict": "on", "ask_critique": "on", "rate_side_by_side": "on", "show_context": "open"}
    assert client_of(carol).post(page(project, "project-questions"), form).status_code == 302
    project.refresh_from_db()
    assert (project.ask_verdict, project.ask_critique, project.ask_strength) == (True, True, False)
    assert project.show_context == "open"
    changed = AuditEntry.objects.get(action="project.settings").details["changed"]
    assert "ask_critique" in changed


def test_a_category_of_another_project_is_not_found(project: Project, carol: User, client_of: ClientOf):
    other = factories.make_project(slug="other")
    factories.make_category(other, "theirs")
    assert client_of(carol).get(page(project, "category", "theirs")).status_code == 404
    assert client_of(carol).get(page(other, "category", "theirs")).status_code == 404


def test_the_api_adds_orders_archives_and_deletes(project: Project, criterion: Criterion, carol: User):
    ask = Asker(carol)
    made = ask("PUT", "/projects/tea/categories/odd/", {"label": "Odd", "is_archived": True})
    assert (made.status_code, made.json()["is_archived"]) == (200, True)
    order = ["odd", "missing", "untruthful", "irrelevant"]
    answer = ask("PUT", "/projects/tea/categories/", {"keys": order})
    assert [row["key"] for row in answer.json()] == order == keys(project)
    refused = ask("PUT", "/projects/tea/categories/", {"keys": ["odd", "odd"]})
    assert (refused.status_code, keys(project)) == (422, order)
    ask("PUT", "/projects/tea/criteria/polite/", {"label": "Polite"})
    answer = ask("PUT", "/projects/tea/criteria/", {"keys": ["polite", "helpful"]})
    assert [row["key"] for row in answer.json()] == ["polite", "helpful"]
    assert ask("DELETE", "/projects/tea/criteria/polite/").status_code == 204
    assert (
        ask("PUT", "/projects/tea/categories/odd/", {"label": "Odd", "scope": "missing"}).status_code == 422
    )
