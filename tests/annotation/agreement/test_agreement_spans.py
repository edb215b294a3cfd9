"""Span agreement: Krippendorff's published example of α_U, and counts by hand."""

import numpy as np
import pytest

from annotation.agreement.estimate import Missing
from annotation.agreement.records import JudgedSpan
from annotation.agreement.spans import MarkedText, gaps_between, merged, span_matches, unitizing_alpha

C, K = 1, 2

# Krippendorff 2004, "Content Analysis", page 254: a continuum from 150 to 450, two observers, categories
# c and k. Published: α_c = 0.7286, α_k = 1, both 0.8591. Here it begins at 0.
OBSERVER_I = [JudgedSpan(75, 145, C), JudgedSpan(220, 250, C), JudgedSpan(30, 90, K), JudgedSpan(150, 200, K)]
OBSERVER_J = [
    JudgedSpan(70, 150, C),
    JudgedSpan(205, 225, C),
    JudgedSpan(250, 270, C),
    JudgedSpan(30, 90, K),
    JudgedSpan(150, 200, K),
]


def text(*marks: list[JudgedSpan], length: int = 300, item: object = "x") -> MarkedText:
    return MarkedText(item=item, length=length, marks=dict(enumerate(marks)))


def only(category: int, spans: list[JudgedSpan]) -> list[JudgedSpan]:
    return [span for span in spans if span.category == category]


def test_the_published_example_gives_the_published_values():
    assert unitizing_alpha([text(OBSERVER_I, OBSERVER_J)]).value == pytest.approx(0.8591, abs=0.0005)
    in_c = unitizing_alpha([text(only(C, OBSERVER_I), only(C, OBSERVER_J))])
    assert in_c.value == pytest.approx(0.7286, abs=0.0005)
    in_k = unitizing_alpha([text(only(K, OBSERVER_I), only(K, OBSERVER_J))])
    assert in_k.value == pytest.approx(1.0, abs=1e-12)


