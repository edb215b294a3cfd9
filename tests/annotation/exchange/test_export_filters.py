"""Filters of an export and the counts before it, the same on the page, in the API and in the command."""

import json
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from annotation.choices import Verdict
from annotation.exchange.file_exports import ExportFilters, count_export, export_of
from annotation.models import Project, User
from annotation.record.judgment import SpanPart
from tests import factories
from tests.refusals import refused

pytestmark = pytest.mark.django_db


def judge(
    project: Project, user: User, *, question: str, round_number: int, tags: list[str], day: int
) -> str:
    """One annotation of a pair, submitted at noon of a day in March 2026; its number."""
    prompt = factories.make_prompt(project, question, tags=tags)
    comparison = factories.make_comparison(
        project, [f"{question} one", f"{question} two"], prompt=prompt, round_number=round_number
    )
    judgment = factories.make_judgment(comparison, user, (1, 2))
    # An annotation is never changed: only its table takes another time.
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE annotation_judgment SET created_at = %s WHERE id = %s",
            [datetime(2026, 3, day, 12, tzinfo=UTC), judgment.pk],
        )
    return str(judgment.pk)


@pytest.fixture
def four(project: Project, alice: User, bob: User) -> list[str]:
    """Alice's of 1 March (tea) and 2 March (tea, green) in round 1; Bob's of 3 and 4 March in round 2."""
    return [
        judge(project, alice, question="First?", round_number=1, tags=["tea"], day=1),
        judge(project, alice, question="Second?", round_number=1, tags=["tea", "grün"], day=2),
        judge(project, bob, question="Third?", round_number=2, tags=[], day=3),
        judge(project, bob, question="Fourth?", round_number=2, tags=["teapot"], day=4),
    ]


@pytest.fixture
def manager(carol: User, client: Client) -> Client:
    client.force_login(carol)
    return client


def numbers(text: str) -> list[str]:
    return [json.loads(line)["judgment"] for line in text.splitlines()]


def downloaded(client: Client, **query: Any) -> list[str]:
    answer = client.get(reverse("export", args=["tea", "jsonl"]), query)
    assert answer.status_code == 200, answer.headers
    return numbers(answer.getvalue().decode())


def by_command(*arguments: str) -> list[str]:
    stdout = StringIO()
    call_command("export_judgments", "--format", "jsonl", *arguments, stdout=stdout, stderr=StringIO())
    return numbers(stdout.getvalue())


@pytest.mark.parametrize(
    ("query", "chosen"),
    [
        ({}, [0, 1, 2, 3]),
        ({"round": "2"}, [2, 3]),
        ({"round": ["1", "2"]}, [0, 1, 2, 3]),
        ({"since": "2026-03-02"}, [1, 2, 3]),
        ({"until": "2026-03-02"}, [0, 1]),
        ({"since": "2026-03-02", "until": "2026-03-03"}, [1, 2]),
        # A tag is a whole one: a teapot is no tea.
        ({"tag": "tea"}, [0, 1]),
        ({"tag": "grün"}, [1]),
        ({"tag": "coffee"}, []),
        ({"round": "2", "tag": "teapot", "since": "2026-03-04"}, [3]),
    ],
)
def test_page_and_command_export_what_passes_all_filters(
    four: list[str], manager: Client, query: dict[str, Any], chosen: list[int]
):
    expected = [four[number] for number in chosen]
    assert downloaded(manager, **query) == expected
    arguments = [
        part
        for name, value in query.items()
        for filter_value in ([value] if isinstance(value, str) else value)
        for part in (f"--{name}", filter_value)
    ]
    assert by_command(*arguments) == expected


def test_an_annotator_is_chosen_by_pseudonym(four: list[str], manager: Client, bob: User):
    assert downloaded(manager, annotator=str(bob.pseudonym)) == four[2:]
    assert by_command("--annotator", str(bob.pseudonym)) == four[2:]


def test_a_category_selects_annotations_with_a_span_or_missing_information_of_it(
    four: list[str], project: Project, alice: User, manager: Client
):
    comparison = factories.make_comparison(project, ["Wrong tea.", "Right tea."])
    wrong = comparison.candidates.order_by("index")[0].completion
    span = SpanPart(
        completion=str(wrong.pk),
        category="untruthful",
        start=0,
        end=5,
        quote="Wrong",
        text_hash=wrong.text_hash,
    )
    judgment = factories.make_judgment(comparison, alice, (2, 1), spans=(span,))
    assert downloaded(manager, category="untruthful") == [str(judgment.pk)]
    assert downloaded(manager, category="irrelevant") == []
    made = export_of(project=project, format_name="jsonl", filters=ExportFilters())
    counts = count_export(made)
    assert (counts.rows, counts.judgments, counts.spans, counts.is_estimate) == (5, 5, 1, False)


