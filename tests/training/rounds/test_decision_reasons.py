"""Reasons of a decision: kept as codes with figures, said in the reader's language; old ones as they are."""

import json
from typing import Any

import pytest
from django.utils import translation
from django.utils.functional import lazy

from training.models import rounds
from training.models.rounds import reason, reason_text

INTERVAL = {"value": 0.47, "low": 0.2, "high": None}
BY_PEOPLE = {"by": "people", "parent": "tea-1"}
KEPT = [
    ({"code": "not_evaluated"}, "The new policy is not evaluated yet."),
    (
        {"code": "people_came", "judgments": 3, "wanted": 5},
        "3 of 5 annotations by people are in.",
    ),
    (
        {"code": "win_rate_worse", **BY_PEOPLE, "value": {**INTERVAL, "high": 0.444}},
        "Win rate against tea-1 by people: 47% (20% to 44%), shown to be worse.",
    ),
    (
        {"code": "win_rate_not_worse", "by": "reward_model", "parent": "100% tea", "value": INTERVAL},
        "Win rate against 100% tea by the reward model: 47%, not shown to be worse.",
    ),
    (
        {"code": "win_rate_not_known", **BY_PEOPLE, "bound": 0.5},
        "Win rate against tea-1 by people: not known, and at least 50% is asked for.",
    ),
    (
        {"code": "at_most", "measure": "length_ratio", "value": 1.83333, "bound": 1.5},
        "Length against the parent's: 1.83; at most 1.5 is asked for.",
    ),
    (
        {"code": "at_least_not_known", "measure": "rule", "rule": "'brief'", "bound": 1},
        "Mean of rule 'brief': not known, and at least 1 is asked for.",
    ),
    # What was kept before there were codes.
    ("win rate 0.31 [0.20, 0.44] of 60", "win rate 0.31 [0.20, 0.44] of 60"),
]


@pytest.mark.parametrize(("stored", "sentence"), KEPT)
def test_a_reason_is_said_with_its_figures(stored: Any, sentence: str):
    with translation.override("en"):
        assert reason_text(stored) == sentence
        # It lies in the database as JSON in between.
        assert reason_text(json.loads(json.dumps(stored))) == sentence


def test_a_reason_is_said_in_the_language_of_its_reader(monkeypatch: pytest.MonkeyPatch):
    stored = reason("people_came", judgments=3, wanted=5)
    german = {"%(judgments)s of %(wanted)s annotations by people are in.": "%(judgments)s von %(wanted)s da."}
    original = translation.gettext

    def catalogue(message: str) -> str:
        return german.get(message, message) if translation.get_language() == "de" else original(message)

    (source,) = german
    monkeypatch.setitem(rounds._SENTENCES, "people_came", lazy(catalogue, str)(source))
    with translation.override("de"):
        assert reason_text(stored) == "3 von 5 da."
    with translation.override("en"):
        assert reason_text(stored) == "3 of 5 annotations by people are in."


def test_a_code_without_a_sentence_is_never_kept():
    with pytest.raises(KeyError):
        reason("because")
