"""Judgments as they are sent and read."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any, TypeVar, cast

from django.db.models import QuerySet
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from annotation.api import fields
from annotation.choices import SpanRelation, StepLabel, Verdict
from annotation.errors import InvalidAnswer
from annotation.models import (
    Assignment,
    Completion,
    Judgment,
    RubricVersion,
)
from annotation.record.judgment import (
    AnswerPart,
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    Origin,
    RatingPart,
    SpanLink,
    SpanPart,
    SpanPlace,
    StepLabelPart,
    named_place,
)
from annotation.selectors.configuration import configuration_of
from annotation.selectors.records import records_of
from annotation.services.assignments.display_order import candidate_token, tokens_of

# Parts of a judgment as they are sent and read: spans, missing information, steps, ratings, texts.

MOST_CHARACTERS = 2**31 - 1
_MOST_ROWS = 1000
_ANSWER = "Which answer: its name in the assignment."


def text_field(**more: Any) -> serializers.CharField:
    """Return a field for a text of an annotator."""
    return serializers.CharField(trim_whitespace=False, max_length=500_000, **more)


def place_field(**more: Any) -> serializers.IntegerField:
    """Return a field for a position in a text, or a number of rows."""
    return serializers.IntegerField(min_value=0, max_value=MOST_CHARACTERS, **more)


def rows_field(child: serializers.Serializer[Any]) -> serializers.ListSerializer[Any]:
    """Return a field for a bounded list of parts, none by default."""
    return serializers.ListSerializer(child=child, required=False, default=list, max_length=_MOST_ROWS)


class EvidenceSerializer(serializers.Serializer[Any]):
    """A sentence of a context passage, both counted from 0; without a sentence, the passage's title."""

    passage = place_field()
    sentence = place_field(required=False, allow_null=True, default=None)


class SpanLinkSerializer(serializers.Serializer[Any]):
    """What a span is to another one of the judgment."""

    kind = fields.choice(SpanRelation.choices)
    to = fields.integer("Place of the other among the spans, from 0.", least=0, most=_MOST_ROWS)


class SpanSerializer(serializers.Serializer[Any]):
    """A span of one answer: code points, half open."""

    answer = fields.text(_ANSWER)
    category = fields.text("The category's key.")
    start = place_field()
    end = place_field()
    quote = text_field(help_text="The text that it marks; one that does not stand there is refused.")
    text_hash = fields.text("SHA-256 of the answer on whose text the offsets were counted.", most=64)
    severity = fields.integer(least=1, most=9, allow_null=True, default=None)
    note = text_field(required=False, default="", allow_blank=True)
    relations: Any = serializers.ListSerializer(
        child=SpanLinkSerializer(), required=False, default=list, max_length=50
    )


class MissingSerializer(serializers.Serializer[Any]):
    """Missing information of an answer: in words, by evidence, or both."""

    answer = fields.text(_ANSWER)
    category = fields.text("The category's key.")
    text = text_field(required=False, default="", allow_blank=True)
    insert_at = place_field(
        required=False, allow_null=True, default=None, help_text="Before this code point of the answer."
    )
    evidence = rows_field(EvidenceSerializer())


class StepLabelSerializer(serializers.Serializer[Any]):
    """The label of one step of an answer that is an agent's trace or a session."""

    answer = fields.text(_ANSWER)
    step = place_field(help_text="Its number among the answer's steps, from 0.")
    label = fields.choice(StepLabel.choices)  # type: ignore[assignment]


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {"type": "number"},
            {"type": "array", "items": {"type": "string"}},
        ]
    }
)
class AnswerValueField(serializers.JSONField):
    """The value that answers a question."""

    def to_internal_value(self, data: Any) -> Any:
        """Return a value that the record takes. Refuse any other JSON."""
        value = super().to_internal_value(data)
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return value
        raise serializers.ValidationError(_("Give a text, a number, or a list of texts."))


