"""Personal settings in the account menu."""

from django.core.exceptions import BadRequest
from django.http import HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from annotation.errors import Refusal
from annotation.services.people.accounts import choose_language
from annotation.views.access import Request


@require_POST
def language(request: Request) -> HttpResponse:
    """Choose the language of the pages and return to the same page. For everyone who is signed in."""
    try:
        choose_language(user=request.user, language=request.POST.get("language", ""))
    except Refusal as refusal:
        raise BadRequest(refusal.message) from refusal
    came_from = request.headers.get("Referer", "")
    is_ours = url_has_allowed_host_and_scheme(
        came_from, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return HttpResponseRedirect(came_from if is_ours else reverse("projects"))