def alpha_by_hand(texts: list[MarkedText], category: int) -> float:
    """The formula as it is printed, unit by unit and gap by gap, for one continuum or several."""
    distance, recorded, lengths, gaps = 0.0, 0, [], []
    for marked_text in texts:
        m = len(marked_text.marks)
        recorded += m * marked_text.length
        marked = [
            merged([(s.start, s.end) for s in marks if s.category == category])
            for marks in marked_text.marks.values()
        ]
        left = [gaps_between(units, marked_text.length) for units in marked]
        lengths += [end - start for units in marked for start, end in units]
        gaps += [end - start for stretches in left for start, end in stretches]
        total = 0
        for i in range(m):
            for j in range(m):
                if i == j:
                    continue
                for a in marked[i]:
                    total += sum(
                        (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2
                        for b in marked[j]
                        if a[0] < b[1] and b[0] < a[1]
                    )
                    total += sum((a[1] - a[0]) ** 2 for g in left[j] if g[0] <= a[0] and a[1] <= g[1])
                for b in marked[j]:
                    total += sum((b[1] - b[0]) ** 2 for g in left[i] if g[0] <= b[0] and b[1] <= g[1])
        distance += total / (m - 1)
    expected = sum(
        (len(lengths) - 1) / 3 * (2 * b**3 - 3 * b**2 + b) + b**2 * sum(g - b + 1 for g in gaps if g >= b)
        for b in lengths
    )
    chances = recorded * (recorded - 1) - sum(b * (b - 1) for b in lengths)
    return 1 - (distance / recorded) / (2 * expected / chances)


def drawn(seed: int, *, item: object) -> MarkedText:
    generator = np.random.default_rng(seed)
    marks = {}
    for person in range(generator.integers(2, 5)):
        starts = generator.integers(0, 80, generator.integers(0, 4))
        marks[person] = [JudgedSpan(int(s), int(s + generator.integers(1, 20)), C) for s in starts]
    return MarkedText(item=item, length=100, marks=marks)


@pytest.mark.parametrize("seed", range(10))
def test_several_texts_and_several_people_give_the_printed_formula(seed: int):
    texts = [drawn(100 * seed + number, item=number) for number in range(6)]
    assert unitizing_alpha(texts).value == pytest.approx(alpha_by_hand(texts, C), abs=1e-9)


def test_the_interval_is_the_one_of_resampled_texts():
    texts = [drawn(number, item=number) for number in range(40)]
    alpha = unitizing_alpha(texts)
    generator = np.random.default_rng(0)
    plain = [alpha_by_hand([texts[i] for i in generator.integers(0, 40, 40)], C) for _ in range(600)]
    low, high = np.percentile(plain, [2.5, 97.5])
    assert (alpha.low, alpha.high) == pytest.approx((low, high), abs=0.05)


def test_where_nobody_marks_anything_or_nobody_shares_a_text_there_is_a_reason():
    assert unitizing_alpha([text([], [])]).missing == Missing.NO_MARKS
    assert unitizing_alpha([text(OBSERVER_I)]).missing == Missing.NOBODY_SHARED
    assert unitizing_alpha([]).missing == Missing.NOBODY_SHARED
    matches = span_matches([text([], [])])
    assert matches.exact.missing == matches.category.missing == Missing.NO_MARKS
    # Spans of one person alone: nobody else looked through the text.
    alone = span_matches([text(OBSERVER_I)])
    assert alone.exact.missing == alone.category_alpha.missing == Missing.NOBODY_SHARED


def test_overlapping_marks_of_one_person_and_category_are_one_unit():
    assert merged([(5, 9), (0, 3), (2, 4), (9, 12)]) == [(0, 4), (5, 9), (9, 12)]
    assert gaps_between([(0, 4), (5, 9), (9, 12)], 12) == [(4, 5)]
    assert gaps_between([], 7) == [(0, 7)]


def test_marks_are_matched_exactly_by_overlap_and_in_category():
    """
    One: 0–5 c, 10–20 c, 30–40 k. Other: 0–5 k, 12–18 c, 50–60 k, 61–70 k.
    Exact: 0–5. F1 = 2 · 1 / 7. Overlap: 0–5 and 10–20 with 12–18: 2 · 2 / 7. Same category: 1 of 2.
    """
    first_spans = [JudgedSpan(0, 5, C), JudgedSpan(10, 20, C), JudgedSpan(30, 40, K)]
    second_spans = [JudgedSpan(0, 5, K), JudgedSpan(12, 18, C), JudgedSpan(50, 60, K), JudgedSpan(61, 70, K)]
    matches = span_matches([text(first_spans, second_spans)])
    assert matches.exact.value == pytest.approx(2 / 7)
    assert matches.overlapping.value == pytest.approx(4 / 7)
    assert matches.category.value == pytest.approx(0.5)


def test_each_mark_meets_one_other_and_as_many_meet_as_can():
    """
    0–30 and 0–28 overlap most, but 26–28 meets 0–28 or nothing: so 0–30 makes do with 29–40.
    """
    matches = span_matches(
        [text([JudgedSpan(0, 30, C), JudgedSpan(26, 28, C)], [JudgedSpan(0, 28, C), JudgedSpan(29, 40, C)])]
    )
    assert matches.overlapping.value == 1.0
    assert matches.exact.value == 0.0


def test_two_marks_in_one_place_meet_two_marks_in_that_place():
    both = [JudgedSpan(0, 5, C), JudgedSpan(0, 5, K)]
    matches = span_matches([text(both, both)])
    assert matches.exact.value == matches.overlapping.value == matches.category.value == 1.0


def test_of_two_marks_on_one_stretch_the_one_of_the_same_category_is_met():
    matches = span_matches([text([JudgedSpan(0, 5, K)], [JudgedSpan(0, 5, C), JudgedSpan(0, 5, K)])])
    assert matches.category.value == 1.0


def test_marks_that_never_meet_have_no_agreement_in_category():
    matches = span_matches([text([JudgedSpan(0, 5, K)], [JudgedSpan(6, 9, K)])])
    assert matches.overlapping.value == 0.0
    assert matches.category.missing == Missing.NO_MATCHES
