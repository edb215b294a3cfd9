"""The user's keys on the labelling screen."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from annotation.services.people.shortcuts import ACTIONS, InvalidKey, change_keys, keys_of
from annotation.views.access import Request


@require_http_methods(["GET", "HEAD", "POST"])
def keys(request: Request) -> HttpResponse:
    """Show and change the user's keys; "reset" restores the defaults. For everyone."""
    entered = keys_of(request.user)
    refusal = None
    if request.method == "POST":
        sent = {} if "reset" in request.POST else {a.name: request.POST.get(a.name, "") for a in ACTIONS}
        try:
            change_keys(user=request.user, keys=sent)
        except InvalidKey as error:
            refusal, entered = error, sent
        else:
            messages.success(request, _("Your keys are stored."))
            return redirect("keys")

    def rows(*place: bool) -> list[dict[str, object]]:
        return [
            {"action": a, "key": entered[a.name], "error": _error(refusal, a.name)}
            for a in ACTIONS
            if a.place == place
        ]

    context = {
        "parts": [
            (_("On the screen"), rows(False, False)),
            (_("While a span has the focus"), rows(True, False)),
            (_("While a suggestion has the focus"), rows(False, True)),
        ],
        "refusal": refusal,
    }
    return render(request, "annotation/account_keys.html", context, status=422 if refusal else 200)


def _error(refusal: InvalidKey | None, name: str) -> str:
    return refusal.message if refusal and refusal.field == name else ""
