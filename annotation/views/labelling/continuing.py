"""Continuations of rewritten responses on the labelling screen."""

from django.http import HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Continuation, Project
from annotation.services.assignments.display_order import tokens_of
from annotation.services.judgments.drafts import continue_response, is_offered
from annotation.views.access import Request, own_assignment, project_page


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.ANNOTATOR)
def continuation(request: Request, project: Project, pk: int) -> HttpResponse:
    """Tell whether a model can continue, or have it continue a response. For the annotator who has it.

    JSON. GET: `offered`, and a `message` where it is not. POST with `candidate` and `prefix`: the
    continuation's `id` and `text`; 422 with a `message`. Neither names the model or its settings.
    """
    assignment = own_assignment(request, project, pk)
    if request.method != "POST":
        offered = is_offered(assignment)
        message = "" if offered else _("No model is served that could continue. Write the rest yourself.")
        return JsonResponse({"offered": offered, "message": message})
    completion = tokens_of(assignment).get(request.POST.get("candidate", ""))
    if completion is None:
        return JsonResponse({"message": _("There is no such response here. Reload the page.")}, status=422)
    try:
        written = continue_response(
            assignment=assignment,
            annotator=request.user,
            completion_id=completion,
            prefix=request.POST.get("prefix", ""),
        )
    except Refusal as refusal:
        return JsonResponse({"message": refusal.message}, status=422)
    return JsonResponse(shown(written))


def shown(written: Continuation) -> dict[str, object]:
    """Return what an annotator sees of a continuation."""
    return {"id": written.pk, "text": written.text}