class NamedSpanSerializer(serializers.Serializer[Any]):
    """A span of the same answer and judgment."""

    category = fields.text("The category's key.")
    start = place_field()
    end = place_field()


class QuestionAnswerSerializer(serializers.Serializer[Any]):
    """The answer to one question of the project."""

    question = fields.text("The question's key.", most=60)
    completion = fields.text(
        "Of a question about each response, step or span: which answer, by its name in the assignment; "
        "else null.",
        allow_null=True,
        default=None,
    )
    step = place_field(
        required=False,
        allow_null=True,
        default=None,
        help_text="Of a question about each step: its number among the answer's steps, from 0; else null.",
    )
    span = NamedSpanSerializer(
        required=False,
        allow_null=True,
        default=None,
        help_text="Of a question about each span: the span of this judgment; else null.",
    )
    value = AnswerValueField(
        help_text="The key of a choice, a list of keys, the point of a scale as a number, a number, a text, "
        "or a date as 2026-01-31.",
    )
    version = fields.integer(
        "The version that is answered; the newest when left out.",
        least=1,
        most=MOST_CHARACTERS,
        allow_null=True,
        default=None,
    )


class RatingSerializer(serializers.Serializer[Any]):
    """The rating of one answer on one criterion."""

    answer = fields.text(_ANSWER)
    criterion = fields.text("The criterion's key.")
    value = fields.integer(least=0, most=7)


class TextOfAnswerSerializer(serializers.Serializer[Any]):
    """A text about one answer: its critique or its corrected version."""

    answer = fields.text(_ANSWER)
    text = text_field(allow_blank=True)


class EditSerializer(serializers.Serializer[Any]):
    """A stretch of an answer, in code points, half open, that was replaced."""

    start = place_field()
    end = place_field()
    quote = text_field(read_only=True, help_text="What stood there.")
    replacement = text_field(allow_blank=True)
    continuation = fields.key(
        "The model's continuation that the replacement is a part of; null: the annotator wrote it.",
        allow_null=True,
        default=None,
    )
    span = NamedSpanSerializer(
        required=False, allow_null=True, default=None, help_text="The span that the edit mends."
    )
    seed = fields.integer("Of the continuation; for managers.", read_only=True)
    sampling = serializers.DictField(read_only=True, help_text="Of the continuation; for managers.")


class CorrectionSerializer(TextOfAnswerSerializer):
    """An answer's corrected version, and the edits that make it."""

    edits = rows_field(EditSerializer(help_text="In order; left out, those of a comparison of both texts."))


class VerdictSerializer(serializers.Serializer[Any]):
    """A preference between answers."""

    verdict = fields.choice(Verdict.choices)
    ranks = serializers.DictField(
        child=fields.integer(least=1, most=1000),
        required=False,
        default=dict,
        help_text="Answer → rank, 1 best, equal numbers tied. For the verdict `ranked`. Of three or more the "
        "best may be ranked alone: the others are below them, without an order.",
    )


class AnswerSerializer(VerdictSerializer):
    """The content of one submission."""

    strength = fields.integer(least=1, most=4, allow_null=True, default=None)
    comment = text_field(required=False, default="", allow_blank=True)
    span_flags = rows_field(SpanSerializer())
    missing_info = rows_field(MissingSerializer())
    step_labels = rows_field(StepLabelSerializer())
    ratings = rows_field(RatingSerializer())
    corrections = rows_field(CorrectionSerializer())
    critiques = rows_field(TextOfAnswerSerializer())
    answers = rows_field(QuestionAnswerSerializer())
    demonstration = text_field(required=False, default="", allow_blank=True)
    active_seconds = place_field(required=False, allow_null=True, default=None)


class NewJudgmentSerializer(AnswerSerializer):
    """A judgment to submit."""

    guideline = fields.integer(
        "The version of the rules that it goes by; the newest when left out.",
        least=1,
        most=MOST_CHARACTERS,
        allow_null=True,
        default=None,
    )
    rubric = fields.key(
        "The rubric version that the ratings go by; the one in use when left out.",
        allow_null=True,
        default=None,
    )
    stands_on = fields.integer(
        "The judgment that it changes, 0 for none: 409 when another stands. Left out, whatever "
        "stands is superseded.",
        least=0,
        most=2**63 - 1,
        allow_null=True,
        default=None,
    )


