"""Drafts of the labelling screen."""

import json
import uuid
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from annotation.choices import Role
from annotation.errors import InvalidAnswer, LeaseLost
from annotation.models import Draft, Project
from annotation.services.judgments.drafts import DraftConflict, save_draft
from annotation.views.access import Request, own_assignment, project_page


@require_POST
@project_page(role=Role.ANNOTATOR)
def draft(request: Request, project: Project, pk: int) -> HttpResponse:
    """Save the state of the form. For the annotator who has it.

    Takes JSON: fields (name → list of values), base_version, saved_from, is_revision. Answers 200 with the
    new version; 409 with the stored draft when it is newer; 410 when the assignment is closed; 400 when the
    JSON is invalid.
    """
    assignment = own_assignment(request, project, pk)
    try:
        saved = save_draft(assignment=assignment, annotator=request.user, **_read(request))
    except DraftConflict as conflict:
        stored = _shown(conflict.stored) if conflict.stored else None
        return JsonResponse({"message": conflict.message, "stored": stored}, status=409)
    except LeaseLost as refusal:
        return JsonResponse({"message": refusal.message}, status=410)
    except InvalidAnswer as refusal:
        return JsonResponse({"message": refusal.message}, status=400)
    return JsonResponse(_shown(saved))


def _read(request: Request) -> dict[str, Any]:
    try:
        sent = json.loads(request.body)
        return {
            "fields": dict(sent["fields"]),
            "base_version": int(sent["base_version"]),
            "saved_from": uuid.UUID(sent["saved_from"]),
            "is_revision": sent.get("is_revision") is True,
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidAnswer(
            "invalid_draft", _("This is no draft of a labelling page. Reload the page.")
        ) from error


def _shown(row: Draft) -> dict[str, Any]:
    return {
        "version": row.version,
        "fields": row.fields,
        "saved_from": str(row.saved_from),
        "saved_at": row.saved_at.isoformat(),
    }
