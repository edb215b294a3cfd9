"""Base models: the list with what is being added, the forms that add one, one of them, a project's choice."""

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.forms import offer
from annotation.models import Project
from annotation.views.access import Request, project_page, refusals_shown
from training.choices import BaseOrigin, CheckpointKind
from training.models import BaseModel, BaseModelAddition
from training.selectors.base_models import additions_shown, base_of, bases_for, trainable_bases, uses_of_base
from training.selectors.projects import managed_projects, require_manager
from training.services.base_models import (
    NewBaseModel,
    allowed_roots,
    cancel_addition,
    estimates_of,
    inspect_again,
    look_up_on_hub,
    remove_base_model,
    request_base_model,
)
from training.services.rounds.base_choice import choose_base

# Forms that add a base model, one for each origin, and the choice of a project's base.


def _name() -> forms.CharField:
    return forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("Its name here: letters, digits, . - _. Empty takes its present name."),
    )


class StarterForm(forms.Form):
    """The starter package needs no settings."""


class FolderForm(forms.Form):
    """A folder on the server."""

    folder = forms.CharField(
        max_length=1000,
        label=gettext_lazy("Folder"),
        help_text=gettext_lazy(
            "Absolute path on the server of a folder with config.json, tokenizer.json and *.safetensors."
        ),
    )
    name = _name()


class HubForm(forms.Form):
    """A model on the hub, at one commit; the licence is accepted once it was shown."""

    repository = forms.CharField(
        max_length=200,
        label=gettext_lazy("Model id"),
        widget=forms.TextInput(attrs={"placeholder": "owner/name"}),
    )
    revision = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Revision"),
        help_text=gettext_lazy("Branch, tag or commit; empty is the main branch. The commit is pinned."),
    )
    name = _name()
    licence = forms.CharField(max_length=200, required=False, widget=forms.HiddenInput)
    accept = forms.BooleanField(required=False, label=gettext_lazy("I have read the licence and accept it"))


class ServerForm(forms.Form):
    """A model of another OpenAI-compatible server."""

    server_url = forms.CharField(
        max_length=200,
        label=gettext_lazy("Address"),
        help_text=gettext_lazy("Such as https://models.example.org/v1"),
    )
    server_model = forms.CharField(max_length=200, label=gettext_lazy("Its name there"))
    server_key = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Variable with the key"),
        help_text=gettext_lazy(
            "The environment variable that holds the server's key. Its name begins with RONDO_SERVER_KEY_; "
            "the key itself is never stored."
        ),
    )
    name = _name()


FORMS: dict[BaseOrigin, type[forms.Form]] = {
    BaseOrigin.HUB: HubForm,
    BaseOrigin.FOLDER: FolderForm,
    BaseOrigin.STARTER: StarterForm,
    BaseOrigin.SERVER: ServerForm,
}
"""By origin, in the order of the page."""


