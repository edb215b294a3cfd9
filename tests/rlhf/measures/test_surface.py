"""Surface features by hand, and what a model leans on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.rlhf.runs import row
from training.rlhf.measures.features import (
    SURFACE_FEATURES,
    correlations,
    length_controlled_accuracy,
    surface_features,
)


def features_of(text: str, *, prompt: str = "Name two colours", **more: Any) -> dict[str, float]:
    judged = row("j", [text, "other"], [1, 2], prompt=prompt, **more)
    (values,) = surface_features(judged, ["j.0"])
    return dict(zip(SURFACE_FEATURES, values.tolist(), strict=True))


def test_words_and_overlaps_are_shares_of_the_completion() -> None:
    context = [{"title": "Paint", "sentences": ["Red is warm.", "Blue is cold."]}]

    features = features_of("Two colours: red, blue.", context=context)

    assert features["words"] == 4
    assert features["log_words"] == pytest.approx(math.log(5))
    # "two" and "colours" stand in the prompt, "red" and "blue" in the passages.
    assert (features["overlap_prompt"], features["overlap_context"]) == (0.5, 0.5)


def test_items_of_lists_are_counted_where_a_line_begins_with_a_mark() -> None:
    assert features_of("Colours:\n- red\n* blue\n  2. green\nA - b\n3) grey")["list_items"] == 4


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I'm sorry, but I can't help with that.", 1),
        ("As an AI language model, I have no body.", 1),
        ("I cannot say.", 1),
        ("The canister is red.", 0),
        ("He said: sorry.", 0),
    ],
)
def test_phrases_of_refusal_are_found(text: str, refuses: float) -> None:
    assert features_of(text)["refusal"] == refuses


@pytest.mark.parametrize(
    ("text", "truncated"),
    [
        ("The sun rises in the east every single day and", 1),
        ("The sun rises in the east every single day.", 0),
        ('She said: "The sun rises in the east today."', 0),
        ("red and blue", 0),
    ],
)
def test_a_text_that_ends_amid_a_sentence_is_truncated(text: str, truncated: float) -> None:
    assert features_of(text)["truncated"] == truncated


def test_length_controlled_accuracy_is_one_half_for_length_alone() -> None:
    longer = np.array([5.0, 3.0, 9.0, -2.0])

    assert length_controlled_accuracy(longer, longer, np.ones(4)) == 0.5


def test_length_controlled_accuracy_by_hand() -> None:
    # Longer chosen: right and a tie, of shares 1 and ½. Shorter chosen: wrong. Equal length: not counted.
    margins, longer = np.array([1.0, 0.0, -1.0, 4.0]), np.array([2.0, 7.0, -3.0, 0.0])

    accuracy = length_controlled_accuracy(margins, longer, np.array([1.0, 0.5, 1.0, 1.0]))

    assert accuracy == pytest.approx((1.25 / 1.5 + 0) / 2)
    assert length_controlled_accuracy(margins[:2], longer[:2], np.ones(2)) is None


def test_correlations_count_a_pair_in_both_orders() -> None:
    margins = np.array([2.0, -1.0])
    features = {"words": np.array([4.0, -2.0]), "refusal": np.array([0.0, 1.0]), "list_items": np.zeros(2)}

    coefficients = correlations(margins, features)

    assert coefficients["words"] == pytest.approx(1.0)
    both = np.concatenate([margins, -margins]), np.array([0.0, 1.0, 0.0, -1.0])
    assert coefficients["refusal"] == pytest.approx(np.corrcoef(*both)[0, 1])
    assert "list_items" not in coefficients
