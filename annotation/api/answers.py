"""Judgments as they are sent and read."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api.answer_parts import (
    MOST_CHARACTERS,
    CorrectionSerializer,
    MissingSerializer,
    RatingSerializer,
    SpanSerializer,
    StepLabelSerializer,
    TextOfAnswerSerializer,
    place_field,
    rows_field,
    text_field,
)
from annotation.choices import Verdict
from annotation.errors import InvalidAnswer
from annotation.models import (
    Assignment,
    Completion,
    Correction,
    CorrectionEdit,
    Judgment,
    MissingInfo,
    RubricVersion,
    SpanFlag,
)
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.judgments.inputs import (
    CorrectionInput,
    CritiqueInput,
    EvidencePointer,
    JudgmentAnswer,
    MissingInfoInput,
    RatingInput,
    SpanFlagInput,
    StepLabelInput,
)
from annotation.text.edits import Edit, Origin


class VerdictSerializer(serializers.Serializer[Any]):
    """A preference between answers."""

    verdict = serializers.ChoiceField(choices=Verdict.choices)
    ranks = serializers.DictField(
        child=serializers.IntegerField(min_value=1, max_value=1000),
        required=False,
        default=dict,
        help_text="Answer → rank, 1 best, equal numbers tied. For the verdict `ranked`. Of three or more the "
        "best may be ranked alone: the others are below them, without an order.",
    )


class AnswerSerializer(VerdictSerializer):
    """The content of one submission."""

    strength = serializers.IntegerField(
        min_value=1, max_value=4, required=False, allow_null=True, default=None
    )
    comment = text_field(required=False, default="", allow_blank=True)
    span_flags = rows_field(SpanSerializer())
    missing_info = rows_field(MissingSerializer())
    step_labels = rows_field(StepLabelSerializer())
    ratings = rows_field(RatingSerializer())
    corrections = rows_field(CorrectionSerializer())
    critiques = rows_field(TextOfAnswerSerializer())
    demonstration = text_field(required=False, default="", allow_blank=True)
    active_seconds = place_field(required=False, allow_null=True, default=None)


class NewJudgmentSerializer(AnswerSerializer):
    """A judgment to submit."""

    guideline = serializers.IntegerField(
        min_value=1,
        max_value=MOST_CHARACTERS,
        required=False,
        allow_null=True,
        default=None,
        help_text="The version of the rules that it goes by; the newest when left out.",
    )
    rubric = serializers.IntegerField(
        min_value=1,
        max_value=2**63 - 1,
        required=False,
        allow_null=True,
        default=None,
        help_text="The rubric version that the ratings go by; the one in use when left out.",
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


class RubricUsedSerializer(serializers.Serializer[Any]):
    """The rubric version that a judgment goes by."""

    id = serializers.IntegerField(help_text="Of the version.")
    name = serializers.CharField()
    version = serializers.IntegerField()


class RubricScoreSerializer(serializers.Serializer[Any]):
    """An AI annotator's score of one answer by one criterion."""

    answer = serializers.CharField()
    criterion = serializers.CharField(help_text="The criterion's key.")
    value = serializers.FloatField(help_text="The mean over the orders in which it was asked.")
    reason = serializers.CharField()


class JudgmentSerializer(serializers.Serializer[Any]):
    """A judgment. Its annotator sees answers by their names in the assignment, managers by completion id."""

    id = serializers.IntegerField()
    comparison = serializers.IntegerField(allow_null=True, help_text="Null for its annotator.")
    annotator = serializers.CharField()
    guideline = serializers.IntegerField(allow_null=True, help_text="The version that was on screen.")
    rubric = RubricUsedSerializer(allow_null=True, help_text="The one that it rates or scores by.")
    superseded = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    verdict = serializers.ChoiceField(choices=Verdict.choices)
    ranks = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Answer → rank. A partial ranking leaves out the answers below all ranked ones.",
    )
    strength = serializers.IntegerField(allow_null=True)
    comment = serializers.CharField()
    span_flags = SpanSerializer(many=True)
    missing_info = MissingSerializer(many=True)
    step_labels = StepLabelSerializer(many=True)
    ratings = RatingSerializer(many=True)
    rubric_scores = RubricScoreSerializer(many=True, help_text="By AI annotators.")
    corrections = CorrectionSerializer(many=True)
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
            "rubric": _rubric(judgment.rubric),
            "superseded": hasattr(judgment, "superseded_by"),
            "blind": judgment.blind,
            "created_at": judgment.created_at,
            "verdict": judgment.verdict,
            "ranks": {name.of(row.completion_id): row.rank for row in judgment.ranks.all()},
            "strength": judgment.strength,
            "comment": judgment.comment,
            "span_flags": [_span(row, name) for row in judgment.span_flags.all()],
            "missing_info": [_missing(row, name) for row in judgment.missing_info.all()],
            "step_labels": [
                {"answer": name.of(row.step.completion_id), "step": row.step.index, "label": row.label}
                for row in judgment.labelled_steps.all()
            ],
            "ratings": [
                {
                    "answer": name.of(row.completion_id),
                    "criterion": row.criterion.key,
                    "value": row.value,
                }
                for row in judgment.ratings.all()
            ],
            "rubric_scores": [
                {
                    "answer": name.of(row.completion_id),
                    "criterion": row.criterion.key,
                    "value": row.value,
                    "reason": row.reason,
                }
                for row in judgment.rubric_scores.all()
            ],
            "corrections": [_correction(row, name) for row in judgment.corrections.all()],
            "critiques": _texts(judgment.critiques.all(), name),
            "demonstration": demonstration.text if demonstration else "",
            "active_seconds": judgment.active_seconds,
        }