class ProjectBaseForm(forms.Form):
    """The base model of a project's next round."""

    base = forms.ModelChoiceField(
        BaseModel.objects.none(), label=gettext_lazy("Base model"), to_field_name="name", empty_label=None
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer(self, "base", trainable_bases())


# ── Base models ──

_CHECKPOINTS_SHOWN = 20


@require_safe
def base_models(request: Request) -> HttpResponse:
    """List the base models, with what is being added, and a project's choice. For managers."""
    require_manager(request.user, None)
    project = managed_projects(request.user).filter(slug=request.GET.get("project", "")).first()
    context: dict[str, Any] = {"bases": bases_for(request.user), "project": project, **_additions(request)}
    if project is not None:
        context["chosen"] = base_of(project)
        chosen = context["chosen"]
        context["choice"] = ProjectBaseForm(initial={"base": chosen.name if chosen else None})
    return render(request, "training/base_models/list.html", context)


@require_safe
def additions(request: Request) -> HttpResponse:
    """Show the additions in progress: a fragment that reloads itself until they end. For managers."""
    require_manager(request.user, None)
    return render(request, "training/base_models/additions.html", _additions(request))


@require_http_methods(["GET", "HEAD", "POST"])
def add(request: Request) -> HttpResponse:
    """The form of an origin; on the hub a model is looked up first. For superusers."""
    if not request.user.is_superuser:
        raise PermissionDenied
    origin = _origin(request)
    form = FORMS[origin](request.POST if request.method == "POST" else None)
    model = None
    if request.method == "POST" and form.is_valid():
        try:
            if origin == BaseOrigin.HUB and "add" not in request.POST:
                model, form = _looked_up(form)
            else:
                addition = request_base_model(new_base=_new_base(origin, form), requested_by=request.user)
                messages.success(request, _("%(name)s is being added.") % {"name": addition})
                return redirect("base-models")
        except Refusal as refusal:
            model = _shown_again(form) if refusal.field in ("accept", "licence") else None
            _blame(form, refusal)
    context = {
        "form": form,
        "origin": origin,
        "origins": [(choice.value, choice.label) for choice in FORMS],
        "found": model,
        "roots": allowed_roots(),
    }
    return render(request, "training/base_models/add.html", context, status=422 if form.errors else 200)


@require_POST
def cancel(request: Request, pk: int) -> HttpResponse:
    """Stop adding a base model. For superusers."""
    if not request.user.is_superuser:
        raise PermissionDenied
    cancel_addition(addition=get_object_or_404(BaseModelAddition, pk=pk), cancelled_by=request.user)
    return redirect("base-models")


@require_safe
def base_model(request: Request, name: str) -> HttpResponse:
    """One base model: what it is, its chat template, the memory it needs, its files. For managers."""
    base = _base(request, name)
    context = {
        "base": base,
        "facts": base.facts,
        "estimates": estimates_of(base),
        "starter": base.starter,
        "checkpoints": base.checkpoints.exclude(kind=CheckpointKind.STARTER)[:_CHECKPOINTS_SHOWN],
        "projects": managed_projects(request.user).filter(base_choice__base=base),
    }
    return render(request, "training/base_models/detail.html", context)


@require_POST
def inspect(request: Request, name: str) -> HttpResponse:
    """Read its files again. For superusers."""
    base = _changeable_base(request, name)
    with refusals_shown(request):
        inspect_again(base=base, requested_by=request.user)
    return redirect("base-models")


@require_http_methods(["GET", "HEAD", "POST"])
def remove(request: Request, name: str) -> HttpResponse:
    """Ask for confirmation, then remove a base model that nothing needs. For superusers."""
    base = _changeable_base(request, name)
    if request.method == "POST":
        try:
            remove_base_model(base=base, removed_by=request.user)
        except Refusal as refusal:
            messages.error(request, refusal.message)
            return redirect(base)
        messages.success(request, _("%(name)s was removed.") % {"name": name})
        return redirect("base-models")
    context = {"base": base, "uses": uses_of_base(base)}
    return render(request, "training/base_models/remove.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def choose(request: Request, project: Project) -> HttpResponse:
    """Choose the base model of a project's next round. For managers."""
    form = ProjectBaseForm(request.POST)
    if form.is_valid():
        with refusals_shown(request):
            choose_base(project=project, base=form.cleaned_data["base"], chosen_by=request.user)
            messages.success(
                request,
                _("The next round of %(project)s begins from %(base)s.")
                % {"project": project, "base": form.cleaned_data["base"]},
            )
    else:
        messages.error(request, _("Choose one of the base models listed."))
    return redirect(f"{reverse('base-models')}?project={project.slug}")


def _additions(request: Request) -> dict[str, Any]:
    rows = additions_shown() if request.user.is_superuser else []
    return {"additions": rows, "additions_go_on": any(addition.goes_on for addition in rows)}


def _origin(request: Request) -> BaseOrigin:
    named = request.POST.get("origin") or request.GET.get("origin", "")
    return BaseOrigin(named) if named in BaseOrigin.values else BaseOrigin.HUB


def _looked_up(form: forms.Form) -> tuple[Any, forms.Form]:
    """Return the model as the hub knows it, and the form with its commit and its licence to accept."""
    values = form.cleaned_data
    model = look_up_on_hub(repository=values["repository"], revision=values["revision"])
    pinned = {**values, "revision": model.revision, "licence": model.licence, "accept": False}
    return model, FORMS[BaseOrigin.HUB](initial=pinned)


def _shown_again(form: forms.Form) -> Any:
    """Return the model as the hub knows it, where its licence is not accepted yet; None without a hub."""
    values = form.cleaned_data
    try:
        return look_up_on_hub(repository=values["repository"], revision=values["revision"])
    except Refusal:
        return None


def _new_base(origin: BaseOrigin, form: forms.Form) -> NewBaseModel:
    values = dict(form.cleaned_data)
    if origin == BaseOrigin.HUB and not values.pop("accept"):
        raise Refusal("licence_not_accepted", _("Read the licence and accept it first."), field="accept")
    return NewBaseModel(origin=origin, **values)


def _blame(form: forms.Form, refusal: Refusal) -> None:
    shown = {name for name, field in form.fields.items() if not field.widget.is_hidden}
    form.add_error(refusal.field if refusal.field in shown else None, refusal.message)


def _base(request: Request, name: str) -> BaseModel:
    require_manager(request.user, None)
    return get_object_or_404(bases_for(request.user), name=name)


def _changeable_base(request: Request, name: str) -> BaseModel:
    base = _base(request, name)
    if not request.user.is_superuser:
        raise PermissionDenied
    return base
