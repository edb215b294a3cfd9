"""A consistent minority is not unreliable: a simulated population of 80 and 20 percent."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from annotation.agreement.reliability import Preference, annotator_reliability, reliability_in_groups

MAJORITY = [f"m{number}" for number in range(8)]
MINORITY = ["x", "y"]
CARE = 0.9
"""Share of answers that follow one's taste; the others are coin tosses."""


@pytest.fixture(scope="module")
def preferences() -> list[Preference]:
    """Of every pair, four annotators' answers; the majority wants the first text, the minority the second."""
    draw = random.Random(7)
    votes = []
    for item in range(160):
        for name in [*draw.sample(MAJORITY, 3), *draw.sample([*MINORITY, "coin"], 2)]:
            taste = 1 if name in MAJORITY else -1
            careful = name != "coin" and draw.random() < CARE
            outcome = taste if careful else draw.choice([1, -1])
            votes.append(
                Preference(item=item, annotator=name, left=f"a{item}", right=f"b{item}", outcome=outcome)
            )
    return votes


GROUPS: dict[Hashable, str] = {
    **dict.fromkeys(MAJORITY, "majority"),
    **dict.fromkeys(MINORITY, "minority"),
}


def test_by_agreement_with_all_alone_a_consistent_minority_would_weigh_nothing(preferences: list[Preference]):
    reliability = annotator_reliability(preferences)
    assert all(reliability[name].value < 0.5 for name in MINORITY)


def test_within_its_group_a_consistent_minority_is_as_reliable_as_the_majority(preferences: list[Preference]):
    reliability = reliability_in_groups(preferences, GROUPS)
    assert all(reliability[name].value > 0.8 for name in [*MAJORITY, *MINORITY])


def test_a_group_protects_nobody_who_answers_at_random(preferences: list[Preference]):
    reliability = reliability_in_groups(preferences, GROUPS | {"coin": "minority"})
    assert reliability["coin"].value < 0.7


def test_without_groups_nothing_changes(preferences: list[Preference]):
    assert reliability_in_groups(preferences, {}) == annotator_reliability(preferences)
