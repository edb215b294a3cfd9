"""The record of a judgment refuses what none of its fields can hold, before anything reads a database."""

from typing import Any

import pytest

from annotation.choices import RatingScale, StepLabel, Verdict
from annotation.record.base import ContractError
from annotation.record.judgment import (
    BY_HAND,
    CorrectionPart,
    Edit,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    Origin,
    RatingPart,
    SpanPart,
    StepLabelPart,
    without_provenance,
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


def test_what_only_the_database_knows_of_parts_is_taken_away():
    record = JudgmentRecord(
        verdict="equal",
        ranks={"1": 1, "2": 1},
        comment="Both.",
        spans=(SpanPart(**SPAN, text_hash="ab"),),
        missing=(
            MissingPart(
                completion="1",
                category="missing",
                evidence=(EvidencePointer(passage=0, sentence=1, quote="Tea is a drink."),),
            ),
        ),
        corrections=(
            CorrectionPart(
                completion="2",
                text="Tea.",
                edits=(Edit(start=0, end=1, quote="t", replacement="T", origin=Origin(continuation=3)),),
            ),
        ),
        active_seconds=4,
    )
    left = without_provenance(record)
    assert left["spans"] == (SpanPart(**SPAN),)
    assert left["missing"][0].evidence == (EvidencePointer(passage=0, sentence=1),)
    assert left["corrections"][0].edits[0].origin == BY_HAND
    assert (left["verdict"], left["ranks"], left["comment"]) == ("equal", {"1": 1, "2": 1}, "Both.")
    assert "active_seconds" not in left
