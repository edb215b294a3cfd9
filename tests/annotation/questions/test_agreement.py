"""Agreement on answers, by the kind of their question: by hand and by published values."""

import pytest

from annotation.agreement.coefficients import alpha_of_sets, krippendorff_alpha, masi_distance
from annotation.agreement.estimate import Missing
from annotation.agreement.records import Selection
from annotation.models import Project, User
from annotation.record.judgment import AnswerValue
from annotation.statistics.compute import compute_report
from tests import factories
from tests.annotation.judgments.answers import prefer_first, submit
from tests.annotation.questions.asking import answer, ask


def sets(*values: str) -> list[frozenset[str]]:
    return [frozenset(value) for value in values]


@pytest.mark.parametrize(
    ("left", "right", "distance"),
    [
        ("ab", "ab", 0.0),
        ("ab", "cd", 1.0),
        # Jaccard 2/4, one holds the other: 1 − 1/2 · 2/3.
        ("ab", "abcd", 2 / 3),
        # Jaccard 1/3, each has something of its own: 1 − 1/3 · 1/3.
        ("ab", "bc", 8 / 9),
    ],
)
def test_masi_is_passonneaus(left: str, right: str, distance: float) -> None:
    assert masi_distance(frozenset(left), frozenset(right)) == pytest.approx(distance)
    assert masi_distance(frozenset(right), frozenset(left)) == pytest.approx(distance)


def test_alpha_of_sets_by_hand() -> None:
    # Units {a}{a}, {a}{ab}, {b}{b}: six values, a 3 times, ab once, b twice.
    # Observed: 2 · δ(a, ab) / 6 = 2 · (1 − 1/2 · 2/3) / 6 = 2 · 2/3 / 6 = 2/9.
    # Expected, over ordered pairs of the six: δ(a, ab) 2/3 · 3 · 1, δ(a, b) 1 · 3 · 2, δ(ab, b) 2/3 · 1 · 2,
    # each twice, over 6 · 5: 2 · (2 + 6 + 4/3) / 30 = 28/45. α = 1 − (2/9) / (28/45) = 1 − 5/14 = 9/14.
    items = [[sets("a", "a")], [sets("a", "ab")], [sets("b", "b")]]
    assert alpha_of_sets(items, resamples=50).value == pytest.approx(9 / 14)


def test_alpha_of_single_choices_by_masi_is_the_nominal_one() -> None:
    numbered = [[[0.0, 0.0]], [[0.0, 1.0]], [[1.0, 1.0, 2.0]]]
    letters = [[["abc"[int(value)] for value in unit] for unit in item] for item in numbered]
    singles = [[sets(*unit) for unit in item] for item in letters]
    nominal = krippendorff_alpha(numbered, "nominal", resamples=50).value
    assert alpha_of_sets(singles, resamples=50).value == pytest.approx(nominal)


def test_alpha_of_sets_has_no_value_where_nobody_shared_or_all_said_one_thing() -> None:
    assert alpha_of_sets([[sets("a")]]).missing == Missing.NOBODY_SHARED
    assert alpha_of_sets([[sets("a", "a")]]).missing == Missing.ONE_VALUE


@pytest.mark.django_db
def test_the_report_has_the_agreement_that_fits_each_kind(
    project: Project, carol: User, alice: User, bob: User
) -> None:
    project.overlap = 2
    project.save()
    for key in ("topic", "faults", "ease", "age", "why", "day"):
        ask(project, carol, key)
    given: list[tuple[AnswerValue, ...]] = [
        ("law", ("tone",), 1, 10, "2026-01-01"),
        ("tax", ("tone", "form"), 5, 20, "2026-01-11"),
        ("law", ("form",), 9, 40, "2026-01-31"),
    ]
    for number, values in enumerate(given):
        comparison = factories.make_comparison(project, [f"A {number}", f"B {number}"])
        comparison.project = project
        for person in (alice, bob):
            # Bob says "tax" once where Alice says "law", and one point more throughout.
            later = person == bob
            topic = "tax" if later and number == 2 else values[0]
            parts = (topic, values[1], int(str(values[2])) + later, *values[3:])
            keys = ("topic", "faults", "ease", "age", "day")
            answers = tuple(answer(key, value) for key, value in zip(keys, parts, strict=True))
            submit(factories.lease_to(comparison, person), prefer_first(comparison, answers=answers))
    figures = {
        (figure.criterion, figure.key): figure.estimate.value
        for figure in compute_report(project, Selection()).agreement
        if figure.key.startswith("question")
    }
    assert set(figures) == {
        ("Topic", "question-nominal"),
        ("Faults", "question-sets"),
        ("Ease", "question-ordinal"),
        ("Ease", "question-interval"),
        ("Age", "question-interval"),
        ("Day", "question-interval"),
    }
    # law-law, tax-tax, law-tax: observed 2/6, expected 2 · 3 · 3 / 30; α = 1 − (1/3) / (3/5).
    assert figures["Topic", "question-nominal"] == pytest.approx(4 / 9)
    assert figures["Faults", "question-sets"] == pytest.approx(1)
    assert figures["Age", "question-interval"] == pytest.approx(1)
    # 1 2, 5 6, 9 10: Σ observed 6 · 1 / 6 = 1; expected 2 · Σ of squares over the 15 pairs / 30.
    eases = [1, 2, 5, 6, 9, 10]
    expected = sum((x - y) ** 2 for x in eases for y in eases) / 30
    assert figures["Ease", "question-interval"] == pytest.approx(1 - 1 / expected)
