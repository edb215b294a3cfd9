"""Exports carry the decisions of reviewers and the returns; without any, no byte of a file is theirs."""

import csv
import io
import json
import uuid
from typing import Any

import pytest

from annotation.choices import ReturnState, ReviewReason, Verdict
from annotation.exchange.file_exports import Export
from annotation.exchange.formats.registry import READERS, WRITERS
from annotation.models import Category, Completion, Judgment, Project, Review, User
from annotation.record.judgment import SpanPart
from annotation.selectors.reviews import vote_name
from annotation.services.judgments.submission import submit_judgment
from annotation.services.reviews import (
    decide_review,
    object_to_return,
    open_review,
    return_annotation,
    undo_decision,
)
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def judgment(project: Project, alice: User) -> Judgment:
    """Alice prefers the first of two responses."""
    project.overlap = 2
    project.save()
    return factories.make_judgment(factories.make_comparison(project), alice, (1, 2), strength=4)


@pytest.fixture
def review(judgment: Judgment) -> Review:
    """A review of it."""
    return open_review(comparison=judgment.comparison, reason=ReviewReason.REQUESTED)


def completions(judgment: Judgment) -> list[Completion]:
    return [row.completion for row in judgment.comparison.candidates.order_by("index")]


def decide(review: Review, judgment: Judgment, reviewer: User) -> None:
    """The second response is better, and the first word of the first one is wrong."""
    first, second = completions(judgment)
    category, _created = Category.objects.get_or_create(
        project=review.comparison.project, key="wrong", defaults={"label": "Wrong"}
    )
    span = SpanPart(
        completion=str(first.pk),
        category=category.key,
        start=0,
        end=3,
        quote=first.text[:3],
        severity=None,
        text_hash=first.text_hash,
    )
    answer = judgment_record(
        verdict=Verdict.RANKED,
        ranks={first.pk: 2, second.pk: 1},
        strength=2,
        spans=(span,),
    )
    decide_review(review=review, reviewer=reviewer, answer=answer, comment="The first one is false.")


def export(project: Project, name: str) -> tuple[str, Export]:
    made = Export(project=project, writer=WRITERS[name])
    return "".join(made.text_stream()), made


def lines(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in export(project, "jsonl")[0].splitlines()]


def table(project: Project) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(export(project, "csv")[0].removeprefix("\ufeff"))))


def test_an_open_review_changes_no_byte_of_any_export(project: Project, judgment: Judgment):
    texts = [name for name, writer in WRITERS.items() if writer.container != "parquet"]
    before = {name: export(project, name)[0] for name in texts}
    open_review(comparison=judgment.comparison, reason=ReviewReason.REQUESTED)
    assert {name: export(project, name)[0] for name in texts} == before


def test_a_line_has_the_decision_with_its_parts_and_the_vote_stays_as_it_was(
    project: Project, judgment: Judgment, review: Review, rita: User
):
    first, second = completions(judgment)
    [before] = lines(project)
    decide(review, judgment, rita)
    [line] = lines(project)
    [decision] = line.pop("review").pop("decisions")
    assert line == before
    assert (decision["kind"], decision["reviewer"], decision["reason"]) == (
        "decided",
        str(rita.pseudonym),
        "The first one is false.",
    )
    assert (decision["verdict"], decision["strength"]) == ("ranked", 2)
    assert decision["ranks"] == {str(first.pk): 2, str(second.pk): 1}
    [span] = decision["spans"]
    assert (span["completion"], span["category"], span["start"], span["end"], span["quote"]) == (
        str(first.pk),
        "wrong",
        0,
        3,
        first.text[:3],
    )


def test_an_undone_decision_stays_in_the_line_and_leaves_the_table(
    project: Project, judgment: Judgment, review: Review, rita: User
):
    decide(review, judgment, rita)
    assert [
        (row["review_verdict"], row["review_rank"], row["review_strength"]) for row in table(project)
    ] == [
        ("ranked", "2", "2"),
        ("ranked", "1", "2"),
    ]
    assert {(row["reviewer"], row["review_reason"]) for row in table(project)} == {
        (str(rita.pseudonym), "The first one is false.")
    }
    review.refresh_from_db()
    undo_decision(review=review, user=rita, reason="I misread it.")
    [line] = lines(project)
    assert [(entry["kind"], entry["reason"]) for entry in line["review"]["decisions"]] == [
        ("decided", "The first one is false."),
        ("undone", "I misread it."),
    ]
    assert "verdict" not in line["review"]["decisions"][1]
    assert {(row["review_verdict"], row["review_rank"]) for row in table(project)} == {("", "")}


def test_a_return_goes_out_with_the_annotation_that_was_returned_and_with_no_other(
    project: Project, judgment: Judgment, review: Review, alice: User, bob: User, rita: User
):
    # A vote of someone else on the same comparison was not returned.
    factories.make_judgment(judgment.comparison, bob, (1, 2))
    return_annotation(
        review=review, vote=vote_name(review, judgment), reviewer=rita, comment="Look at the second."
    )
    object_to_return(assignment=judgment.assignment, annotator=alice, text="I did.")
    hers, his = lines(project)
    assert "review" not in his
    [returned] = hers["review"]["returns"]
    assert hers["review"]["decisions"] == []
    assert (returned["judgment"], returned["reviewer"], returned["comment"]) == (
        str(judgment.pk),
        str(rita.pseudonym),
        "Look at the second.",
    )
    assert (returned["state"], returned["objection"], returned["revision"]) == (
        ReturnState.OBJECTED,
        "I did.",
        None,
    )


def test_a_corrected_annotation_names_the_version_that_was_returned_and_the_correction(
    project: Project, judgment: Judgment, review: Review, alice: User, rita: User
):
    first, second = completions(judgment)
    return_annotation(review=review, vote=vote_name(review, judgment), reviewer=rita, comment="Look again.")
    revision = submit_judgment(
        assignment=judgment.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={first.pk: 2, second.pk: 1}, strength=1),
        idempotency_key=uuid.uuid4(),
    )
    [line] = lines(project)
    [returned] = line["review"]["returns"]
    assert (line["judgment"], returned["judgment"], returned["revision"], returned["state"]) == (
        str(revision.pk),
        str(judgment.pk),
        str(revision.pk),
        "corrected",
    )


def test_a_format_without_a_place_for_decisions_counts_them_as_dropped(
    project: Project, judgment: Judgment, review: Review, rita: User
):
    reason = "review: the format has no place for decisions of reviewers and returns"
    assert reason not in export(project, "trl-preference")[1].dropped
    decide(review, judgment, rita)
    assert export(project, "trl-preference")[1].dropped[reason] == 1
    assert [reason in export(project, name)[1].dropped for name in ("jsonl", "csv")] == [False, False]


def test_read_back_the_review_of_a_line_stays_with_the_annotation_and_decides_nothing(
    project: Project, judgment: Judgment, review: Review, rita: User
):
    decide(review, judgment, rita)
    [line] = lines(project)
    [item] = READERS["jsonl"].read(line)
    [read] = item.judgments
    assert read.more["review"] == line["review"]
    # The vote is what is read, not the decision against it.
    assert (read.ranks, read.strength) == ({"0": 1, "1": 2}, 4)


def test_the_columns_of_the_table_about_a_decision_are_named_as_not_read():
    reader = READERS["csv"]
    for column in ("review_verdict", "review_strength", "review_rank", "reviewer", "review_reason"):
        assert reader.ignoring(column)
        assert not reader.reading_of(column)
