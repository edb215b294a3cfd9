"""Rubrics: weighting worked out by hand, and the reading of replies, whatever a model writes."""

import contextlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.contract import ContractError
from training.judging import (
    LONGEST_REPLY,
    STEPS,
    CriterionScore,
    JudgingCriterion,
    JudgingRubric,
    UnreadableError,
    read_scores,
    rubric_form,
    rubric_in_words,
)

RUBRIC = JudgingRubric(
    name="Tea",
    version=2,
    criteria=(
        JudgingCriterion(key="accuracy", name="Accuracy", text="Is it true?", scale="five", weight=3),
        JudgingCriterion(key="tone", name="Tone", levels="1: rude", scale="seven", weight=1.5),
        JudgingCriterion(key="short", name="Short", scale="thumbs", weight=0.5),
    ),
)


@pytest.mark.parametrize(
    ("accuracy", "tone", "short", "score"),
    [
        (1, 1, 0, 0.0),
        (5, 7, 1, 1.0),
        # (3 · ½ + 1.5 · ½ + 0.5 · 1) / 5 = 2.75 / 5
        (3, 4, 1, 0.55),
        # (3 · ¾ + 1.5 · ⅙ + 0.5 · 0) / 5 = 2.5 / 5
        (4, 2, 0, 0.5),
        # A mean of two orders: (3 · 0.875 + 1.5 · 0 + 0.5 · ½) / 5 = 2.875 / 5
        (4.5, 1, 0.5, 0.575),
    ],
)
def test_the_score_is_the_weighted_mean_of_normalised_values(accuracy, tone, short, score):
    values = {"accuracy": accuracy, "tone": tone, "short": short}
    assert RUBRIC.score(values) == pytest.approx(score, abs=1e-12)


def test_a_rubric_without_criteria_with_double_keys_or_a_weight_of_zero_is_refused():
    with pytest.raises(ContractError, match="criteria"):
        JudgingRubric(name="Empty")
    criterion = JudgingCriterion(key="a", name="A")
    with pytest.raises(ContractError, match="keys must differ"):
        JudgingRubric(name="Double", criteria=(criterion, criterion))
    with pytest.raises(ContractError, match="weight"):
        JudgingCriterion(key="a", name="A", weight=0)


def test_the_judge_reads_the_criteria_numbered_with_their_scales_and_one_line_for_each_score():
    assert rubric_in_words(RUBRIC) == (
        "1. Accuracy (1 to 5, 5 is best)\nIs it true?\n\n"
        "2. Tone (1 to 7, 7 is best)\n1: rude\n\n"
        "3. Short (yes or no)"
    )
    form = rubric_form(RUBRIC, 2)
    assert [line[:3] for line in form.splitlines() if "| Because" in line] == [
        *("A1:", "A2:", "A3:"),
        *("B1:", "B2:", "B3:"),
    ]


def test_the_example_of_the_form_is_itself_a_reply_that_can_be_read():
    assert read_scores(rubric_form(RUBRIC, 3), RUBRIC, 3) is not None


@pytest.mark.parametrize(
    "lines",
    [
        ("A1: 4 | True.", "A2: 7 | Kind.", "A3: yes | Short."),
        ("**A1**: 4/5 | True.", "- A2 = 7 – Kind.", "> a3: YES, Short."),
        ("I think first.", "A1: 4 True.", "", "A 2: 7: Kind.", "A3: 1 | Short. | ", "That is all."),
        ("A.1: 4 | True.", "A1: 4 | again", "A2: 7 | Kind.", "A3: yes | Short."),
    ],
)
def test_lines_of_the_form_are_read_and_all_others_ignored(lines: tuple[str, ...]):
    assert read_scores("\n".join(lines), RUBRIC, 1) == [
        {
            "accuracy": CriterionScore(4, "True."),
            "tone": CriterionScore(7, "Kind."),
            "short": CriterionScore(1, "Short."),
        }
    ]


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "A1 is missing"),
        ("A1: 4 | x\nA2: 3 | x", "A3 is missing"),
        ("A1: 6 | x\nA2: 3 | x\nA3: no | x", "A1 is 6; its scale is 1 to 5"),
        ("A1: yes | x\nA2: 3 | x\nA3: no | x", "A1 is yes"),
        ("A1: 4 | x\nA1: 5 | x\nA2: 3 | x\nA3: no", "A1 is there twice"),
        ("A1: 4 | x\nA2: 3 | x\nA3: no | x\nB1: 2 | x", "no answer and criterion B1"),
        ("A1: 4 | x\nA2: 3 | x\nA3: no | x\nA4: 2 | x", "no answer and criterion A4"),
        ("A1: 45 | x\nA2: 3 | x\nA3: no | x", "A1 is 45"),
        ("A1: 4.5 | x\nA2: 3 | x\nA3: no | x", "A1 is missing"),
        ("x" * (LONGEST_REPLY + 1), "more than"),
    ],
)
def test_what_is_missing_or_outside_its_scale_is_not_guessed_at(reply: str, problem: str):
    with pytest.raises(UnreadableError, match=problem):
        read_scores(reply, RUBRIC, 1)


def test_a_judge_may_decline_and_only_without_scores():
    assert read_scores("Both are in Finnish.\nScores: none", RUBRIC, 2) is None
    with pytest.raises(UnreadableError, match="A2 is missing"):
        read_scores("A1: 4 | x\nScores: none", RUBRIC, 1)


_SCALES = st.sampled_from(sorted(STEPS))
_REASONS = st.text(
    st.characters(exclude_categories=["Cc", "Zl", "Zp", "Cs"], exclude_characters="|"), max_size=40
)


@given(st.data(), st.integers(1, 4), st.lists(_SCALES, min_size=1, max_size=6))
def test_every_score_that_is_written_in_the_form_is_read_in_any_order_among_other_lines(
    data, answers, scales
):
    rubric = JudgingRubric(
        name="R",
        criteria=tuple(
            JudgingCriterion(key=f"c{place}", name=f"C{place}", scale=scale)
            for place, scale in enumerate(scales)
        ),
    )
    expected = [
        {
            criterion.key: CriterionScore(data.draw(st.integers(*STEPS[criterion.scale])), "")
            for criterion in rubric.criteria
        }
        for _ in range(answers)
    ]
    lines = [
        f"{letter}{number}: {expected[place][criterion.key].value} | {data.draw(_REASONS)}"
        for place, letter in enumerate(string.ascii_uppercase[:answers])
        for number, criterion in enumerate(rubric.criteria, start=1)
    ]
    lines += ["Let me think.", "```", "Answer A is good: 5 of 5."]
    read = read_scores("\n".join(data.draw(st.permutations(lines))), rubric, answers)
    values = [{key: score.value for key, score in scored.items()} for scored in read or []]
    assert values == [{key: score.value for key, score in scored.items()} for scored in expected]
    assert all(0 <= rubric.score(of_answer) <= 1 for of_answer in values)


@given(st.text(max_size=300) | st.text(st.sampled_from("AB123456: |\n-*/yesno=."), max_size=300))
def test_any_text_is_read_whole_or_refused_and_never_anything_else(text: str):
    with contextlib.suppress(UnreadableError):
        for scored in read_scores(text, RUBRIC, 2) or []:
            assert set(scored) == {"accuracy", "tone", "short"}
            for criterion in RUBRIC.criteria:
                low, high = STEPS[criterion.scale]
                assert low <= scored[criterion.key].value <= high
