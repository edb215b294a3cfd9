"""Bodies of the operations on side-by-side comparisons, and the checkpoints that they name."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.choices import Verdict
from annotation.models import Project, User
from training.forms.comparing import DEFAULT_TOP_P, LONGEST_PROMPT
from training.models import Checkpoint, SideBySide
from training.selectors.projects import checkpoints_of, comparable_checkpoints
from training.services.comparing.side_by_side import Sampling
from training.views.comparing.responses import responses_of

_VERDICTS = (Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


def _text(**more: Any) -> serializers.CharField:
    return serializers.CharField(max_length=LONGEST_PROMPT, trim_whitespace=False, **more)


def named_checkpoints(
    project: Project,
    names: Sequence[str],
    *,
    writing: bool = True,
    field: str = "checkpoints",
    user: User | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints with these names. Raises `ValidationError` for one that the project lacks.

    user: also those that this manager may compare with the project's.
    """
    checkpoints = comparable_checkpoints(project, user) if user else checkpoints_of(project, writing=writing)
    known = {checkpoint.name: checkpoint for checkpoint in checkpoints}
    if unknown := [name for name in names if name not in known]:
        raise serializers.ValidationError(
            {field: [_("This project has no such checkpoint: %(name)r.") % {"name": unknown[0][:60]}]}
        )
    return [known[name] for name in names]


class BesideAnswerSerializer(serializers.Serializer[Any]):
    """One of the answers. Where names are hidden, `checkpoint` and figures are null until the vote."""

    position = serializers.IntegerField()
    checkpoint = serializers.CharField(allow_null=True)
    written = serializers.BooleanField()
    text = serializers.CharField()
    score = serializers.FloatField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True)


class BesideSerializer(serializers.Serializer[Any]):
    """A question and the answers to it beside each other."""

    page = serializers.CharField(help_text="Its part of addresses.")
    messages = serializers.ListField(child=serializers.DictField())
    prompt_set = serializers.IntegerField(allow_null=True, help_text="The set whose prompts are asked.")
    blind = serializers.BooleanField(help_text="Whether names are hidden until the vote.")
    hidden = serializers.BooleanField(help_text="Whether names are hidden now.")
    seed = serializers.IntegerField()
    sampling = serializers.DictField()
    answers = BesideAnswerSerializer(many=True)
    judgment = serializers.IntegerField(allow_null=True, help_text="The vote.")
    comparison = serializers.IntegerField(allow_null=True, help_text="What the vote judges.")
    counts = serializers.BooleanField(
        allow_null=True,
        help_text="Whether the vote was blind: others are left out of training and win rates.",
    )
    created_at = serializers.DateTimeField()

    def to_representation(self, shown: SideBySide) -> dict[str, Any]:
        """Nothing of a model while names are hidden."""
        texts = dict(shown.answers.values_list("position", "text"))
        return {
            "page": shown.slug,
            "messages": shown.messages,
            "prompt_set": shown.prompt_set_id,
            "blind": shown.blind,
            "hidden": shown.is_hidden,
            "seed": shown.seed,
            "sampling": shown.sampling,
            "answers": [
                {
                    "position": response.position,
                    "checkpoint": response.name or None,
                    "written": response.written,
                    "text": texts[response.position],
                    "score": response.answer.score if response.answer else None,
                    "seconds": response.answer.seconds if response.answer else None,
                }
                for response in responses_of(shown)
            ],
            "judgment": shown.judgment_id,
            "comparison": shown.judgment.comparison_id if shown.judgment else None,
            "counts": shown.judgment.blind if shown.judgment else None,
            "created_at": shown.created_at,
        }


class SettingsSerializer(serializers.Serializer[Any]):
    """Settings of a generation."""

    temperature = serializers.FloatField(min_value=0, max_value=2, required=False, default=0.7)
    top_p = serializers.FloatField(min_value=0.01, max_value=1, required=False, default=DEFAULT_TOP_P)
    max_tokens = serializers.IntegerField(min_value=1, max_value=1024, required=False, default=256)
    system = _text(
        required=False, default="", allow_blank=True, help_text="Replaces the system prompt; empty keeps it."
    )

    @staticmethod
    def sampling(values: Mapping[str, Any]) -> Sampling:
        """Return the sampling settings of a read body."""
        names = ("temperature", "top_p", "max_tokens")
        return Sampling(**{name: values[name] for name in names})


class AskSerializer(SettingsSerializer):
    """A prompt of the project, or a text, for two to four checkpoints."""

    checkpoints = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=2, max_length=4
    )
    prompt = serializers.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    text = _text(required=False, help_text="Goes before `prompt`.")
    scorer = serializers.CharField(required=False, max_length=100, help_text="A reward model.")
    prompt_set = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=2**63 - 1,
        help_text="A prompt set: the next prompt without a vote on these checkpoints. Goes before `text`.",
    )
    seed = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False, default=0)
    blind = serializers.BooleanField(
        required=False,
        default=True,
        help_text="False shows names before the vote, which is then left out of training and win rates.",
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Something there must be to ask."""
        if not {"prompt", "prompt_set"} & set(values) and not values.get("text", "").strip():
            raise serializers.ValidationError({"text": [_("Name a prompt of the project, or type one.")]})
        return values


class AgainSerializer(SettingsSerializer):
    """Settings of the same chat again."""

    seed = serializers.IntegerField(
        min_value=0,
        max_value=2**31 - 1,
        required=False,
        allow_null=True,
        default=None,
        help_text="A new random one when left out.",
    )
    blind = serializers.BooleanField(required=False, default=True)


class ContinueSerializer(serializers.Serializer[Any]):
    """The next turn."""

    text = _text()
    position = serializers.IntegerField(
        min_value=1,
        max_value=4,
        required=False,
        allow_null=True,
        default=None,
        help_text="All go on from this answer; each from its own when left out.",
    )


class BesideVoteSerializer(serializers.Serializer[Any]):
    """A vote on answers beside each other."""

    verdict = serializers.ChoiceField(choices=[choice.value for choice in _VERDICTS])
    ranks = serializers.DictField(
        child=serializers.IntegerField(min_value=1, max_value=4),
        required=False,
        default=dict,
        help_text="Position → rank, 1 best, equal numbers tied. For the verdict `ranked`. Of three or more "
        "the best may be ranked alone: the others are below them, without an order.",
    )

    def validate_ranks(self, value: dict[str, int]) -> dict[int, int]:
        """Positions are numbers, which JSON writes as texts."""
        if not all(name.isascii() and name.isdecimal() and len(name) < 3 for name in value):
            raise serializers.ValidationError(_("Positions are numbers from 1."))
        return {int(name): rank for name, rank in value.items()}
