"""The user's API tokens."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.choices import TokenScope
from annotation.errors import Refusal
from annotation.services.people.accounts import create_token, revoke_token
from annotation.services.people.shortcuts import ACTIONS, InvalidKey, change_keys, keys_of
from annotation.views.access import Request

# Form of an API token.

_LIVES = [
    ("30", gettext_lazy("30 days")),
    ("90", gettext_lazy("90 days")),
    ("365", gettext_lazy("a year")),
    ("", gettext_lazy("until it is revoked")),
]


class TokenForm(forms.Form):
    """Name, purpose and life of a token."""

    name = forms.CharField(
        max_length=100,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("Where it is used, such as “evaluation script”."),
    )
    scopes = forms.MultipleChoiceField(
        choices=TokenScope.choices,
        label=gettext_lazy("It may"),
        initial=[TokenScope.READ],
        widget=forms.CheckboxSelectMultiple,
    )
    days = forms.ChoiceField(
        choices=_LIVES, label=gettext_lazy("Expires after"), required=False, initial="90"
    )

    def clean_days(self) -> Any:
        """The moment at which it ends; None for never."""
        days = self.cleaned_data["days"]
        return timezone.now() + timedelta(days=int(days)) if days else None


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: Request) -> HttpResponse:
    """List the user's tokens and create one, whose secret is shown once. For everyone."""
    form = TokenForm(request.POST or None)
    made = None
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            made = create_token(
                user=request.user,
                name=values["name"],
                scopes=values["scopes"],
                expires_at=values["days"],
            )
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            form = TokenForm()
    now = timezone.now()
    rows = [(token, token.is_good(now)) for token in request.user.api_tokens.all()]
    context = {
        "form": form,
        "made": made,
        "rows": sorted(rows, key=lambda row: not row[1]),
        "address": request.build_absolute_uri("/v1"),
    }
    return render(request, "annotation/tokens.html", context, status=422 if form.errors else 200)


@require_POST
def revoke(request: Request, pk: int) -> HttpResponse:
    """Revoke a token of the user. For everyone."""
    token = request.user.api_tokens.filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if token is None:
        raise Http404
    revoke_token(token=token, user=request.user)
    messages.success(request, _("%(name)s is revoked.") % {"name": token.name})
    return redirect("tokens")


# The user's keys on the labelling screen.


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
            {
                "action": a,
                "key": entered[a.name],
                "error": refusal.message if refusal and refusal.field == a.name else "",
            }
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
