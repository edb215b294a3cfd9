"""Checkpoints that answer beside each other, and the votes on that."""

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body, storable
from annotation.choices import Verdict
from annotation.errors import Refusal
from annotation.models import Prompt
from training.engine import EngineError
from training.forms import LONGEST_PROMPT
from training.models import Checkpoint, SideBySide
from training.selectors import checkpoints_of
from training.services.side_by_side import (
    Sampling,
    ask_beside,
    continue_beside,
    reveal_names,
    vote_beside,
    write_answers,
)
from training.views.compare.access import trouble_of
from training.views.compare.columns import columns_of

_SAID = (Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


def _text(**more: Any) -> serializers.CharField:
    return serializers.CharField(max_length=LONGEST_PROMPT, trim_whitespace=False, **more)


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
            "blind": shown.blind,
            "hidden": shown.is_hidden,
            "seed": shown.seed,
            "sampling": shown.sampling,
            "answers": [
                {
                    "position": one.position,
                    "checkpoint": one.name or None,
                    "written": one.written,
                    "text": texts[one.position],
                    "score": one.answer.score if one.answer else None,
                    "seconds": one.answer.seconds if one.answer else None,
                }
                for one in columns_of(shown)
            ],
            "judgment": shown.judgment_id,
            "comparison": shown.judgment.comparison_id if shown.judgment else None,
            "counts": shown.judgment.blind if shown.judgment else None,
            "created_at": shown.created_at,
        }


class AskSerializer(serializers.Serializer[Any]):
    """What is asked of whom: a prompt of the project, or a text."""

    checkpoints = serializers.ListField(
        child=serializers.CharField(max_length=100), min_length=2, max_length=4
    )
    prompt = serializers.IntegerField(required=False, min_value=1, max_value=2**63 - 1)
    text = _text(required=False, help_text="Goes before `prompt`.")
    scorer = serializers.CharField(required=False, max_length=100, help_text="A reward model.")
    temperature = serializers.FloatField(min_value=0, max_value=2, required=False, default=0.7)
    max_tokens = serializers.IntegerField(min_value=1, max_value=1024, required=False, default=256)
    seed = serializers.IntegerField(min_value=0, max_value=2**31 - 1, required=False, default=0)
    blind = serializers.BooleanField(
        required=False,
        default=True,
        help_text="False shows names before the vote, which is then left out of training and win rates.",
    )

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Something there must be to ask."""
        if "prompt" not in values and not values.get("text", "").strip():
            raise serializers.ValidationError({"text": ["Name a prompt of the project, or type one."]})
        return values


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

    verdict = serializers.ChoiceField(choices=[one.value for one in _SAID])
    ranks = serializers.DictField(
        child=serializers.IntegerField(min_value=1, max_value=4),
        required=False,
        default=dict,
        help_text="Position → rank, 1 best, equal numbers tied. For the verdict `ranked`.",
    )

    def validate_ranks(self, value: dict[str, int]) -> dict[int, int]:
        """Positions are numbers, which JSON writes as texts."""
        if not all(name.isascii() and name.isdecimal() and len(name) < 3 for name in value):
            raise serializers.ValidationError("Positions are numbers from 1.")
        return {int(name): rank for name, rank in value.items()}


class BesidesView(ListView, ProjectView):
    """What was asked beside each other in a project. For managers."""

    serializer_class = BesideSerializer
    queryset = SideBySide.objects.none()

    def rows(self, asked: Mapping[str, Any]) -> QuerySet[Any]:
        """All of them."""
        return self.project.side_by_sides.select_related("judgment")

    @extend_schema(operation_id="beside_list", tags=["checkpoints"], responses=BesideSerializer(many=True))
    def get(self, request: Request, slug: str) -> Response:
        """List what was asked of several checkpoints at once, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="beside_ask",
        tags=["checkpoints"],
        request=AskSerializer,
        responses={201: BesideSerializer},
    )
    def post(self, request: Request, slug: str) -> Response:
        """Write a question down for two to four checkpoints; `write` has it answered."""
        told = read_body(AskSerializer, request)
        if not storable(told.get("text", "")):
            raise serializers.ValidationError({"text": ["It holds a character that no text has."]})
        question: Prompt | str = told.get("text", "").strip()
        if not question:
            question = self._prompt(told["prompt"])
        made = ask_beside(
            project=self.project,
            created_by=self.user,
            checkpoints=[self._checkpoint(name, writing=True) for name in told["checkpoints"]],
            question=question,
            sampling=Sampling(temperature=told["temperature"], max_tokens=told["max_tokens"]),
            seed=told["seed"],
            scorer=self._checkpoint(told["scorer"], writing=False) if "scorer" in told else None,
            blind=told["blind"],
        )
        return Response(BesideSerializer(made).data, status=201)

    def _prompt(self, pk: int) -> Prompt:
        found = self.project.prompts.filter(pk=pk).first()
        if found is None:
            raise serializers.ValidationError({"prompt": ["This project has no such prompt."]})
        return found

    def _checkpoint(self, name: str, *, writing: bool) -> Checkpoint:
        found = next((one for one in checkpoints_of(self.project, writing=writing) if one.name == name), None)
        if found is None:
            field = "checkpoints" if writing else "scorer"
            raise serializers.ValidationError(
                {field: [f"This project has no such checkpoint: {name[:60]!r}."]}
            )
        return found


