"""The status of this Rondo, in the API."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView
from webapp.operations.health import LEVELS
from webapp.operations.state import look


class FindingSerializer(serializers.Serializer[Any]):
    """The result of one check."""

    subject = serializers.CharField(help_text="As `database`.")
    level = serializers.ChoiceField(choices=LEVELS, source="level.called")
    says = serializers.CharField()
    remedy = serializers.CharField(help_text="What to do; empty where all is well.")
    link = serializers.CharField(help_text="The page that shows more; empty for none.")


class StatusSerializer(serializers.Serializer[Any]):
    """The results of all checks."""

    worst = serializers.ChoiceField(choices=LEVELS, source="worst.called")
    findings = FindingSerializer(many=True)


class StatusView(ApiView):
    """The status of this Rondo. For superusers."""

    @extend_schema(operation_id="status_read", tags=["operations"], responses=StatusSerializer)
    def get(self, request: Request) -> Response:
        """Run all checks, as `manage.py doctor` does. For superusers."""
        self.require_superuser()
        return Response(StatusSerializer(look()).data)
