"""Parts of a judgment as they are sent and read: spans, missing information, steps, ratings, texts."""

from typing import Any

from rest_framework import serializers

from annotation.choices import StepLabel

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


class SpanSerializer(serializers.Serializer[Any]):
    """A span of one answer: code points, half open."""

    answer = serializers.CharField(help_text=_ANSWER)
    category = serializers.CharField(help_text="The category's key.")
    start = place_field()
    end = place_field()
    quote = text_field(help_text="The text that it marks; one that does not stand there is refused.")
    text_hash = serializers.CharField(
        max_length=64, help_text="SHA-256 of the answer on whose text the offsets were counted."
    )
    severity = serializers.IntegerField(
        min_value=1, max_value=9, required=False, allow_null=True, default=None
    )
    note = text_field(required=False, default="", allow_blank=True)


class MissingSerializer(serializers.Serializer[Any]):
    """Missing information of an answer: in words, by evidence, or both."""

    answer = serializers.CharField(help_text=_ANSWER)
    category = serializers.CharField(help_text="The category's key.")
    text = text_field(required=False, default="", allow_blank=True)
    insert_at = place_field(
        required=False, allow_null=True, default=None, help_text="Before this code point of the answer."
    )
    evidence = rows_field(EvidenceSerializer())


class StepLabelSerializer(serializers.Serializer[Any]):
    """The label of one step of an answer that is an agent's trace or a session."""

    answer = serializers.CharField(help_text=_ANSWER)
    step = place_field(help_text="Its number among the answer's steps, from 0.")
    label = serializers.ChoiceField(choices=StepLabel.choices)  # type: ignore[assignment]


class RatingSerializer(serializers.Serializer[Any]):
    """The rating of one answer on one criterion."""

    answer = serializers.CharField(help_text=_ANSWER)
    criterion = serializers.CharField(help_text="The criterion's key.")
    value = serializers.IntegerField(min_value=0, max_value=7)


class TextOfAnswerSerializer(serializers.Serializer[Any]):
    """A text about one answer: its critique or its corrected version."""

    answer = serializers.CharField(help_text=_ANSWER)
    text = text_field(allow_blank=True)


class MendedSpanSerializer(serializers.Serializer[Any]):
    """A span of the same answer and judgment that an edit mends."""

    category = serializers.CharField(help_text="The category's key.")
    start = place_field()
    end = place_field()


class EditSerializer(serializers.Serializer[Any]):
    """A stretch of an answer, in code points, half open, that was replaced."""

    start = place_field()
    end = place_field()
    quote = text_field(read_only=True, help_text="What stood there.")
    replacement = text_field(allow_blank=True)
    continuation = serializers.IntegerField(
        min_value=1,
        max_value=2**63 - 1,
        required=False,
        allow_null=True,
        default=None,
        help_text="The model's continuation that the replacement is a part of; null: the annotator wrote it.",
    )
    span = MendedSpanSerializer(required=False, allow_null=True, default=None)
    seed = serializers.IntegerField(read_only=True, help_text="Of the continuation; for managers.")
    sampling = serializers.DictField(read_only=True, help_text="Of the continuation; for managers.")


class CorrectionSerializer(TextOfAnswerSerializer):
    """An answer's corrected version, and the edits that make it."""

    edits = rows_field(EditSerializer(help_text="In order; left out, those of a comparison of both texts."))
