"""Sub-categories, merits and required notes of spans: what is asked, checked, asked again, and goes out."""

import json

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from annotation.choices import CategoryScope, Polarity
from annotation.errors import InvalidAnswer
from annotation.exchange.project_file import in_yaml, read, write
from annotation.exchange.records import records
from annotation.models import Assignment, AuditEntry, Category, Comparison, Judgment, Project, User
from annotation.selectors.configuration import configuration_of, in_groups
from annotation.selectors.questions import add_split_progress
from annotation.services.projects.project_questions import (
    ask_split_again,
    ask_split_only_new,
    oldest_repeated,
)
from annotation.services.projects.questions import (
    archive_question,
    delete_question,
    move_question,
    set_category,
)
from tests.annotation.judgments.answers import prefer_first, span, submit
from tests.api.scene import Asker
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def category(project: Project, by: User, key: str, **values: object) -> Category:
    row = set_category(project=project, key=key, values={"label": key.title(), **values}, changed_by=by)
    project.refresh_from_db()
    return row


def split(project: Project, by: User) -> Category:
    """Divide "untruthful" into two."""
    for key in ("unverifiable", "contradicts"):
        category(project, by, key, parent="untruthful")
    return Category.objects.get(project=project, key="untruthful")


# ── What a manager may ask ────────────────────────────────────────────────────────────


def test_a_sub_category_is_of_one_level_and_of_the_meaning_of_its_category(project: Project, carol: User):
    split(project, carol)
    part = Category.objects.get(project=project, key="unverifiable")
    assert (part.full_label, part.colour) == ("Untruthful › Unverifiable", "#be123c")
    with refused("invalid_question", field="parent"):
        category(project, carol, "deeper", parent="unverifiable")
    with refused("invalid_question", field="parent"):
        category(project, carol, "untruthful", parent="irrelevant")
    with refused("invalid_question", field="parent"):
        category(project, carol, "lack", parent="untruthful", scope=CategoryScope.MISSING)
    with refused("invalid_question", field="polarity"):
        category(project, carol, "praise", parent="untruthful", polarity=Polarity.MERIT)
    with refused("invalid_question", field="polarity"):
        category(project, carol, "untruthful", polarity=Polarity.MERIT)
    with refused("unknown_parent_category", field="parent"):
        category(project, carol, "lost", parent="nothing")
    with refused("invalid_question", field="needs_note"):
        category(project, carol, "missing", needs_note=True)
    with refused("category_has_parts"):
        delete_question(question=part.parent, deleted_by=carol)
    with pytest.raises(IntegrityError), transaction.atomic():
        Category.objects.filter(pk=part.pk).update(parent=part)


def test_a_sub_category_moves_among_those_of_its_category(project: Project, carol: User):
    split(project, carol)
    category(project, carol, "odd")
    move_question(
        question=Category.objects.select_related("project").get(key="contradicts"), by=-1, changed_by=carol
    )
    move_question(question=Category.objects.select_related("project").get(key="odd"), by=-1, changed_by=carol)
    rows = in_groups(Category.objects.filter(project=project).order_by("position", "id"))
    assert [row.key for row in rows] == [
        *("irrelevant", "untruthful", "contradicts", "unverifiable"),
        *("odd", "missing"),
    ]


# ── What annotators give ──────────────────────────────────────────────────────────────


def test_a_span_of_a_split_category_needs_a_part_and_one_that_asks_for_a_note_needs_it(
    project: Project, carol: User, pair: Comparison, assignment: Assignment
):
    split(project, carol)
    category(project, carol, "odd", needs_note=True)
    with refused("subcategory_missing", InvalidAnswer, field="span_flags", category="Untruthful"):
        submit(assignment, prefer_first(pair, spans=(span(pair, "Grün"),)))
    with refused("span_note_missing", InvalidAnswer, field="span_flags"):
        submit(assignment, prefer_first(pair, spans=(span(pair, "Grün", category="odd", note=" "),)))
    marks = (span(pair, "Grün", category="contradicts"), span(pair, "ist", category="odd", note="Why?"))
    assert submit(assignment, prefer_first(pair, spans=marks)).span_flags.count() == 2


