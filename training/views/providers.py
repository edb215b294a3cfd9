"""Providers of models: the list, one of them with its models, its test."""

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from annotation.errors import Refusal
from annotation.forms import offer
from annotation.views.access import Request, refusals_shown
from training.models import ModelProvider
from training.models.providers import LONGEST_PROVIDER_NAME
from training.services.providers import (
    LONGEST_KEY,
    add_model,
    add_provider,
    change_provider,
    remove_provider,
    test_provider,
)


class ProviderForm(forms.Form):
    """A provider's name, address and key, which is never shown again."""

    name = forms.CharField(
        max_length=LONGEST_PROVIDER_NAME,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("What you call the provider."),
    )
    url = forms.CharField(
        max_length=200,
        label=gettext_lazy("Address"),
        widget=forms.URLInput(attrs={"placeholder": "https://models.example.org/v1"}),
        help_text=gettext_lazy("Of a server with an OpenAI-compatible API."),
    )
    key = forms.CharField(
        max_length=LONGEST_KEY,
        required=False,
        strip=True,
        label=gettext_lazy("Key"),
        widget=forms.PasswordInput(attrs={"autocomplete": "off"}),
        help_text=gettext_lazy("Stored encrypted, sent to this address alone, and never shown again."),
    )


class ProviderChangeForm(ProviderForm):
    """The same of a provider that there is: an empty key keeps the present one."""

    remove_key = forms.BooleanField(required=False, label=gettext_lazy("Take the key away"))


class ProviderModelForm(forms.Form):
    """One of the provider's models, and its name here."""

    model = forms.ChoiceField(label=gettext_lazy("Model"))
    name = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("Its name here: letters, digits, . - _. Empty takes its present name."),
    )

    def __init__(self, *args: object, provider: ModelProvider, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        offer(self, "model", [(model, model) for model in provider.served_models])


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def providers(request: Request) -> HttpResponse:
    """List the providers and add one, which is tested at once. For superusers."""
    _require_superuser(request)
    form = ProviderForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            provider = add_provider(**form.cleaned_data, added_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            return _tested(request, provider)
    context = {"form": form, "providers": ModelProvider.objects.all()}
    status = 422 if request.method == "POST" else 200
    return render(request, "training/providers/list.html", context, status=status)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def provider(request: Request, pk: int) -> HttpResponse:
    """Show and change a provider, with its models. For superusers."""
    provider = _provider(request, pk)
    form = ProviderChangeForm(request.POST or None, initial={"name": provider.name, "url": provider.url})
    if request.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        removed = values.pop("remove_key")
        values["key"] = "" if removed else values["key"] or None
        try:
            changed = change_provider(provider=provider, **values, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            return _tested(request, changed)
    return _shown(request, provider, form=form, status=422 if request.method == "POST" else 200)


@require_POST
def provider_test(request: Request, pk: int) -> HttpResponse:
    """Test the connection and read the list of models. For superusers."""
    return _tested(request, _provider(request, pk))


@never_cache
@require_POST
def provider_add_model(request: Request, pk: int) -> HttpResponse:
    """Add one of the provider's models. For superusers."""
    provider = _provider(request, pk)
    form = ProviderModelForm(request.POST, provider=provider)
    if form.is_valid():
        try:
            base = add_model(provider=provider, **form.cleaned_data, added_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field, refusal.message)
        else:
            messages.success(request, _("%(name)s can be asked now.") % {"name": base})
            return redirect(base.starter)
    return _shown(request, provider, model_form=form, status=422)


@require_POST
def provider_remove(request: Request, pk: int) -> HttpResponse:
    """Remove a provider and its key. For superusers."""
    provider = _provider(request, pk)
    with refusals_shown(request):
        remove_provider(provider=provider, removed_by=request.user)
        messages.success(request, _("%(name)s was removed.") % {"name": provider})
        return redirect("providers")
    return redirect(provider)


def _tested(request: Request, provider: ModelProvider) -> HttpResponse:
    tested = test_provider(provider=provider, tested_by=request.user)
    if tested.error:
        messages.error(request, _("The connection failed: %(error)s") % {"error": tested.error})
    else:
        messages.success(request, _("The connection works."))
    return redirect(tested)


def _shown(
    request: Request,
    provider: ModelProvider,
    *,
    form: ProviderChangeForm | None = None,
    model_form: ProviderModelForm | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "provider": provider,
        "form": form or ProviderChangeForm(initial={"name": provider.name, "url": provider.url}),
        "model_form": model_form or ProviderModelForm(provider=provider),
        "checkpoints": provider.checkpoints.order_by("name"),
    }
    return render(request, "training/providers/provider.html", context, status=status)


def _provider(request: Request, pk: int) -> ModelProvider:
    _require_superuser(request)
    return get_object_or_404(ModelProvider, pk=pk)


def _require_superuser(request: Request) -> None:
    if not request.user.is_superuser:
        raise PermissionDenied
