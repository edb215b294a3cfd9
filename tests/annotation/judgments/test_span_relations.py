"""Relations of two spans: asked, checked, stored, shown, and taken in and out."""

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from annotation.errors import ImportErrors, InvalidAnswer
from annotation.exchange.file_exports import Export, ExportFilters
from annotation.exchange.file_imports import import_file
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.records import records
from annotation.models import Assignment, Comparison, Judgment, Project, User
from annotation.record.judgment import SpanLink, SpanPart
from annotation.selectors.records import records_of
from tests import factories
from tests.annotation.judgments.answers import prefer_first, span, submit
from tests.api.scene import Asker
from tests.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def related(project: Project, pair: Comparison) -> Project:
    project.ask_span_relations = True
    project.save()
    pair.project = project
    return project


def links(*pairs: tuple[str, int]) -> dict[str, Any]:
    return {"relations": tuple(SpanLink(kind=kind, to=to) for kind, to in pairs)}


def marks(pair: Comparison) -> tuple[SpanPart, ...]:
    """A later stretch causes an earlier one, so that the order in which rows are read is another."""
    return (
        span(pair, "gut", **links(("cause", 1), ("contradicts", 2))),
        span(pair, "Grün"),
        span(pair, "ist", **links(("contradicts", 0))),
    )


def by_quote(spans: tuple[SpanPart, ...]) -> dict[str, set[tuple[str, str]]]:
    return {part.quote: {(link.kind, spans[link.to].quote) for link in part.relations} for part in spans}


GIVEN = {"gut": {("cause", "Grün"), ("contradicts", "ist")}, "Grün": set(), "ist": {("contradicts", "gut")}}


def test_relations_are_stored_and_read_in_any_order_of_the_spans(
    related: Project, pair: Comparison, assignment: Assignment
):
    judgment = submit(assignment, prefer_first(pair, spans=marks(pair)))
    read = records_of([judgment.pk])[judgment.pk]
    assert [part.quote for part in read.spans] != [part.quote for part in marks(pair)]
    assert by_quote(read.spans) == GIVEN
    assert [flag.relations for flag in judgment.span_flags.filter(quote="Grün")] == [None]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ((("cause", 0),), "span_relation_without_other"),
        ((("cause", 7),), "span_relation_without_other"),
        ((("cause", 1), ("cause", 1)), "span_relation_twice"),
    ],
)
def test_a_relation_is_of_two_spans_and_there_once(
    related: Project, pair: Comparison, assignment: Assignment, wrong: Any, code: str
):
    spans = (span(pair, "gut", **links(*wrong)), span(pair, "Grün"))
    with refused(code, InvalidAnswer, field="span_flags"):
        submit(assignment, prefer_first(pair, spans=spans))


def test_a_project_that_asks_for_none_takes_none(pair: Comparison, assignment: Assignment):
    with refused("part_not_asked", InvalidAnswer, field="span_flags"):
        submit(assignment, prefer_first(pair, spans=marks(pair)))


def test_pages_and_api_take_and_show_relations(
    related: Project, pair: Comparison, assignment: Assignment, alice: User, carol: User, client: Client
):
    client.force_login(alice)
    page = client.get(reverse("label", args=[related.slug]))
    assert "data-relation-hint" in page.content.decode()
    submit(assignment, prefer_first(pair, spans=marks(pair)))
    again = client.get(reverse("revise", args=[related.slug, assignment.pk]))
    sent = json.loads(again.context["screen"].entered.span_flags)
    assert {row["quote"]: len(row["relations"]) for row in sent} == {"gut": 2, "Grün": 0, "ist": 1}
    client.force_login(carol)
    shown = client.get(reverse("statistics-item", args=[related.slug, pair.pk])).content.decode()
    assert "causes “Grün”" in shown
    [answer] = Asker(carol).get(f"/projects/{related.slug}/judgments/").json()["results"]
    spans = answer["span_flags"]
    assert {
        spans[link["to"]]["quote"] for row in spans for link in row["relations"] if link["kind"] == "cause"
    } == {"Grün"}


def test_relations_go_out_and_come_back_as_jsonl(
    related: Project, pair: Comparison, assignment: Assignment, tmp_path: Any, carol: User
):
    submit(assignment, prefer_first(pair, spans=marks(pair)))
    [row] = records(Judgment.objects.current())
    assert {each["quote"]: len(each.get("relations", ())) for each in row["spans"]} == {
        "gut": 2,
        "Grün": 0,
        "ist": 1,
    }
    file = tmp_path / "out.jsonl"
    export = Export(project=related, writer=WRITERS["jsonl"], filters=ExportFilters())
    file.write_text("".join(export.text_stream()), encoding="utf-8", newline="")
    other = factories.make_project(slug="other", managers=[carol])
    import_file(project=other, path=file, name="out.jsonl", format_name="jsonl")
    judgment = Judgment.objects.get(comparison__project=other)
    assert by_quote(records_of([judgment.pk])[judgment.pk].spans) == GIVEN


@pytest.mark.parametrize(
    "link",
    [
        {"kind": "cause", "to": 9},
        {"kind": "cause", "to": -1},
        {"kind": "cause", "to": 0},
        {"kind": "likes", "to": 1},
    ],
)
def test_a_file_with_a_relation_to_nothing_is_refused_and_nothing_is_stored(
    related: Project, pair: Comparison, assignment: Assignment, tmp_path: Any, link: dict[str, Any]
):
    submit(assignment, prefer_first(pair, spans=(span(pair, "gut"), span(pair, "ist"))))
    export = Export(project=related, writer=WRITERS["jsonl"], filters=ExportFilters())
    row = json.loads("".join(export.text_stream()))
    row["spans"][0]["relations"] = [link]
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(row), encoding="utf-8")
    other = factories.make_project(slug="other")
    with pytest.raises(ImportErrors):
        import_file(project=other, path=file, name="in.jsonl", format_name="jsonl")
    assert not Judgment.objects.filter(comparison__project=other).exists()