def test_a_category_whose_parts_are_all_archived_is_asked_itself(
    project: Project, carol: User, pair: Comparison, assignment: Assignment
):
    for part in split(project, carol).parts.all():
        archive_question(question=part, archived=True, changed_by=carol)
    assert submit(assignment, prefer_first(pair, spans=(span(pair, "Grün"),))).span_flags.count() == 1


def test_the_screen_offers_the_parts_and_signs_and_says_what_a_span_needs(
    project: Project, carol: User, alice: User, pair: Comparison, assignment: Assignment, client: Client
):
    client.force_login(alice)
    plain = client.get(reverse("label", args=[project.slug]))
    assert 'class="sign"' not in plain.content.decode()
    split(project, carol)
    category(project, carol, "praise", polarity=Polarity.MERIT, needs_note=True)
    page = client.get(reverse("label", args=[project.slug]))
    screen = page.context["screen"]
    text = page.content.decode()
    assert 'data-marks="contradicts"' in text
    assert 'data-marks="untruthful"' not in text
    assert '<span class="sign" aria-hidden="true">+</span>' in screen.category_buttons
    told = {
        row["key"]: row
        for row in json.loads(str(screen.script_data).split(">", 1)[1].split("<")[0])["categories"]
    }
    assert {"sign": "+", "needsNote": True}.items() <= told["praise"].items()
    assert told["untruthful"]["isSplit"]
    assert told["untruthful"]["shortcut"] == ""
    assert told["contradicts"]["label"] == "Untruthful › Contradicts"
    order = [row.key for row in screen.span_categories]
    assert order.index("contradicts") == order.index("untruthful") + 2


# ── A category that is split ──────────────────────────────────────────────────────────


@pytest.fixture
def marked(project: Project, pair: Comparison, assignment: Assignment) -> Judgment:
    return submit(
        assignment, prefer_first(pair, spans=(span(pair, "Grün"), span(pair, "ist", category="irrelevant")))
    )


def test_spans_of_a_split_category_go_back_once_to_who_marked_them(
    project: Project, carol: User, alice: User, bob: User, pair: Comparison, marked: Judgment, client: Client
):
    with refused("category_not_split"):
        ask_split_again(category=Category.objects.get(key="untruthful"), asked_by=carol)
    row = split(project, carol)
    rows = list(Category.objects.filter(project=project))
    add_split_progress(rows)
    assert {each.key: each.lacking for each in rows if each.lacking} == {"untruthful": 1}
    assert oldest_repeated(project, alice) is None
    assert (ask_split_again(category=row, asked_by=carol), ask_split_again(category=row, asked_by=carol)) == (
        1,
        0,
    )
    assert AuditEntry.objects.filter(action="category.ask_again").count() == 2
    assert oldest_repeated(project, alice) == marked.assignment
    assert oldest_repeated(project, bob) is None
    client.force_login(alice)
    page = client.get(reverse("label", args=[project.slug]))
    assert [each.key for each in page.context["screen"].repeated_categories] == ["untruthful"]
    assert "Grün" in page.content.decode()
    answer = prefer_first(pair, spans=(span(pair, "Grün", category="unverifiable"),))
    submit(marked.assignment, answer, stands_on=marked.pk)
    assert oldest_repeated(project, alice) is None
    add_split_progress(rows)
    assert not any(each.lacking or each.waiting for each in rows)