class RubricUsedSerializer(serializers.Serializer[Any]):
    """The rubric version that a judgment goes by."""

    id = fields.integer("Of the version.")
    name = fields.text()
    version = fields.integer()


class RubricScoreSerializer(serializers.Serializer[Any]):
    """An AI annotator's score of one answer by one criterion."""

    answer = fields.text()
    criterion = fields.text("The criterion's key.")
    value = fields.number("The mean over the orders in which it was asked.")
    reason = fields.text()


class JudgmentListSerializer(serializers.ListSerializer[Any]):
    """Judgments of a page, whose records are read together."""

    def to_representation(self, data: Any) -> list[Any]:
        rows = list(data)
        cast(JudgmentSerializer, self.child).records = records_of([row.pk for row in rows])
        return super().to_representation(rows)


class JudgmentSerializer(serializers.Serializer[Any]):
    """A judgment. Its annotator sees answers by their names in the assignment, managers by completion id,
    participants of a calibration session by their numbers."""

    id = fields.integer()
    comparison = fields.integer(
        "Null for its annotator and participants of a calibration session.", allow_null=True
    )
    annotator = fields.text()
    guideline = fields.integer("The version that was on screen.", allow_null=True)
    rubric = RubricUsedSerializer(allow_null=True, help_text="The one that it rates or scores by.")
    superseded = fields.flag()
    created_at = fields.time()
    verdict = fields.choice(Verdict.choices)
    ranks = serializers.DictField(
        child=fields.integer(),
        help_text="Answer → rank. A partial ranking leaves out the answers below all ranked ones.",
    )
    strength = fields.integer(allow_null=True)
    comment = fields.text()
    span_flags = SpanSerializer(many=True)
    missing_info = MissingSerializer(many=True)
    step_labels = StepLabelSerializer(many=True)
    ratings = RatingSerializer(many=True)
    rubric_scores = RubricScoreSerializer(many=True, help_text="By AI annotators.")
    corrections = CorrectionSerializer(many=True)
    critiques = TextOfAnswerSerializer(many=True)
    answers = QuestionAnswerSerializer(many=True, help_text="To the questions of the project.")
    demonstration = fields.text()
    active_seconds = fields.integer(allow_null=True)
    blind = fields.flag(
        "False where the annotator knew which model wrote which response: training leaves it out."
    )

    in_bulk = fields.flag("True where it was given to several comparisons at once.")

    records: Mapping[int, JudgmentRecord] = {}
    """Records of a page's judgments, which their list reads together."""

    class Meta:
        list_serializer_class = JudgmentListSerializer

    def to_representation(self, judgment: Judgment) -> dict[str, Any]:
        record = self.records.get(judgment.pk) or records_of([judgment.pk])[judgment.pk]
        assignment: Assignment | None = self.context.get("assignment")
        numbers: Mapping[str, str] | None = self.context.get("numbers")
        name = _Names(assignment, numbers)
        return {
            "id": judgment.pk,
            "comparison": judgment.comparison_id if name.are_ids else None,
            "annotator": judgment.annotator.username,
            "guideline": judgment.guideline.version if judgment.guideline else None,
            "rubric": _rubric(judgment.rubric),
            "superseded": hasattr(judgment, "superseded_by"),
            "blind": judgment.blind,
            "in_bulk": judgment.in_bulk,
            "created_at": judgment.created_at,
            "verdict": record.verdict,
            "ranks": {name.of(completion): rank for completion, rank in record.ranks.items()},
            "strength": record.strength,
            "comment": record.comment,
            "span_flags": [_answered(part, name, but=("parent", "is_liked")) for part in record.spans],
            "missing_info": [_missing(part, name) for part in record.missing],
            "step_labels": [_answered(part, name) for part in record.step_labels],
            "ratings": [_answered(part, name, but=("scale",)) for part in record.ratings],
            "rubric_scores": [
                _answered(part, name, but=("scale", "weight")) for part in record.rubric_scores
            ],
            "corrections": [_correction(part, name) for part in record.corrections],
            "critiques": [_answered(part, name) for part in record.critiques],
            "answers": [
                {
                    **asdict(part),
                    "completion": part.completion and name.of(part.completion),
                    "span": _named(part.span),
                }
                for part in record.answers
            ],
            "demonstration": record.demonstration,
            "active_seconds": record.active_seconds,
        }


