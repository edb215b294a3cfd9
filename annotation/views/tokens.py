"""The user's API tokens."""

from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.errors import Refusal
from annotation.forms.tokens import TokenForm
from annotation.services.people.tokens import create_token, revoke_token
from annotation.views.access import Request


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