def test_only_new_ones_takes_back_what_waits_by_page_and_api(
    project: Project, carol: User, alice: User, marked: Judgment, client: Client
):
    row = split(project, carol)
    client.force_login(carol)
    listed = client.get(reverse("project-categories", args=[project.slug])).content.decode()
    again = reverse("category-again", args=[project.slug, "untruthful"])
    assert again in listed
    client.post(again, {"action": "again"})
    assert oldest_repeated(project, alice) is not None
    client.post(again, {"action": "only-new"})
    assert oldest_repeated(project, alice) is None
    api, address = Asker(carol), f"/api/v1/projects/{project.slug}/categories/untruthful/"
    assert api("PATCH", address, {"ask_again": True}).status_code == 200
    assert oldest_repeated(project, alice) is not None
    api("PATCH", address, {"ask_again": False})
    assert oldest_repeated(project, alice) is None
    assert ask_split_only_new(category=row, asked_by=carol) == 0


# ── Pages, API and files ──────────────────────────────────────────────────────────────


def test_the_form_and_the_api_set_parent_and_note(project: Project, carol: User, client: Client):
    client.force_login(carol)
    upper = Category.objects.get(project=project, key="untruthful")
    form = {"label": "Made up", "scope": "span", "granularity": "sentence", "polarity": "error"}
    sent = {**form, "severity_steps": "0", "colour": "#112233", "parent": upper.pk, "needs_note": "on"}
    assert client.post(reverse("category-add", args=[project.slug]), sent).status_code == 302
    row = Category.objects.get(project=project, key="made-up")
    assert (row.parent, row.needs_note) == (upper, True)
    choices = client.get(reverse("category", args=[project.slug, "irrelevant"])).context["form"]["parent"]
    assert {each.key for each in choices.field.queryset} == {"untruthful"}
    api, address = Asker(carol), f"/api/v1/projects/{project.slug}/categories/made-up/"
    put = api("PUT", address, {"label": "Made up", "parent": None, "needs_note": False})
    assert (put.json()["parent"], put.json()["needs_note"]) == (None, False)
    assert api("PUT", address, {"label": "Made up", "parent": "untruthful"}).json()["parent"] == "untruthful"
    wrong = api("PUT", address, {"label": "Made up", "parent": "nothing"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "unknown_parent_category")


def test_exports_say_parent_and_merit_only_where_there_is_one(
    project: Project, carol: User, pair: Comparison, assignment: Assignment
):
    split(project, carol)
    category(project, carol, "praise", polarity=Polarity.MERIT)
    marks = [
        span(pair, quote, category=key)
        for quote, key in (("Grün", "contradicts"), ("ist", "praise"), ("gut", "irrelevant"))
    ]
    submit(assignment, prefer_first(pair, spans=tuple(marks)))
    project.refresh_from_db()
    spans = {each["category"]: each for each in next(records(Judgment.objects.current()))["spans"]}
    assert spans["contradicts"]["parent"] == "untruthful"
    assert "liked" not in spans["contradicts"]
    assert spans["praise"]["liked"] is True
    assert "parent" not in spans["praise"]
    assert not {"parent", "liked"} & set(spans["irrelevant"])


def test_sub_categories_go_through_a_project_file_in_any_order(project: Project, carol: User, admin: User):
    split(project, carol)
    category(project, carol, "praise", polarity=Polarity.MERIT, needs_note=True)
    text = write(project)
    assert write(read(text).create(slug="again", by=admin)) == text
    # A part becomes an upper category, and the other way round.
    categories = [
        {"key": "unverifiable", "label": "Unverifiable"},
        {"key": "untruthful", "label": "Untruthful", "parent": "unverifiable"},
        {"key": "contradicts", "label": "Contradicts", "parent": "unverifiable"},
    ]
    read(in_yaml({"rondo": 1, "categories": categories})).apply(project=project, by=carol)
    assert configuration_of(project).split_categories == {
        Category.objects.get(key="unverifiable", project=project).pk
    }
    with refused("unknown_parent_category", field="categories[0].parent"):
        read("rondo: 1\ncategories: [{key: a, label: A, parent: b}]").apply(project=project, by=carol)
