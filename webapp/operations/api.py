"""The status of this Rondo, in the API."""

from typing import Any

from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView
from annotation.api.operations import Resource, superusers
from webapp.operations.health import LEVELS
from webapp.operations.state import State, look


class FindingSerializer(serializers.Serializer[Any]):
    """The result of one check."""

    subject = fields.text("As `database`.")
    level = fields.choice(LEVELS, source="level.called")
    says = fields.text()
    remedy = fields.text("What to do; empty where all is well.")
    link = fields.text("The page that shows more; empty for none.")


class StatusSerializer(serializers.Serializer[Any]):
    """The results of all checks."""

    worst = fields.choice(LEVELS, source="worst.called")
    findings = FindingSerializer(many=True)


status = Resource(ApiView, "status/", tag="operations")


@status.get(returns=StatusSerializer, requires=superusers)
def status_read(view: ApiView) -> State:
    """Run all checks, as `manage.py doctor` does. For superusers."""
    return look()
