"""An answer that cannot be is refused whole, and the refusal names the part."""

from typing import Any

import pytest

from annotation.choices import Verdict
from annotation.errors import InvalidAnswer, StaleAnswer
from annotation.models import (
    Assignment,
    Comparison,
    Project,
    User,
)
from annotation.record.judgment import EvidencePointer
from annotation.services.assignments.leases import release_assignment
from annotation.text.identity import text_hash
from tests import factories
from tests.annotation.judgments.answers import (
    TEXT,
    completions_of,
    missing,
    nothing_was_written,
    prefer_first,
    span,
    submit,
)
from tests.records import judgment_record
from tests.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"verdict": Verdict.CANNOT_JUDGE}, "ranks"),
        ({"verdict": Verdict.EQUAL}, "ranks"),
        ({"ranks": {}}, "ranks"),
        ({"strength": 0}, "strength"),
        ({"strength": 5}, "strength"),
        ({"comment": "nul\x00"}, "comment"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused_naming_the_part(
    pair: Comparison, assignment: Assignment, changes: dict[str, Any], field: str
):
    with pytest.raises(InvalidAnswer) as refusal:
        submit(assignment, prefer_first(pair, **changes))
    assert refusal.value.field == field
    assert nothing_was_written(assignment)


def test_ranks_must_be_of_this_comparison_whole_and_from_one(pair: Comparison, assignment: Assignment):
    first, second = completions_of(pair)
    stranger = completions_of(factories.make_comparison(pair.project))[0]
    for ranks in (
        {first.pk: 1},
        {first.pk: 1, second.pk: 2, stranger.pk: 3},
        {first.pk: 1, stranger.pk: 2},
        {first.pk: 0, second.pk: 1},
    ):
        with pytest.raises(InvalidAnswer) as refusal:
            submit(assignment, judgment_record(verdict=Verdict.RANKED, ranks=ranks))
        assert refusal.value.field == "ranks"
    assert nothing_was_written(assignment)


def test_a_pair_that_is_tied_must_say_which_of_the_four_it_is(pair: Comparison, assignment: Assignment):
    ranks = {completion.pk: 1 for completion in completions_of(pair)}
    with refused("winner_missing", InvalidAnswer) as refusal:
        submit(assignment, judgment_record(verdict=Verdict.RANKED, ranks=ranks))
    assert refusal.value.field == "verdict"


def test_strength_is_of_a_pair_with_a_winner_only(project: Project, alice: User):
    four = factories.make_comparison(project, ["a", "b", "c", "d"])
    with refused("strength_not_asked", InvalidAnswer):
        factories.make_judgment(four, alice, (1, 2, 3, 4), strength=2)
    release_assignment(assignment=four.assignments.get(), annotator=alice)
    pair = factories.make_comparison(project)
    with refused("strength_not_asked", InvalidAnswer):
        factories.make_judgment(pair, alice, (1, 1), verdict=Verdict.BOTH_GOOD, strength=2)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"start": 0}, StaleAnswer),  # no longer stands on its quote
        ({"quote": "Grun"}, StaleAnswer),
        ({"text_hash": text_hash("another text")}, StaleAnswer),
        ({"start": 10, "end": 5}, InvalidAnswer),
        ({"start": 5, "end": 5, "quote": ""}, InvalidAnswer),
        ({"start": -1}, InvalidAnswer),
        ({"end": len(TEXT) + 1}, InvalidAnswer),
        ({"category": "unheard"}, InvalidAnswer),
        ({"completion": "-1"}, InvalidAnswer),
        ({"note": "\x00"}, InvalidAnswer),
    ],
)
def test_a_span_that_does_not_stand_on_its_text_is_refused_by_its_number(
    pair: Comparison, assignment: Assignment, changes: dict[str, Any], error: type[Exception]
):
    good, bad = span(pair, "gut"), span(pair, "🍵 ist", **changes)
    with pytest.raises(error) as refusal:
        submit(assignment, prefer_first(pair, spans=(good, bad)))
    assert refusal.value.field == "span_flags"  # type: ignore[attr-defined]
    if "note" not in changes:
        assert "Span 2" in str(refusal.value)
    assert nothing_was_written(assignment)


def test_utf16_offsets_given_as_code_points_are_noticed(pair: Comparison, assignment: Assignment):
    # In UTF-16 the tea is two units, so what follows it is off by one: "ist" is 8 there, 7 here.
    wrong = span(pair, "ist", start=8, end=11)
    with refused("span_off_quote", StaleAnswer, marked="st\r"):
        submit(assignment, prefer_first(pair, spans=(wrong,)))


def test_a_category_of_another_scope_or_project_is_refused(pair: Comparison, assignment: Assignment):
    elsewhere = factories.make_project(slug="coffee").categories.create(key="bitter", label="Bitter")
    for wrong, code in (
        (span(pair, "gut", category="missing"), "category_of_other_scope"),
        (span(pair, "gut", category=elsewhere.key), "unknown_category"),
    ):
        with refused(code, InvalidAnswer, field="span_flags", number=1):
            submit(assignment, prefer_first(pair, spans=(wrong,)))
    missing_info = missing(pair, text="x", category="untruthful")
    with refused("category_of_other_scope", InvalidAnswer):
        submit(assignment, prefer_first(pair, missing=(missing_info,)))


def test_the_same_mark_twice_is_refused(pair: Comparison, assignment: Assignment):
    twice = (span(pair, "gut"), span(pair, "gut", note="again"))
    with refused("part_given_twice", InvalidAnswer, field="span_flags", number=2):
        submit(assignment, prefer_first(pair, spans=twice))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "missing_info_empty"),
        ({"text": "  "}, "missing_info_empty"),
        ({"evidence": (EvidencePointer(passage=2, sentence=0),)}, "unknown_passage"),
        ({"evidence": (EvidencePointer(passage=1, sentence=1),)}, "unknown_sentence"),
        ({"evidence": (EvidencePointer(passage=-1, sentence=0),)}, "unknown_passage"),
        ({"evidence": (EvidencePointer(passage=0, sentence=-1),)}, "unknown_sentence"),
        (
            {"evidence": (EvidencePointer(passage=0), EvidencePointer(passage=0, sentence=2))},
            "unknown_sentence",
        ),
    ],
)
def test_missing_info_must_say_something_that_is_there(
    pair: Comparison, assignment: Assignment, fields: dict[str, Any], code: str
):
    with refused(code, InvalidAnswer, field="missing_info", number=1):
        submit(assignment, prefer_first(pair, missing=(missing(pair, **fields),)))
    assert nothing_was_written(assignment)


def test_a_guideline_of_another_project_is_refused(pair: Comparison, assignment: Assignment):
    elsewhere = factories.make_project(slug="coffee").guidelines.get()
    with refused("guideline_of_other_project", InvalidAnswer):
        submit(assignment, prefer_first(pair), guideline=elsewhere)
