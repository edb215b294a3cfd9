"""Operations on checkpoints that answer beside each other, and the votes on that."""

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
from annotation.errors import Refusal
from annotation.models import Prompt
from training.api.side_by_side_parts import (
    AgainSerializer,
    AskSerializer,
    BesideSerializer,
    BesideVoteSerializer,
    ContinueSerializer,
    SettingsSerializer,
    named_checkpoints,
)
from training.engine import EngineError
from training.models import Checkpoint, PromptSet, SideBySide
from training.selectors.prompt_sets import progress_on
from training.services.comparing.next_pages import next_of_set, regenerate_side_by_side
from training.services.comparing.side_by_side import (
    ask_side_by_side,
    continue_side_by_side,
    reveal_names,
    vote_side_by_side,
    write_answers,
)
from training.services.comparing.voting import Vote
from training.views.comparing.side_by_side import trouble_of


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
            raise Refusal(
                "prompt_set_exhausted",
                _("No prompt of the set is left for these checkpoints."),
                field="prompt_set",
            )
        return left

    def _prompt_set(self, pk: int) -> PromptSet:
        prompt_set = self.project.prompt_sets.filter(pk=pk).first()
        if prompt_set is None:
            raise serializers.ValidationError({"prompt_set": [_("This project has no such prompt set.")]})
        return prompt_set

    def _prompt(self, pk: int) -> Prompt:
        prompt = self.project.prompts.filter(pk=pk).first()
        if prompt is None:
            raise serializers.ValidationError({"prompt": [_("This project has no such prompt.")]})
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
            raise Refusal("model_not_answering", trouble_of(error, hidden=side_by_side.is_hidden)) from error
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