def judgments_with_parts(judgments: QuerySet[Judgment]) -> QuerySet[Judgment]:
    """Select everything that `JudgmentSerializer` renders besides the records."""
    related = ("annotator", "guideline", "rubric__rubric", "superseded_by")
    return judgments.select_related(*related).prefetch_related(None)


def answer_of(values: Mapping[str, Any], assignment: Assignment) -> JudgmentRecord:
    """Convert a request body for the service. Refuse names that the assignment and its project lack."""
    read = _Reader(assignment)
    return JudgmentRecord(
        verdict=values["verdict"],
        ranks={read.answer(name, "ranks"): rank for name, rank in values["ranks"].items()},
        strength=values["strength"],
        comment=values["comment"],
        spans=tuple(read.span(row, f"span_flags.{index}") for index, row in enumerate(values["span_flags"])),
        missing=tuple(
            read.missing(row, f"missing_info.{index}") for index, row in enumerate(values["missing_info"])
        ),
        step_labels=tuple(
            StepLabelPart(
                completion=read.answer(row["answer"], f"step_labels.{index}"),
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
            CritiquePart(completion=read.answer(row["answer"], f"critiques.{index}"), text=row["text"])
            for index, row in enumerate(values["critiques"])
        ),
        answers=tuple(
            AnswerPart(
                question=row["question"],
                completion=(
                    None
                    if row["completion"] is None
                    else read.answer(row["completion"], f"answers.{index}.completion")
                ),
                value=row["value"],
                version=row["version"],
                step=row["step"],
                span=read.place(row["span"], f"answers.{index}.span"),
            )
            for index, row in enumerate(values["answers"])
        ),
        demonstration=values["demonstration"],
        active_seconds=values["active_seconds"],
    )


class _Names:
    """Names of the answers for the reader: their tokens in an assignment, numbers, or completion ids."""

    def __init__(self, assignment: Assignment | None, numbers: Mapping[str, str] | None = None) -> None:
        self._assignment, self._numbers = assignment, numbers

    @property
    def are_ids(self) -> bool:
        """Return whether the reader sees completion ids."""
        return self._assignment is None and self._numbers is None

    def of(self, completion: str) -> str:
        if self._numbers is not None:
            return self._numbers[completion]
        return candidate_token(self._assignment, int(completion)) if self._assignment else completion


class _Reader:
    """Resolves names to rows of one assignment and its project."""

    def __init__(self, assignment: Assignment) -> None:
        configured = configuration_of(assignment.comparison.project)
        self._answers = {token: str(pk) for token, pk in tokens_of(assignment).items()}
        self._categories = {category.key: category for category in configured.categories}
        self._criteria = {criterion.key: criterion for criterion in configured.criteria}
        self._texts: dict[str, str] = {}

    def answer(self, name: str, where: str) -> str:
        return _known(
            self._answers,
            name,
            where,
            "unknown_response",
            _("There is no response %(name)r in this assignment."),
        )

    def category(self, name: str, where: str) -> str:
        message = _("The project has no category %(name)r.")
        return _known(self._categories, name, where, "unknown_category", message).key

    def place(self, row: Mapping[str, Any] | None, where: str) -> SpanPlace | None:
        """Return what names a span among those of its answer."""
        if row is None:
            return None
        return self.category(row["category"], where), row["start"], row["end"]

    def span(self, row: Mapping[str, Any], where: str) -> SpanPart:
        return SpanPart(
            completion=self.answer(row["answer"], f"{where}.answer"),
            category=self.category(row["category"], f"{where}.category"),
            start=row["start"],
            end=row["end"],
            quote=row["quote"],
            text_hash=row["text_hash"],
            severity=row["severity"],
            note=row["note"],
            relations=tuple(SpanLink(**link) for link in row["relations"]),
        )

    def missing(self, row: Mapping[str, Any], where: str) -> MissingPart:
        return MissingPart(
            completion=self.answer(row["answer"], f"{where}.answer"),
            category=self.category(row["category"], f"{where}.category"),
            text=row["text"],
            insert_at=row["insert_at"],
            evidence=tuple(EvidencePointer(**pointer) for pointer in row["evidence"]),
        )

    def correction(self, row: Mapping[str, Any], where: str) -> CorrectionPart:
        completion = self.answer(row["answer"], where)
        edits = [self._edit(edit, completion, f"{where}.edits") for edit in row["edits"]]
        return CorrectionPart(completion=completion, text=row["text"], edits=tuple(edits))

    def _edit(self, row: Mapping[str, Any], completion: str, where: str) -> Edit:
        text = self._text(completion)
        return Edit(
            start=row["start"],
            end=row["end"],
            quote=text[row["start"] : row["end"]],
            replacement=row["replacement"],
            origin=Origin(
                continuation=row["continuation"],
                span=self.place(row["span"], where),
            ),
        )

    def _text(self, completion: str) -> str:
        if completion not in self._texts:
            self._texts[completion] = Completion.objects.values_list("text", flat=True).get(
                pk=int(completion)
            )
        return self._texts[completion]

    def rating(self, row: Mapping[str, Any], where: str) -> RatingPart:
        completion = self.answer(row["answer"], f"{where}.answer")
        criterion = _known(
            self._criteria,
            row["criterion"],
            f"{where}.criterion",
            "unknown_criterion",
            _("The project has no criterion %(name)r."),
        )
        return RatingPart(
            completion=completion,
            criterion=criterion.key,
            scale=criterion.scale,
            value=row["value"],
        )


T = TypeVar("T")


def _known(rows: Mapping[str, T], name: str, where: str, code: str, message: str) -> T:
    if name not in rows:
        raise InvalidAnswer(code, message, field=where, name=name[:60])
    return rows[name]


def _rubric(version: RubricVersion | None) -> dict[str, Any] | None:
    if version is None:
        return None
    return {"id": version.pk, "name": version.rubric.name, "version": version.number}


def _answered(part: Any, name: _Names, *, but: Collection[str] = ()) -> dict[str, Any]:
    """Return a part as the API has it, by the name of its answer, without the fields `but`."""
    values = {field: value for field, value in asdict(part).items() if field not in but}
    return {"answer": name.of(values.pop("completion")), **values}


def _named(span: SpanPlace | None) -> dict[str, Any] | None:
    return span and named_place(span)


def _missing(part: MissingPart, name: _Names) -> dict[str, Any]:
    evidence = [{"passage": pointer.passage, "sentence": pointer.sentence} for pointer in part.evidence]
    return {**_answered(part, name), "evidence": evidence}


def _correction(part: CorrectionPart, name: _Names) -> dict[str, Any]:
    edits = [_edit(edit, name) for edit in part.edits]
    return {"answer": name.of(part.completion), "text": part.text, "edits": edits}


def _edit(edit: Edit, name: _Names) -> dict[str, Any]:
    origin = edit.origin
    shown = {
        "start": edit.start,
        "end": edit.end,
        "quote": edit.quote,
        "replacement": edit.replacement,
        "continuation": origin.continuation,
        "span": _named(origin.span),
    }
    # How a model was sampled may tell an annotator which one it is.
    if origin.continuation is not None and name.are_ids:
        shown |= {"seed": origin.seed, "sampling": origin.sampling}
    return shown
