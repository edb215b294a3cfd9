"""Judgments as they are sent and read."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.choices import Verdict
from annotation.errors import InvalidAnswer
from annotation.models import Assignment, Judgment, MissingInfo, SpanFlag
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments import candidate_token, tokens_of
from annotation.services.judgments.inputs import (
    CorrectionInput,
    CritiqueInput,
    EvidencePointer,
    JudgmentAnswer,
    MissingInfoInput,
    RatingInput,
    SpanFlagInput,
)

_MOST_CHARACTERS = 2**31 - 1
_MOST_ROWS = 1000
_ANSWER = "Which answer: its name in the assignment."


def _text(**more: Any) -> serializers.CharField:
    return serializers.CharField(trim_whitespace=False, max_length=500_000, **more)


def _place(**more: Any) -> serializers.IntegerField:
    return serializers.IntegerField(min_value=0, max_value=_MOST_CHARACTERS, **more)


def _rows(child: serializers.Serializer[Any]) -> serializers.ListSerializer[Any]:
    return serializers.ListSerializer(child=child, required=False, default=list, max_length=_MOST_ROWS)


class EvidenceSerializer(serializers.Serializer[Any]):
    """A sentence of a context passage, both counted from 0; without a sentence, the passage's title."""

    passage = _place()
    sentence = _place(required=False, allow_null=True, default=None)


class SpanSerializer(serializers.Serializer[Any]):
    """A span of one answer: code points, half open."""

    answer = serializers.CharField(help_text=_ANSWER)
    category = serializers.CharField(help_text="The category's key.")
    start = _place()
    end = _place()
    quote = _text(help_text="The text that it marks; one that does not stand there is refused.")
    text_hash = serializers.CharField(
        max_length=64, help_text="SHA-256 of the answer on whose text the offsets were counted."
    )
    severity = serializers.IntegerField(
        min_value=1, max_value=9, required=False, allow_null=True, default=None
    )
    note = _text(required=False, default="", allow_blank=True)


class MissingSerializer(serializers.Serializer[Any]):
    """Missing information of an answer: in words, by evidence, or both."""

    answer = serializers.CharField(help_text=_ANSWER)
    category = serializers.CharField(help_text="The category's key.")
    text = _text(required=False, default="", allow_blank=True)
    insert_at = _place(
        required=False, allow_null=True, default=None, help_text="Before this code point of the answer."
    )
    evidence = _rows(EvidenceSerializer())


class RatingSerializer(serializers.Serializer[Any]):
    """The rating of one answer on one criterion."""

    answer = serializers.CharField(help_text=_ANSWER)
    criterion = serializers.CharField(help_text="The criterion's key.")
    value = serializers.IntegerField(min_value=0, max_value=7)


class TextOfAnswerSerializer(serializers.Serializer[Any]):
    """A text about one answer: its critique or its corrected version."""

    answer = serializers.CharField(help_text=_ANSWER)
    text = _text(allow_blank=True)


class VerdictSerializer(serializers.Serializer[Any]):
    """A preference between answers."""

    verdict = serializers.ChoiceField(choices=Verdict.choices)
    ranks = serializers.DictField(
        child=serializers.IntegerField(min_value=1, max_value=1000),
        required=False,
        default=dict,
        help_text="Answer → rank, 1 best, equal numbers tied. For the verdict `ranked`.",
    )


class AnswerSerializer(VerdictSerializer):
    """The content of one submission."""

    strength = serializers.IntegerField(
        min_value=1, max_value=4, required=False, allow_null=True, default=None
    )
    comment = _text(required=False, default="", allow_blank=True)
    span_flags = _rows(SpanSerializer())
    missing_info = _rows(MissingSerializer())
    ratings = _rows(RatingSerializer())
    corrections = _rows(TextOfAnswerSerializer())
    critiques = _rows(TextOfAnswerSerializer())
    demonstration = _text(required=False, default="", allow_blank=True)
    active_seconds = _place(required=False, allow_null=True, default=None)