def test_the_split_and_the_filters_stand_in_the_manifest(project: Project):
    plain = export_of(project=project, format_name="jsonl", filters=ExportFilters()).manifest()["filters"]
    assert {"annotator", "since", "until", "tag", "category"}.isdisjoint(plain)
    filters = ExportFilters(tag="tea", split="train", rounds=[1])
    stored_filters = export_of(project=project, format_name="jsonl", filters=filters).manifest()["filters"]
    assert (stored_filters["tag"], stored_filters["split"], stored_filters["rounds"]) == ("tea", "train", [1])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"round": "7"}, "7 is not one of the available choices"),
        ({"since": "2026-03-05", "until": "2026-03-01"}, "The first day is after the last day"),
        ({"since": "yesterday"}, "Enter a valid date"),
        ({"category": "nonsense"}, "nonsense is not one of the available choices"),
        ({"annotator": "00000000-0000-0000-0000-000000000000"}, "is not one of the available choices"),
        ({"split": "middle"}, "middle is not one of the available choices"),
        ({"format": "floppy"}, "floppy is not one of the available choices"),
    ],
)
def test_a_filter_that_is_not_offered_is_an_error_beside_its_field(
    four: list[str], manager: Client, query: dict[str, str], message: str
):
    page = manager.get(reverse("export-choose", args=["tea"]), query)
    assert page.status_code == 422
    assert message in page.content.decode()
    assert "download>" not in page.content.decode()


def test_a_download_with_a_bad_filter_leads_to_the_page_that_says_so(four: list[str], manager: Client):
    answer = manager.get(reverse("export", args=["tea", "jsonl"]), {"round": "7"})
    assert answer.status_code == 302
    assert answer.headers["Location"] == "/projects/tea/export/?round=7&format=jsonl"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--category", "nonsense"], "unknown_category"),
        (["--annotator", "alice"], "unknown_pseudonym"),
        (["--annotator", "00000000-0000-0000-0000-000000000000"], "unknown_annotator"),
        (["--since", "2026-03-05", "--until", "2026-03-01"], "dates_reversed"),
    ],
)
def test_the_command_refuses_what_is_not_there(four: list[str], arguments: list[str], code: str):
    with refused(code, CommandError):
        by_command(*arguments)


def test_the_command_refuses_a_day_that_is_none(four: list[str]):
    with pytest.raises(CommandError, match="yesterday"):
        by_command("--since", "yesterday")


def test_htmx_gets_the_counts_and_the_address_of_the_download(four: list[str], manager: Client):
    address = reverse("export-choose", args=["tea"])
    part = manager.get(address, {"tag": "tea", "format": "jsonl"}, headers={"HX-Request": "true"})
    text = part.content.decode()
    assert "<h1" not in text
    assert 'href="/projects/tea/export/jsonl/?tag=tea"' in text
    assert part.context["counts"].judgments == 2


def test_an_empty_export_says_why(four: list[str], project: Project, manager: Client):
    address = reverse("export-choose", args=["tea"])
    text = manager.get(address, {"tag": "coffee"}).content.decode()
    assert "No annotation matches all filters. Remove one of them." in text
    assert "download>" not in text
    other = factories.make_project(slug="coffee", managers=[User.objects.get(username="carol")])
    text = manager.get(reverse("export-choose", args=[other.slug]), {"split": "train"}).content.decode()
    assert "The project has no annotations yet." in text


def test_what_a_format_cannot_carry_is_counted_before_the_download(
    project: Project, alice: User, manager: Client
):
    tied = factories.make_comparison(project, ["One.", "Two."])
    factories.make_judgment(tied, alice, (), verdict=Verdict.BOTH_BAD)
    page = manager.get(reverse("export-choose", args=["tea"]), {"format": "trl-preference"})
    counts = page.context["counts"]
    assert (counts.rows, counts.judgments) == (0, 1)
    assert sum(number for _reason, number in counts.dropped) == 1
    assert "This format carries none of these annotations." in page.content.decode()


def test_rows_of_a_large_export_are_estimated_from_the_first_ones(
    four: list[str], project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("annotation.exchange.file_exports._READ", 2)
    counts = count_export(export_of(project=project, format_name="jsonl", filters=ExportFilters()))
    assert (counts.read, counts.rows, counts.judgments, counts.is_estimate) == (2, 4, 4, True)


def test_the_page_opens_without_counts_and_asks_for_them(four: list[str], manager: Client):
    page = manager.get(reverse("export-choose", args=["tea"]))
    assert "counts" not in page.context
    assert 'hx-trigger="load"' in page.content.decode()
