"""The record of a judgment refuses what none of its fields can hold, before anything reads a database."""

from typing import Any

import pytest

from annotation.choices import RatingScale, StepLabel, Verdict
from annotation.record.base import ContractError
from annotation.record.judgment import (
    JudgmentRecord,
    MissingPart,
    RatingPart,
    SpanPart,
    StepLabelPart,
)

SPAN: dict[str, Any] = {"completion": "1", "category": "untruthful", "start": 0, "end": 3, "quote": "Tea"}


@pytest.mark.parametrize(
    ("record", "fields", "field"),
    [
        (JudgmentRecord, {"verdict": "better"}, "verdict"),
        (JudgmentRecord, {"verdict": "equal", "ranks": {"1": True}}, "ranks"),
        (JudgmentRecord, {"verdict": "equal", "ranks": {1: 1}}, "ranks"),
        (JudgmentRecord, {"verdict": "equal", "active_seconds": -1}, "active_seconds"),
        (JudgmentRecord, {"verdict": "equal", "active_seconds": 2**31}, "active_seconds"),
        (JudgmentRecord, {"verdict": "equal", "critiques": ("x",)}, "critiques"),
        (JudgmentRecord, {"verdict": "equal", "span_flags": ()}, ""),
        (SpanPart, {**SPAN, "start": "0"}, "start"),
        (SpanPart, {**SPAN, "end": 3.5}, "end"),
        (SpanPart, {**SPAN, "severity": True}, "severity"),
        (MissingPart, {"completion": "1", "category": "missing", "insert_at": True}, "insert_at"),
        (RatingPart, {"completion": "1", "criterion": "kind", "scale": "five", "value": True}, "value"),
        (RatingPart, {"completion": "1", "criterion": "kind", "scale": "ten", "value": 1}, "scale"),
        (StepLabelPart, {"completion": "1", "step": 0, "label": "bad"}, "label"),
    ],
)
def test_a_value_that_a_field_cannot_hold_is_refused_with_its_field(
    record: Any, fields: dict[str, Any], field: str
):
    with pytest.raises(ContractError) as refused:
        record(**fields)
    assert {path[0] if path else "" for path, _problem in refused.value.problems} == {field}


@pytest.mark.parametrize(
    ("record", "fields", "field", "choices"),
    [
        (JudgmentRecord, {}, "verdict", Verdict),
        (RatingPart, {"completion": "1", "criterion": "kind", "value": 1}, "scale", RatingScale),
        (StepLabelPart, {"completion": "1", "step": 0}, "label", StepLabel),
    ],
)
def test_every_choice_of_the_database_passes_and_becomes_plain_text(
    record: Any, fields: dict[str, Any], field: str, choices: Any
):
    for choice in choices:
        value = getattr(record(**fields, **{field: choice}), field)
        assert (value, type(value)) == (choice.value, str)