class NewJudgmentSerializer(AnswerSerializer):
    """A judgment to submit."""

    guideline = serializers.IntegerField(
        min_value=1,
        max_value=_MOST_CHARACTERS,
        required=False,
        allow_null=True,
        default=None,
        help_text="The version of the rules that it goes by; the newest when left out.",
    )
    stands_on = serializers.IntegerField(
        min_value=0,
        max_value=2**63 - 1,
        required=False,
        allow_null=True,
        default=None,
        help_text="The judgment that it changes, 0 for none: 409 when another stands. Left out, whatever "
        "stands is superseded.",
    )


class JudgmentSerializer(serializers.Serializer[Any]):
    """A judgment. Its annotator sees answers by their names in the assignment, managers by completion id."""

    id = serializers.IntegerField()
    comparison = serializers.IntegerField(allow_null=True, help_text="Null for its annotator.")
    annotator = serializers.CharField()
    guideline = serializers.IntegerField(allow_null=True, help_text="The version that was on screen.")
    superseded = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    verdict = serializers.ChoiceField(choices=Verdict.choices)
    ranks = serializers.DictField(child=serializers.IntegerField())
    strength = serializers.IntegerField(allow_null=True)
    comment = serializers.CharField()
    span_flags = SpanSerializer(many=True)
    missing_info = MissingSerializer(many=True)
    ratings = RatingSerializer(many=True)
    corrections = TextOfAnswerSerializer(many=True)
    critiques = TextOfAnswerSerializer(many=True)
    demonstration = serializers.CharField()
    active_seconds = serializers.IntegerField(allow_null=True)
    blind = serializers.BooleanField(
        help_text="False where the annotator knew which model wrote which response: training leaves it out."
    )

    def to_representation(self, judgment: Judgment) -> dict[str, Any]:
        assignment: Assignment | None = self.context.get("assignment")
        name = _Names(assignment)
        demonstration = getattr(judgment, "demonstration", None)
        return {
            "id": judgment.pk,
            "comparison": None if assignment else judgment.comparison_id,
            "annotator": judgment.annotator.username,
            "guideline": judgment.guideline.version if judgment.guideline else None,
            "superseded": hasattr(judgment, "superseded_by"),
            "blind": judgment.blind,
            "created_at": judgment.created_at,
            "verdict": judgment.verdict,
            "ranks": {name.of(row.completion_id): row.rank for row in judgment.ranks.all()},
            "strength": judgment.strength,
            "comment": judgment.comment,
            "span_flags": [_span(row, name) for row in judgment.span_flags.all()],
            "missing_info": [_missing(row, name) for row in judgment.missing_info.all()],
            "ratings": [
                {
                    "answer": name.of(row.completion_id),
                    "criterion": row.criterion.key,
                    "value": row.value,
                }
                for row in judgment.ratings.all()
            ],
            "corrections": _texts(judgment.corrections.all(), name),
            "critiques": _texts(judgment.critiques.all(), name),
            "demonstration": demonstration.text if demonstration else "",
            "active_seconds": judgment.active_seconds,
        }


def judgments_with_parts(judgments: QuerySet[Judgment]) -> QuerySet[Judgment]:
    """Select and prefetch everything that `JudgmentSerializer` renders."""
    return (
        judgments.select_related("annotator", "guideline", "demonstration", "superseded_by")
        .prefetch_related(None)
        .prefetch_related(
            "ranks",
            "span_flags__category",
            "span_flags__completion",
            "missing_info__category",
            "corrections",
            "critiques",
            "ratings__criterion",
        )
    )


