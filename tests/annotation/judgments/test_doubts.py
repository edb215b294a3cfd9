"""Questions asked once before an answer is stored: about the order shown and about the marks made."""

from typing import Any

import pytest

from annotation.choices import Polarity, Verdict
from annotation.models import Assignment, Criterion, Project, User
from annotation.record.judgment import JudgmentRecord, SpanPart
from annotation.services.judgments.submission import doubts_of
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


@pytest.fixture
def three(project: Project, alice: User) -> Assignment:
    """Three answers on Alice's screen: A, B and C in this order."""
    comparison = factories.make_comparison(project, ["one two three", "four five six", "seven eight"])
    return factories.lease_to(comparison, alice)


def ranked(assignment: Assignment, *ranks: int, **more: Any) -> JudgmentRecord:
    """Ranks in the order of the screen."""
    return judgment_record(
        verdict=Verdict.RANKED, ranks=dict(zip(assignment.display_order, ranks, strict=True)), **more
    )


def mark(assignment: Assignment, letter: str, category: str, start: int, severity: int | None = None):
    pk = assignment.display_order["ABC".index(letter)]
    completion = assignment.comparison.completions.get(pk=pk)
    return SpanPart(
        completion=str(pk),
        category=category,
        start=start,
        end=start + 1,
        quote=completion.text[start],
        text_hash=completion.text_hash,
        severity=severity,
    )


def keys(answer: JudgmentRecord, assignment: Assignment) -> list[str]:
    return [doubt.key for doubt in doubts_of(answer, assignment)]


@pytest.mark.parametrize(
    ("ranks", "doubted"),
    [((1, 2, 3), True), ((1, 2, 2), False), ((1, 1, 1), False), ((2, 1, 3), False), ((3, 2, 1), False)],
)
def test_an_order_is_doubted_that_is_exactly_the_one_shown(
    ranks: tuple[int, ...], doubted: bool, three: Assignment
):
    assert keys(ranked(three, *ranks), three) == (["as-shown"] if doubted else [])


def test_the_order_of_a_pair_is_no_wonder(project: Project, alice: User):
    pair = factories.lease_to(factories.make_comparison(project), alice)
    assert keys(ranked(pair, 1, 2), pair) == []


def test_a_winner_with_more_errors_than_the_loser_is_doubted_by_letter(three: Assignment):
    answer = ranked(three, 2, 1, 3, spans=(mark(three, "B", "untruthful", 0),))
    (doubt,) = doubts_of(answer, three)
    assert doubt.key == "against-marks-B-A"
    assert doubt.message == "B is ranked above A, but has more or more severe error spans."


def test_marks_on_the_loser_or_on_a_tie_are_no_wonder(three: Assignment):
    on_loser = ranked(three, 2, 1, 3, spans=(mark(three, "C", "untruthful", 0),))
    on_tie = ranked(three, 1, 1, 1, spans=(mark(three, "A", "untruthful", 0),))
    assert keys(on_loser, three) == keys(on_tie, three) == []


def test_errors_weigh_by_their_severity_and_merits_against_them(three: Assignment, project: Project):
    project.categories.filter(key="untruthful").update(severity_steps=5)
    factories.make_category(project, "lovely", polarity=Polarity.MERIT, position=7)
    factories.make_category(project, "odd", polarity=Polarity.NEUTRAL, position=8)
    # B wins. B: 3 + 2 errors − 1 merit = 4; A: 4, so neither is worse. A neutral mark changes nothing.
    marks = (
        mark(three, "B", "untruthful", 0, 3),
        mark(three, "B", "untruthful", 2, 2),
        mark(three, "B", "lovely", 4),
        mark(three, "B", "odd", 5),
        mark(three, "A", "untruthful", 0, 4),
        mark(three, "C", "untruthful", 0, 5),
    )
    assert keys(ranked(three, 2, 1, 3, spans=marks), three) == []
    # Without the merit B has 5 against A's 4.
    without = tuple(each for each in marks if each != marks[2])
    assert keys(ranked(three, 2, 1, 3, spans=without), three) == ["against-marks-B-A"]


def test_of_several_pairs_the_starkest_is_named(three: Assignment, project: Project):
    project.categories.filter(key="untruthful").update(severity_steps=5)
    # C > B > A with badness 4, 1, 0: C against A differs most.
    marks = (mark(three, "C", "untruthful", 0, 4), mark(three, "B", "untruthful", 0, 1))
    assert keys(ranked(three, 3, 2, 1, spans=marks), three) == ["against-marks-C-A"]


def test_no_rating_at_all_is_doubted_where_there_are_criteria(three: Assignment, project: Project):
    assert keys(ranked(three, 2, 1, 3), three) == []
    Criterion.objects.create(project=project, key="helpful", label="Helpful")
    fresh = Assignment.objects.select_related("comparison__project").get(pk=three.pk)
    assert keys(ranked(fresh, 2, 1, 3), fresh) == ["unrated"]
    assert keys(judgment_record(verdict=Verdict.EQUAL), fresh) == ["unrated"]
    assert keys(judgment_record(verdict=Verdict.CANNOT_JUDGE), fresh) == []
