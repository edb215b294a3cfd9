"""Ratings, critiques, demonstrations, severity, places: what is stored, and what is refused by name."""

from typing import Any

import pytest

from annotation.choices import RatingScale, Verdict
from annotation.errors import InvalidAnswer
from annotation.models import Assignment, Comparison, Correction, Criterion, Judgment, Project, User
from annotation.record.judgment import (
    CorrectionPart,
    CritiquePart,
    JudgmentRecord,
    MissingPart,
    RatingPart,
    SpanPart,
)
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


def ask(project: Project, **questions: bool) -> Project:
    """Turn questions on or off."""
    for name, is_on in questions.items():
        setattr(project, name, is_on)
    project.save()
    return project


@pytest.fixture
def everything(project: Project, pair: Comparison) -> Project:
    """The project asks for all that it can ask."""
    return ask(project, ask_correction=True, ask_critique=True, ask_demonstration=True)


@pytest.fixture
def criteria(everything: Project) -> list[Criterion]:
    """One criterion of each scale."""
    return [
        Criterion.objects.create(
            project=everything, key=scale, label=f"By {scale}", scale=scale, position=place
        )
        for place, scale in enumerate(RatingScale.values)
    ]


def rated(pair: Comparison, criteria: list[Criterion], *rows: tuple[int, int]) -> tuple[RatingPart, ...]:
    """One row of values, of the first and of the second answer, for each criterion."""
    return tuple(
        RatingPart(completion=str(completion.pk), criterion=criterion.key, scale=criterion.scale, value=value)
        for criterion, row in zip(criteria, rows, strict=False)
        for completion, value in zip(completions_of(pair), row, strict=True)
    )


def assert_refused(
    assignment: Assignment, answer: JudgmentRecord, field: str, code: str, **params: object
) -> None:
    with refused(code, InvalidAnswer, field=field, **params):
        submit(assignment, answer)
    assert nothing_was_written(assignment)


def test_every_part_is_stored_with_the_judgment(
    pair: Comparison, assignment: Assignment, criteria: list[Criterion]
):
    first, second = completions_of(pair)
    judgment = submit(
        assignment,
        prefer_first(
            pair,
            ratings=rated(pair, criteria, (1, 5), (7, 1), (0, 1)),
            critiques=(CritiquePart(completion=str(second.pk), text="Too short."),),
            demonstration="Grün ist gut.",
        ),
    )
    stored = {(r.criterion.scale, r.completion_id): r.value for r in judgment.ratings.all()}
    assert stored == {
        ("five", first.pk): 1,
        ("five", second.pk): 5,
        ("seven", first.pk): 7,
        ("seven", second.pk): 1,
        ("thumbs", first.pk): 0,
        ("thumbs", second.pk): 1,
    }
    assert [(c.completion, c.text) for c in judgment.critiques.all()] == [(second, "Too short.")]
    assert judgment.demonstration.text == "Grün ist gut."


@pytest.mark.parametrize(
    ("scale", "value"),
    [("five", 0), ("five", 6), ("seven", 8), ("thumbs", 2), ("thumbs", -1)],
)
def test_a_rating_off_its_scale_is_refused(
    scale: str, value: int, pair: Comparison, assignment: Assignment, criteria: list[Criterion]
):
    row = {"five": (3, 3), "seven": (3, 3), "thumbs": (1, 1)} | {scale: (value, 1)}
    answer = prefer_first(pair, ratings=rated(pair, criteria, *(row[c.scale] for c in criteria)))
    assert_refused(assignment, answer, "ratings", "rating_off_scale", criterion=f"By {scale}")


def test_ratings_are_whole_or_none_and_name_who_lacks(
    pair: Comparison, assignment: Assignment, criteria: list[Criterion]
):
    whole = rated(pair, criteria, (1, 5), (7, 1), (0, 1))
    assert_refused(
        assignment,
        prefer_first(pair, ratings=whole[:3]),
        "ratings",
        "ratings_incomplete",
        criterion="By seven",
        left=1,
        all=2,
    )
    assert_refused(
        assignment, prefer_first(pair, ratings=(*whole, whole[0])), "ratings", "part_given_twice", number=7
    )
    assert submit(assignment, prefer_first(pair)).ratings.count() == 0


def test_a_criterion_of_another_project_is_refused(
    pair: Comparison, assignment: Assignment, criteria: list[Criterion]
):
    elsewhere = Criterion.objects.create(
        project=factories.make_project(slug="coffee"), key="bitter", label="Bitter"
    )
    answer = prefer_first(pair, ratings=rated(pair, [elsewhere], (1, 2)))
    assert_refused(assignment, answer, "ratings", "unknown_criterion")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"strength": 2}, "strength"),
        ({"comment": "x"}, "comment"),
        ({"demonstration": "x"}, "demonstration"),
        ({"critiques": (CritiquePart(completion="1", text="x"),)}, "critiques"),
        ({"corrections": (CorrectionPart(completion="1", text="x"),)}, "corrections"),
        (
            {"spans": (SpanPart(completion="1", category="untruthful", start=0, end=1, quote="x"),)},
            "span_flags",
        ),
        ({"missing": (MissingPart(completion="1", category="missing", text="x"),)}, "missing_info"),
    ],
)
def test_what_the_project_does_not_ask_is_refused(
    part: dict[str, Any], field: str, project: Project, pair: Comparison, assignment: Assignment
):
    ask(
        project,
        **dict.fromkeys(
            (
                *("ask_strength", "ask_comment", "ask_demonstration", "ask_critique"),
                *("ask_correction", "ask_span_flags", "ask_missing_info"),
            ),
            False,
        ),
    )
    assert_refused(assignment, prefer_first(pair, **part), field, "part_not_asked")