class OfBeside(ProjectView):
    """Something of the page in the address. For managers."""

    def shown(self, page: str) -> SideBySide:
        """The page in the address."""
        if not page.isascii():
            raise Http404
        rows = self.project.side_by_sides.select_related("project", "scorer", "continues", "judgment")
        return get_object_or_404(rows, slug=page)


class BesideView(OfBeside):
    """Answers beside each other. For managers."""

    @extend_schema(operation_id="beside_read", tags=["checkpoints"], responses=BesideSerializer)
    def get(self, request: Request, slug: str, page: str) -> Response:
        """Read the answers as far as they are written; where names are hidden, without names."""
        return Response(BesideSerializer(self.shown(page)).data)


class WriteView(OfBeside):
    """Answers that are to be written. For managers."""

    # What is there already is not asked for again.
    keeps_answers = False

    @extend_schema(
        operation_id="beside_write", tags=["checkpoints"], request=None, responses={200: BesideSerializer}
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Have all that lack an answer write it, and wait for it. 422 while a model server is away."""
        found = self.shown(page)
        try:
            write_answers(shown=found)
        except EngineError as error:
            raise Refusal(trouble_of(error, hidden=found.is_hidden)) from error
        return Response(BesideSerializer(found).data)


class BesideVoteView(OfBeside):
    """A vote on answers beside each other. For managers."""

    @extend_schema(
        operation_id="beside_vote",
        tags=["checkpoints"],
        request=BesideVoteSerializer,
        responses={200: BesideSerializer},
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Vote: a judgment like any other. Names are in the answer. A second vote changes nothing."""
        found = self.shown(page)
        told = read_body(BesideVoteSerializer, request)
        vote_beside(shown=found, voter=self.user, verdict=told["verdict"], ranks=told["ranks"])
        return Response(BesideSerializer(found).data)


class RevealView(OfBeside):
    """Names of answers that were asked for blind. For managers."""

    @extend_schema(
        operation_id="beside_reveal", tags=["checkpoints"], request=None, responses={200: BesideSerializer}
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Show names before the vote, which is then left out of training and win rates."""
        found = self.shown(page)
        reveal_names(shown=found, user=self.user)
        return Response(BesideSerializer(found).data)


class ContinueView(OfBeside):
    """The next turn of a conversation. For managers."""

    @extend_schema(
        operation_id="beside_continue",
        tags=["checkpoints"],
        request=ContinueSerializer,
        responses={201: BesideSerializer},
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Say what comes next, after one of the answers or each after its own; a page of its own."""
        told = read_body(ContinueSerializer, request)
        if not storable(told["text"]):
            raise serializers.ValidationError({"text": ["It holds a character that no text has."]})
        made = continue_beside(
            shown=self.shown(page), created_by=self.user, text=told["text"], position=told["position"]
        )
        return Response(BesideSerializer(made).data, status=201)
