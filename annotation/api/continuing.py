"""Continuations of rewritten responses by the model that wrote them."""

from typing import Any

from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import read_body
from annotation.api.labelling import LabellingView
from annotation.errors import InvalidAnswer
from annotation.services.assignments.display_order import tokens_of
from annotation.services.judgments.drafts import LONGEST_PREFIX, continue_response, is_offered


class OfferedSerializer(serializers.Serializer[Any]):
    """State of continuation: offered, or not."""

    offered = serializers.BooleanField(help_text="Of all responses of the comparison, or of none.")


class NewContinuationSerializer(serializers.Serializer[Any]):
    """A response to be continued."""

    answer = serializers.CharField(help_text="Which answer: its name in the assignment.")
    prefix = serializers.CharField(
        trim_whitespace=False,
        max_length=LONGEST_PREFIX,
        help_text="The response up to the end of the rewrite.",
    )


class ContinuationSerializer(serializers.Serializer[Any]):
    """The text of a model after the prefix. An edit of a correction names it by its id."""

    id = serializers.IntegerField()
    text = serializers.CharField(allow_blank=True, trim_whitespace=False)


class ContinuationView(LabellingView):
    """Continuations in an assignment. For the annotator who has it."""

    # A model is asked, which no transaction waits for; a repeated request writes another continuation.
    keeps_answers = False

    @extend_schema(operation_id="assignments_continuation", tags=["labelling"], responses=OfferedSerializer)
    def get(self, request: Request, slug: str, pk: int) -> Response:
        """Read whether a model can continue responses now."""
        return Response({"offered": is_offered(self.assignment(pk))})

    @extend_schema(
        operation_id="assignments_continue",
        tags=["labelling"],
        request=NewContinuationSerializer,
        responses={201: ContinuationSerializer},
    )
    def post(self, request: Request, slug: str, pk: int) -> Response:
        """Have the model that wrote a response continue from a prefix, with a new seed. 422 where no model
        is served."""
        assignment = self.assignment(pk)
        values = read_body(NewContinuationSerializer, request)
        completion = tokens_of(assignment).get(values["answer"])
        if completion is None:
            message = _("There is no response %(name)r in this assignment.")
            raise InvalidAnswer("unknown_response", message, field="answer", name=values["answer"][:60])
        written = continue_response(
            assignment=assignment,
            annotator=self.user,
            completion_id=completion,
            prefix=values["prefix"],
        )
        return Response(ContinuationSerializer(written).data, status=201)