def answer_of(values: Mapping[str, Any], assignment: Assignment) -> JudgmentAnswer:
    """Convert a request body for the service. Refuse names that the assignment and its project lack."""
    read = _Reader(assignment)
    return JudgmentAnswer(
        verdict=values["verdict"],
        ranks={read.answer(name, "ranks"): rank for name, rank in values["ranks"].items()},
        strength=values["strength"],
        comment=values["comment"],
        span_flags=tuple(
            read.span(row, f"span_flags.{index}") for index, row in enumerate(values["span_flags"])
        ),
        missing_info=tuple(
            read.missing(row, f"missing_info.{index}") for index, row in enumerate(values["missing_info"])
        ),
        ratings=tuple(read.rating(row, f"ratings.{index}") for index, row in enumerate(values["ratings"])),
        corrections=tuple(
            CorrectionInput(
                completion_id=read.answer(row["answer"], f"corrections.{index}"), text=row["text"]
            )
            for index, row in enumerate(values["corrections"])
        ),
        critiques=tuple(
            CritiqueInput(completion_id=read.answer(row["answer"], f"critiques.{index}"), text=row["text"])
            for index, row in enumerate(values["critiques"])
        ),
        demonstration=values["demonstration"],
        active_seconds=values["active_seconds"],
    )


class _Names:
    """Names of the answers for the reader: their tokens in an assignment, or completion ids."""

    def __init__(self, assignment: Assignment | None) -> None:
        self._assignment = assignment

    def of(self, completion_id: int) -> str:
        return candidate_token(self._assignment, completion_id) if self._assignment else str(completion_id)


class _Reader:
    """Resolves names to rows of one assignment and its project."""

    def __init__(self, assignment: Assignment) -> None:
        configured = configuration_of(assignment.comparison.project)
        self._answers = tokens_of(assignment)
        self._categories = {category.key: category.pk for category in configured.categories}
        self._criteria = {criterion.key: criterion.pk for criterion in configured.criteria}

    def answer(self, name: str, where: str) -> int:
        return _known(self._answers, name, where, _("There is no response %(name)r in this assignment."))

    def category(self, name: str, where: str) -> int:
        return _known(self._categories, name, where, _("The project has no category %(name)r."))

    def span(self, row: Mapping[str, Any], where: str) -> SpanFlagInput:
        return SpanFlagInput(
            completion_id=self.answer(row["answer"], f"{where}.answer"),
            category_id=self.category(row["category"], f"{where}.category"),
            start=row["start"],
            end=row["end"],
            quote=row["quote"],
            text_hash=row["text_hash"],
            severity=row["severity"],
            note=row["note"],
        )

    def missing(self, row: Mapping[str, Any], where: str) -> MissingInfoInput:
        pointers = [EvidencePointer(**pointer) for pointer in row["evidence"]]
        return MissingInfoInput(
            completion_id=self.answer(row["answer"], f"{where}.answer"),
            category_id=self.category(row["category"], f"{where}.category"),
            text=row["text"],
            insert_at=row["insert_at"],
            passage=pointers[0].passage if pointers else None,
            sentence=pointers[0].sentence if pointers else None,
            further_evidence=tuple(pointers[1:]),
        )

    def rating(self, row: Mapping[str, Any], where: str) -> RatingInput:
        message = _("The project has no criterion %(name)r.")
        return RatingInput(
            completion_id=self.answer(row["answer"], f"{where}.answer"),
            criterion_id=_known(self._criteria, row["criterion"], f"{where}.criterion", message),
            value=row["value"],
        )


def _known(rows: Mapping[str, int], name: str, where: str, message: str) -> int:
    if name not in rows:
        raise InvalidAnswer(message % {"name": name[:60]}, field=where)
    return rows[name]


def _span(row: SpanFlag, name: _Names) -> dict[str, Any]:
    return {
        "answer": name.of(row.completion_id),
        "category": row.category.key,
        "start": row.start,
        "end": row.end,
        "quote": row.quote,
        "text_hash": row.completion.text_hash,
        "severity": row.severity,
        "note": row.note,
    }


def _missing(row: MissingInfo, name: _Names) -> dict[str, Any]:
    first = [] if row.passage is None else [{"passage": row.passage, "sentence": row.sentence}]
    return {
        "answer": name.of(row.completion_id),
        "category": row.category.key,
        "text": row.text,
        "insert_at": row.insert_at,
        "evidence": [*first, *row.further_evidence],
    }


def _texts(rows: Any, name: _Names) -> list[dict[str, str]]:
    return [{"answer": name.of(row.completion_id), "text": row.text} for row in rows]
