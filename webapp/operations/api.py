"""How Rondo stands, by way of the API."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView
from webapp.operations.findings import LEVELS
from webapp.operations.state import look


class FindingSerializer(serializers.Serializer[Any]):
    """One thing that was looked at."""

    subject = serializers.CharField(help_text="As `database`.")
    level = serializers.ChoiceField(choices=LEVELS, source="level.called")
    says = serializers.CharField()
    remedy = serializers.CharField(help_text="What to do; empty where all is well.")
    link = serializers.CharField(help_text="The page that shows more; empty for none.")


class StatusSerializer(serializers.Serializer[Any]):
    """Everything that one look found."""

    worst = serializers.ChoiceField(choices=LEVELS, source="worst.called")
    findings = FindingSerializer(many=True)


class StatusView(ApiView):
    """What is wrong and what to do. For who is a superuser."""

    @extend_schema(operation_id="status_read", tags=["operations"], responses=StatusSerializer)
    def get(self, request: Request) -> Response:
        """Look at everything, as `manage.py doctor` does. For superusers."""
        self.require_superuser()
        return Response(StatusSerializer(look()).data)