@pytest.mark.parametrize(
    ("part", "field", "code"),
    [
        ({"demonstration": "  \n"}, "demonstration", "demonstration_empty"),
        ({"demonstration": "nul\x00"}, "demonstration", "text_holds_nul"),
        ({"critiques": " "}, "critiques", "critique_empty"),
        ({"critiques": "nul\x00"}, "critiques", "text_holds_nul"),
    ],
)
def test_blank_and_unstorable_words_are_refused(
    part: dict[str, Any],
    field: str,
    code: str,
    pair: Comparison,
    assignment: Assignment,
    everything: Project,
):
    if "critiques" in part:
        part = {
            "critiques": (CritiquePart(completion=str(completions_of(pair)[0].pk), text=part["critiques"]),)
        }
    assert_refused(assignment, prefer_first(pair, **part), field, code)


def test_two_critiques_of_one_answer_are_refused(
    pair: Comparison, assignment: Assignment, everything: Project
):
    critique = CritiquePart(completion=str(completions_of(pair)[0].pk), text="x")
    assert_refused(
        assignment,
        prefer_first(pair, critiques=(critique, critique)),
        "critiques",
        "part_given_twice",
        number=2,
    )


@pytest.mark.parametrize(("steps", "severity"), [(3, None), (3, 0), (3, 4), (0, 1)])
def test_a_severity_must_be_one_of_the_categorys_steps(
    steps: int, severity: int | None, pair: Comparison, assignment: Assignment
):
    category = pair.project.categories.get(key="untruthful")
    category.severity_steps = steps
    category.save()
    answer = prefer_first(pair, spans=(span(pair, "gut", severity=severity),))
    code = "severity_missing" if severity is None else "invalid_severity"
    assert_refused(assignment, answer, "span_flags", code, number=1, steps=steps)


def test_severity_and_note_are_stored_with_the_mark(pair: Comparison, assignment: Assignment):
    category = pair.project.categories.get(key="untruthful")
    category.severity_steps = 3
    category.save()
    judgment = submit(assignment, prefer_first(pair, spans=(span(pair, "gut", severity=3, note="no"),)))
    assert judgment.span_flags.values_list("severity", "note").get() == (3, "no")


@pytest.mark.parametrize("place", [-1, len(TEXT) + 1])
def test_what_is_missing_belongs_inside_the_answer(place: int, pair: Comparison, assignment: Assignment):
    answer = prefer_first(pair, missing=(missing(pair, text="x", insert_at=place),))
    assert_refused(assignment, answer, "missing_info", "place_outside_response", number=1)


def test_what_is_missing_may_belong_at_the_very_end(pair: Comparison, assignment: Assignment):
    judgment = submit(assignment, prefer_first(pair, missing=(missing(pair, text="x", insert_at=len(TEXT)),)))
    assert judgment.missing_info.get().insert_at == len(TEXT)


def test_a_correction_is_stored_with_its_edits_and_an_unchanged_text_is_none(
    pair: Comparison, assignment: Assignment, everything: Project
):
    first, second = completions_of(pair)
    judgment = submit(
        assignment,
        prefer_first(
            pair,
            corrections=(
                CorrectionPart(completion=str(first.pk), text=TEXT.replace("gut", "sehr gut")),
                CorrectionPart(completion=str(second.pk), text=second.text),
            ),
        ),
    )
    correction = Correction.objects.get(judgment=judgment)
    assert correction.completion == first
    # "Grün 🍵 ist\r\n  gut": the tea is one code point, so "gut" begins at 14.
    stored = correction.edits.values_list("index", "start", "end", "quote", "replacement")
    assert list(stored) == [(0, 14, 14, "", "sehr ")]


# ── Without a verdict ─────────────────────────────────────────────────────────────────


@pytest.fixture
def no_verdict(everything: Project) -> Project:
    return ask(everything, ask_verdict=False)


def test_a_project_without_verdict_takes_none_and_asks_for_its_ratings(
    pair: Comparison, assignment: Assignment, criteria: list[Criterion], no_verdict: Project
):
    assert_refused(assignment, prefer_first(pair), "verdict", "preference_not_asked")
    nothing = judgment_record(verdict=Verdict.NOT_ASKED)
    assert_refused(assignment, nothing, "ratings", "ratings_missing")
    whole = rated(pair, criteria, (1, 5), (7, 1), (0, 1))
    judgment = submit(assignment, judgment_record(verdict=Verdict.NOT_ASKED, ratings=whole))
    assert (judgment.verdict, judgment.ranks.count()) == (Verdict.NOT_ASKED, 0)


def test_a_demonstration_is_required_where_nothing_else_is_asked(
    pair: Comparison, assignment: Assignment, no_verdict: Project
):
    assert_refused(
        assignment, judgment_record(verdict=Verdict.NOT_ASKED), "demonstration", "demonstration_missing"
    )
    submit(assignment, judgment_record(verdict=Verdict.NOT_ASKED, demonstration="So."))
    assert Judgment.objects.get().demonstration.text == "So."


def test_one_may_always_say_that_one_cannot_judge(
    pair: Comparison, assignment: Assignment, criteria: list[Criterion], no_verdict: Project
):
    assert submit(assignment, judgment_record(verdict=Verdict.CANNOT_JUDGE)).ratings.count() == 0


def test_a_project_with_verdict_wants_one(pair: Comparison, assignment: Assignment):
    assert_refused(assignment, judgment_record(verdict=Verdict.NOT_ASKED), "verdict", "preference_missing")


def test_a_single_answer_is_looked_through(project: Project, alice: User):
    single = factories.make_comparison(project, ["Only this."])
    judgment = factories.make_judgment(single, alice, (1,))
    assert (judgment.verdict, judgment.ranks.get().rank) == (Verdict.RANKED, 1)
