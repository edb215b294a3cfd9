"""Entries of a project file: the parts of a project as they are written down, without a database.

A field that an entry leaves out has the default given here. Texts and bounds are checked again where an
entry is stored.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from annotation.record.base import NotNegative, Number, Text, UnitInterval, record
from annotation.record.questions import Choice, Condition

VERSION = 1
"""Of the form: the value of the first key, `rondo`."""
MOST_TURNS = 40
"""Turns of the longest conversation."""

Key = Annotated[str, Field(min_length=1, max_length=60, pattern=r"^[-a-zA-Z0-9_]+$")]
_Scale = Literal["five", "seven", "thumbs"]
_Overlap = Annotated[int, Field(ge=1, le=50)]
_Name = Annotated[str, Field(min_length=1, max_length=80)]


@record
class SettingsEntry:
    """The settings of a project. Those that a file leaves out stay as they are."""

    ask_verdict: bool
    ask_strength: bool
    ask_span_flags: bool
    ask_missing_info: bool
    ask_span_relations: bool
    ask_step_labels: bool
    ask_correction: bool
    ask_critique: bool
    ask_comment: bool
    ask_demonstration: bool
    rate_side_by_side: bool
    show_context: Literal["auto", "open", "folded"]
    overlap: _Overlap
    extra_overlap: Annotated[int, Field(ge=0, le=50)]
    extra_overlap_share: UnitInterval
    lease_minutes: Annotated[int, Field(ge=1, le=32767)]
    daily_limit: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
    hourly_wage: Annotated[float, Field(ge=0, le=999_999)] | None
    item_pay: Annotated[float, Field(ge=0, le=999_999)] | None
    acquisition: str
    control_share: UnitInterval
    retest_share: UnitInterval
    gold_share: UnitInterval
    gold_feedback: bool
    qualification_pass_share: UnitInterval | None
    records_pastes: bool
    review_disagreements: bool
    review_random_share: UnitInterval
    review_every: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
    review_first: Annotated[int, Field(ge=1, le=2**31 - 1)] | None
    review_below_agreement: UnitInterval | None


@record
class RuleEntry:
    """A rule of who gets what: comparisons of prompts with the tag go to members who have the skill."""

    tag: Text
    skill: Text
    share: Annotated[int, Field(ge=1, le=100)] = 100


@record
class CategoryEntry:
    """A category of spans or of missing information."""

    key: Key
    label: _Name
    description: str = ""
    scope: Literal["span", "missing"] = "span"
    granularity: Literal["sub-sentence", "sentence", "whole"] = "sentence"
    colour: Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")] = "#b45309"
    shortcut: Annotated[str, Field(max_length=1)] = ""
    polarity: Literal["error", "neutral", "merit"] = "error"
    severity_steps: Annotated[int, Field(ge=0, le=9)] = 0
    parent: str = ""
    """Key of the category that it is a part of; empty for none."""
    needs_note: bool = False


@record
class CriterionEntry:
    """A criterion by which every response is rated."""

    key: Key
    label: _Name
    description: str = ""
    scale: _Scale = "five"


@record
class QuestionEntry:
    """A question that the project asks beside Rondo's parts."""

    key: Key
    kind: Literal["choice", "choices", "scale", "number", "text", "date"]
    text: Text
    subject: Literal["comparison", "completion", "span", "step"] = "comparison"
    help_text: str = ""
    is_required: bool = False
    choices: tuple[Choice, ...] = ()
    unit: str = ""
    least: Number | None = None
    most: Number | None = None
    shown_when: Condition | None = None
    categories: tuple[Key, ...] = ()
    """Of a question about spans: the categories whose spans it is asked of; none asks it of all."""


@record
class RubricCriterionEntry:
    """A weighted criterion of a rubric."""

    name: _Name
    text: str = ""
    levels: str = ""
    scale: _Scale = "five"
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0


@record
class RubricEntry:
    """A rubric: the published version, or the newest of one that was never published."""

    name: _Name
    is_published: bool = True
    is_asked: bool = False
    criteria: Annotated[tuple[RubricCriterionEntry, ...], Field(min_length=1)]


@record
class ConversationTaskEntry:
    """An opening task of conversations."""

    name: Annotated[str, Field(min_length=1, max_length=120)]
    instructions: str = ""
    system: str = ""
    opening: str = ""
    language: Annotated[str, Field(max_length=40)] = ""
    least_turns: Annotated[int, Field(ge=1, le=MOST_TURNS)] = 1
    harm_category: Annotated[str, Field(max_length=80)] = ""


@record
class ConversationsEntry:
    """How annotators talk with checkpoints, which are named."""

    checkpoints: Annotated[tuple[Text, ...], Field(min_length=1)]
    responses: Annotated[int, Field(ge=2, le=4)] = 2
    continues_with: Literal["chosen", "random", "edited"] = "chosen"
    most_turns: Annotated[int, Field(ge=1, le=MOST_TURNS)] = 10
    rates_whole: bool = True
    is_open: bool = True
    temperature: Annotated[Number, Field(ge=0, le=2)] = 0.7
    max_tokens: Annotated[int, Field(ge=1, le=8192)] = 256


@record
class SuggestionsEntry:
    """Suggestions after the first pass: their source, which is named, and the settings of the experiment."""

    checkpoint: Text
    is_active: bool = True
    template: str = ""
    """Empty for Rondo's own."""
    least_confidence: UnitInterval = 0.5
    control_share: UnitInterval = 0.2
    planted_share: UnitInterval = 0.1
    unread_seconds: Annotated[NotNegative, Field(le=60)] = 2.0
    tells_planted: bool = False


def plain(value: Any) -> Any:
    """Return a value as a file holds it: records as mappings without their defaults, lists for tuples."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: plain(held)
            for field in dataclasses.fields(value)
            if (held := getattr(value, field.name)) != field.default or field.name in ("key", "name")
        }
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value
