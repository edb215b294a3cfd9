"""Checkpoints that answer beside each other, and the votes on that."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ListView, ProjectView, read_body
from annotation.choices import Verdict
from annotation.errors import Refusal
from annotation.models import Project, Prompt, User
from training.engine import EngineError
from training.forms.comparing import DEFAULT_TOP_P, LONGEST_PROMPT
from training.models import Checkpoint, PromptSet, SideBySide
from training.selectors.projects import checkpoints_of, comparable_checkpoints
from training.selectors.prompt_sets import progress_on
from training.services.comparing.next_pages import next_of_set, regenerate_side_by_side
from training.services.comparing.side_by_side import (
    Sampling,
    ask_side_by_side,
    continue_side_by_side,
    reveal_names,
    vote_side_by_side,
    write_answers,
)
from training.services.comparing.voting import Vote
from training.views.comparing.responses import responses_of
from training.views.comparing.side_by_side import trouble_of

_SAID = (Verdict.RANKED, Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD, Verdict.CANNOT_JUDGE)


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
            {field: [f"This project has no such checkpoint: {unknown[0][:60]!r}."]}
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

    verdict = serializers.ChoiceField(choices=[choice.value for choice in _SAID])
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
    """The side-by-side comparisons of a project. For managers."""

    serializer_class = BesideSerializer
    queryset = SideBySide.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
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
        values = read_body(AskSerializer, request)
        scorers = [values["scorer"]] if "scorer" in values else []
        rewards = named_checkpoints(self.project, scorers, writing=False, field="scorer")
        checkpoints = named_checkpoints(self.project, values["checkpoints"], user=self.user)
        prompt_set = self._prompt_set(values["prompt_set"]) if "prompt_set" in values else None
        made = ask_side_by_side(
            project=self.project,
            created_by=self.user,
            checkpoints=checkpoints,
            question=self._question(values, checkpoints, prompt_set),
            sampling=SettingsSerializer.sampling(values),
            system=values["system"],
            prompt_set=prompt_set,
            seed=values["seed"],
            scorer=rewards[0] if rewards else None,
            blind=values["blind"],
        )
        return Response(BesideSerializer(made).data, status=201)

    def _question(
        self, values: Mapping[str, Any], checkpoints: Sequence[Checkpoint], prompt_set: PromptSet | None
    ) -> Prompt | str:
        if prompt_set is None:
            return str(values.get("text", "").strip()) or self._prompt(values["prompt"])
        left = progress_on(prompt_set, checkpoints).next
        if left is None:
            raise Refusal(_("No prompt of the set is left for these checkpoints."), field="prompt_set")
        return left

    def _prompt_set(self, pk: int) -> PromptSet:
        prompt_set = self.project.prompt_sets.filter(pk=pk).first()
        if prompt_set is None:
            raise serializers.ValidationError({"prompt_set": ["This project has no such prompt set."]})
        return prompt_set

    def _prompt(self, pk: int) -> Prompt:
        prompt = self.project.prompts.filter(pk=pk).first()
        if prompt is None:
            raise serializers.ValidationError({"prompt": ["This project has no such prompt."]})
        return prompt


class OfBeside(ProjectView):
    """Something of the page in the address. For managers."""

    def shown(self, page: str) -> SideBySide:
        """The page in the address."""
        if not page.isascii():
            raise Http404
        rows = self.project.side_by_sides.select_related(
            "project", "scorer", "continues", "judgment", "prompt_set", "base_prompt"
        )
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
        side_by_side = self.shown(page)
        try:
            write_answers(shown=side_by_side)
        except EngineError as error:
            raise Refusal(trouble_of(error, hidden=side_by_side.is_hidden)) from error
        return Response(BesideSerializer(side_by_side).data)


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
        side_by_side = self.shown(page)
        values = read_body(BesideVoteSerializer, request)
        vote_side_by_side(shown=side_by_side, voter=self.user, vote=Vote(values["verdict"], values["ranks"]))
        return Response(BesideSerializer(side_by_side).data)


class RevealView(OfBeside):
    """Names of answers that were asked for blind. For managers."""

    @extend_schema(
        operation_id="beside_reveal", tags=["checkpoints"], request=None, responses={200: BesideSerializer}
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Show names before the vote, which is then left out of training and win rates."""
        side_by_side = self.shown(page)
        reveal_names(shown=side_by_side, user=self.user)
        return Response(BesideSerializer(side_by_side).data)


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
        values = read_body(ContinueSerializer, request)
        made = continue_side_by_side(
            shown=self.shown(page), created_by=self.user, text=values["text"], position=values["position"]
        )
        return Response(BesideSerializer(made).data, status=201)


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


class AgainView(OfBeside):
    """The same chat again. For managers."""

    @extend_schema(
        operation_id="beside_regenerate",
        tags=["checkpoints"],
        request=AgainSerializer,
        responses={201: BesideSerializer},
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Have the same checkpoints answer the same chat on a page of its own, with other settings."""
        values = read_body(AgainSerializer, request)
        made = regenerate_side_by_side(
            shown=self.shown(page),
            created_by=self.user,
            sampling=SettingsSerializer.sampling(values),
            seed=values["seed"],
            system=values["system"],
            blind=values["blind"],
        )
        return Response(BesideSerializer(made).data, status=201)


class NextView(OfBeside):
    """The next prompt of a set. For managers."""

    @extend_schema(
        operation_id="beside_next", tags=["checkpoints"], request=None, responses={201: BesideSerializer}
    )
    def post(self, request: Request, slug: str, page: str) -> Response:
        """Create the page of the next prompt of the set for the same checkpoints, blind. 422 at its end."""
        made = next_of_set(shown=self.shown(page), created_by=self.user)
        return Response(BesideSerializer(made).data, status=201)