def judgments_with_parts(judgments: QuerySet[Judgment]) -> QuerySet[Judgment]:
    """Select and prefetch everything that `JudgmentSerializer` renders."""
    return (
        judgments.select_related("annotator", "guideline", "rubric__rubric", "demonstration", "superseded_by")
        .prefetch_related(None)
        .prefetch_related(
            "ranks",
            "span_flags__category",
            "span_flags__completion",
            "missing_info__category",
            "corrections__edits__continuation",
            "corrections__edits__span_flag__category",
            "critiques",
            "ratings__criterion",
            "rubric_scores__criterion",
            "labelled_steps__step",
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
        step_labels=tuple(
            StepLabelInput(
                completion_id=read.answer(row["answer"], f"step_labels.{index}"),
                step=row["step"],
                label=row["label"],
            )
            for index, row in enumerate(values["step_labels"])
        ),
        ratings=tuple(read.rating(row, f"ratings.{index}") for index, row in enumerate(values["ratings"])),
        corrections=tuple(
            read.correction(row, f"corrections.{index}") for index, row in enumerate(values["corrections"])
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

    @property
    def are_ids(self) -> bool:
        """Return whether the reader sees completion ids."""
        return self._assignment is None

    def of(self, completion_id: int) -> str:
        return candidate_token(self._assignment, completion_id) if self._assignment else str(completion_id)


class _Reader:
    """Resolves names to rows of one assignment and its project."""

    def __init__(self, assignment: Assignment) -> None:
        configured = configuration_of(assignment.comparison.project)
        self._answers = tokens_of(assignment)
        self._categories = {category.key: category.pk for category in configured.categories}
        self._criteria = {criterion.key: criterion.pk for criterion in configured.criteria}
        self._texts: dict[int, str] = {}

    def answer(self, name: str, where: str) -> int:
        return _known(
            self._answers,
            name,
            where,
            "unknown_response",
            _("There is no response %(name)r in this assignment."),
        )

    def category(self, name: str, where: str) -> int:
        return _known(
            self._categories, name, where, "unknown_category", _("The project has no category %(name)r.")
        )

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

    def correction(self, row: Mapping[str, Any], where: str) -> CorrectionInput:
        completion = self.answer(row["answer"], where)
        edits = [self._edit(edit, completion, f"{where}.edits") for edit in row["edits"]]
        return CorrectionInput(completion_id=completion, text=row["text"], edits=tuple(edits))

    def _edit(self, row: Mapping[str, Any], completion: int, where: str) -> Edit:
        span = row["span"]
        text = self._text(completion)
        return Edit(
            start=row["start"],
            end=row["end"],
            quote=text[row["start"] : row["end"]],
            replacement=row["replacement"],
            origin=Origin(
                continuation=row["continuation"],
                span=span and (self.category(span["category"], where), span["start"], span["end"]),
            ),
        )

    def _text(self, completion: int) -> str:
        if completion not in self._texts:
            self._texts[completion] = Completion.objects.values_list("text", flat=True).get(pk=completion)
        return self._texts[completion]

    def rating(self, row: Mapping[str, Any], where: str) -> RatingInput:
        return RatingInput(
            completion_id=self.answer(row["answer"], f"{where}.answer"),
            criterion_id=_known(
                self._criteria,
                row["criterion"],
                f"{where}.criterion",
                "unknown_criterion",
                _("The project has no criterion %(name)r."),
            ),
            value=row["value"],
        )


def _known(rows: Mapping[str, int], name: str, where: str, code: str, message: str) -> int:
    if name not in rows:
        raise InvalidAnswer(code, message, field=where, name=name[:60])
    return rows[name]


def _rubric(version: RubricVersion | None) -> dict[str, Any] | None:
    if version is None:
        return None
    return {"id": version.pk, "name": version.rubric.name, "version": version.number}


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


def _correction(row: Correction, name: _Names) -> dict[str, Any]:
    edits = [_edit(edit, name) for edit in row.edits.all()]
    return {"answer": name.of(row.completion_id), "text": row.text, "edits": edits}


def _edit(row: CorrectionEdit, name: _Names) -> dict[str, Any]:
    span, model = row.span_flag, row.continuation
    shown = {
        "start": row.start,
        "end": row.end,
        "quote": row.quote,
        "replacement": row.replacement,
        "continuation": row.continuation_id,
        "span": span and {"category": span.category.key, "start": span.start, "end": span.end},
    }
    # How a model was sampled may tell an annotator which one it is.
    if model is not None and name.are_ids:
        shown |= {"seed": model.seed, "sampling": model.sampling}
    return shown


def _texts(rows: Any, name: _Names) -> list[dict[str, str]]:
    return [{"answer": name.of(row.completion_id), "text": row.text} for row in rows]
