"""Distributions: counts by option and annotator, mean and median, spans by category; page and API."""

from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from annotation.agreement.records import Selection
from annotation.choices import Polarity
from annotation.models import Category, Project, User
from annotation.record.judgment import SpanLink
from annotation.services.projects.questions import set_category
from annotation.statistics.compute import compute_report
from annotation.statistics.report import Report
from tests import factories
from tests.annotation.judgments.answers import span
from tests.annotation.questions.asking import answer, ask, choices, points
from tests.api.scene import Asker

pytestmark = pytest.mark.django_db


@pytest.fixture
def judged(project: Project, alice: User, bob: User, carol: User) -> Project:
    """Alice answers twice, Bob once, and each marks spans; one answer is to an older wording."""
    project.overlap = 2
    project.save()
    ask(project, carol, "topic")
    ask(project, carol, "faults")
    ask(project, carol, "ease", choices=points(1, 5))
    ask(project, carol, "day")
    ask(project, carol, "why")
    for key, more in (("contradicts", {"parent": "untruthful"}), ("praise", {"polarity": Polarity.MERIT})):
        set_category(project=project, key=key, values={"label": key.title(), **more}, changed_by=carol)
    project.refresh_from_db()
    first, second = (factories.make_comparison(project, ["one two", "no"]) for _ in range(2))
    given = (
        (first, alice, ("law", ("tone",), 1, "2026-01-01"), ("contradicts", "praise")),
        (second, alice, ("tax", ("tone", "form"), 2, "2026-01-03"), ("irrelevant",)),
        (first, bob, ("law", ("form",), 5, "2026-01-05"), ("contradicts",)),
    )
    for comparison, who, (topic, faults, ease, day), marks in given:
        factories.make_judgment(
            comparison,
            who,
            answers=(
                *(answer("topic", topic), answer("faults", faults), answer("ease", ease)),
                *(answer("day", day), answer("why", "So.")),
            ),
            spans=tuple(span(comparison, "one", category=key) for key in marks),
        )
    return project


def report_of(project: Project, **chosen: int) -> Report:
    return compute_report(Project.objects.get(pk=project.pk), Selection(**chosen))


def test_answers_are_counted_by_option_and_annotator(judged: Project, alice: User, bob: User):
    answers = {row.key: row for row in report_of(judged).answers}
    assert list(answers) == ["topic", "faults", "ease", "day", "why"]
    assert (answers["topic"].everybody.counts, dict(answers["topic"].people)[alice.pk].counts) == (
        (2, 1, 0),
        (1, 1, 0),
    )
    # Of several choices each counts; there are as many answers as judgments.
    assert (answers["faults"].everybody.counts, answers["faults"].everybody.answers) == ((2, 0, 2), 3)
    ease = answers["ease"].everybody
    assert (ease.counts, ease.median) == ((1, 1, 0, 0, 1), 2)
    assert ease.mean == pytest.approx(8 / 3)
    assert dict(answers["ease"].people)[bob.pk].mean == 5
    assert answers["day"].everybody.most - answers["day"].everybody.least == 4
    assert (answers["why"].everybody.answers, answers["why"].options, answers["why"].everybody.mean) == (
        3,
        (),
        None,
    )


def test_a_selection_counts_its_part_and_another_wording_begins_anew(
    judged: Project, alice: User, bob: User, carol: User
):
    of_bob = {row.key: row for row in report_of(judged, annotator_id=bob.pk).answers}
    assert of_bob["topic"].everybody.counts == (1, 0, 0)
    ask(judged, carol, "topic", choices=choices("law", "tax", "trade"))
    assert "topic" not in {row.key for row in report_of(judged).answers}


def test_spans_are_counted_by_category_which_counts_its_parts(judged: Project, alice: User):
    counts = report_of(judged).span_counts
    by_key = dict(zip([option.key for option in counts.options], counts.everybody.counts, strict=True))
    assert by_key == {"irrelevant": 1, "untruthful": 2, "contradicts": 2, "praise": 1}
    assert [option.is_part for option in counts.options if option.key == "contradicts"] == [True]
    assert (counts.everybody.answers, dict(counts.people)[alice.pk].answers) == (4, 3)
    upper = Category.objects.get(project=judged, key="untruthful")
    assert report_of(judged, category_id=upper.pk).span_counts.everybody.answers == 2


def test_relations_are_counted_by_kind_and_the_categories_of_both_spans(
    project: Project, alice: User, bob: User, carol: User, client: Client
):
    project.ask_span_relations = True
    project.overlap = 2
    project.save()
    comparison = factories.make_comparison(project, ["one two", "no"])
    for who, kind in ((alice, "cause"), (bob, "cause"), (bob, "contradicts")):
        target = comparison if kind == "cause" else factories.make_comparison(project, ["one two", "no"])
        first = replace(span(target, "one", category="irrelevant"), relations=(SpanLink(kind=kind, to=1),))
        factories.make_judgment(target, who, spans=(first, span(target, "two", category="untruthful")))
    counts = report_of(project).relation_counts
    assert counts is not None
    assert [option.key for option in counts.options] == [
        "irrelevant cause untruthful",
        "irrelevant contradicts untruthful",
    ]
    assert (counts.everybody.counts, counts.everybody.answers) == ((2, 1), 3)
    assert dict(counts.people)[alice.pk].counts == (1, 0)
    client.force_login(carol)
    page = client.get(reverse("statistics", args=[project.slug])).content.decode()
    assert "causes: Irrelevant → Untruthful" in page
    sent = Asker(carol).get(f"/projects/{project.slug}/statistics/").json()["relation_counts"]
    assert sent["everybody"]["counts"] == [2, 1]


def test_page_and_api_show_the_distributions(judged: Project, carol: User, client: Client):
    client.force_login(carol)
    page = client.get(reverse("statistics", args=[judged.slug]))
    tables = {table.title: table for table in page.context["page"].answers}
    assert [row.everybody for row in tables["Topic"].rows] == ["2", "1", "0", "3"]
    assert [row.label for row in tables["Ease"].rows][-5:] == [
        "Answers",
        "Mean",
        "Median",
        "Smallest",
        "Largest",
    ]
    assert tables["Day"].rows[-1].everybody == "5 Jan 2026"
    text = page.content.decode()
    assert 'id="span-counts"' in text
    assert "+ Praise" in text
    sent = Asker(carol).get(f"/projects/{judged.slug}/statistics/").json()
    topic = sent["answers"][0]
    assert (topic["key"], topic["everybody"]["counts"]) == ("topic", [2, 1, 0])
    assert {row["annotator"]: row["counts"] for row in topic["people"]} == {
        "alice": [1, 1, 0],
        "bob": [1, 0, 0],
    }
    assert sent["span_counts"]["everybody"]["answers"] == 4


def test_a_project_without_answers_and_spans_has_no_distributions(
    project: Project, alice: User, carol: User, client: Client
):
    factories.make_judgment(factories.make_comparison(project), alice)
    report = report_of(project)
    assert (report.answers, report.span_counts, report.relation_counts) == ((), None, None)
    client.force_login(carol)
    assert b'id="span-counts"' not in client.get(reverse("statistics", args=[project.slug])).content
