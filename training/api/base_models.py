"""Base models: listed, added, inspected, removed; the one that a project's next round begins from."""

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView, Filters, ProjectView
from annotation.api.operations import PROJECT, Resource, Values, superusers
from annotation.choices import JobState
from training.choices import BaseOrigin
from training.contract.checkpoint import CHECKPOINT_NAME
from training.files.hub import HubModel
from training.models import BaseModel, BaseModelAddition
from training.selectors.base_models import base_of, bases_for
from training.selectors.projects import require_manager
from training.services.base_models import (
    NewBaseModel,
    cancel_addition,
    estimates_of,
    inspect_again,
    look_up_on_hub,
    remove_base_model,
    request_base_model,
)
from training.services.rounds.base_choice import choose_base


@fields.of(
    BaseModel, "name origin architecture parameters context dtype size repository revision licence created_at"
)
class BaseModelSerializer(serializers.ModelSerializer[BaseModel]):
    """A base model of the installation."""

    architecture = fields.text(source="facts.architecture", default="")
    parameters = fields.integer(source="facts.parameters", default=None, allow_null=True)
    context = fields.integer(source="facts.context", default=None, allow_null=True)  # type: ignore[assignment]
    dtype = fields.text("Precision of the files.", source="facts.dtype", default="")


class BaseFileSerializer(serializers.Serializer[Any]):
    """One file of a base model."""

    name = fields.text()
    size = fields.integer("Bytes.")
    sha256 = fields.text()


class MemoryEstimateSerializer(serializers.Serializer[Any]):
    """Memory of one use, in bytes, by the precision of the frozen base."""

    name = fields.text("serving, reward, or a preset of the policy.")
    float32 = fields.integer()
    bfloat16 = fields.integer()
    full = fields.integer("Training every parameter, without an adapter; null for serving.", allow_null=True)


@fields.more("tokenizer_digest facts files memory")
class WholeBaseModelSerializer(BaseModelSerializer):
    """A base model with its tokenizer, chat template, files and memory estimates."""

    facts = serializers.DictField(help_text="Architecture, sizes, tokenizer, chat template with an example.")
    files = BaseFileSerializer(many=True)
    memory = fields.computed()

    def get_memory(self, base: BaseModel) -> list[dict[str, Any]]:
        """By the formulas of the dry run."""
        return [dict(MemoryEstimateSerializer(estimate).data) for estimate in estimates_of(base)]


@fields.of(
    BaseModelAddition,
    "id name origin state current total message error base_model folder repository revision licence",
    "server_url server_model server_key cancel_requested created_at finished_at",
)
class AdditionSerializer(serializers.ModelSerializer[BaseModelAddition]):
    """A base model that is being added, or was refused."""

    base_model = fields.text("What was added.", source="base.name", default=None, allow_null=True)


class NewBaseModelSerializer(serializers.Serializer[Any]):
    """A base model to be added."""

    origin = fields.choice(BaseOrigin.choices)
    name = fields.text("Empty: its present name.", most=100, default="")
    folder = fields.text("Origin folder: its absolute path on the server.", most=1000, default="")
    repository = fields.text("Origin hub: OWNER/NAME.", most=200, default="")
    revision = fields.text(most=100, default="")
    licence = fields.text(
        "Origin hub: the licence that is accepted, as `/hub-models/` names it.",
        most=200,
        default=None,
        allow_null=True,
        allow_blank=True,
    )
    server_url = fields.text(most=200, default="")
    server_model = fields.text(most=200, default="")
    server_key = fields.text(
        "The variable with the server's key; its name begins with RONDO_SERVER_KEY_.", most=100, default=""
    )


class HubModelSerializer(serializers.Serializer[Any]):
    """A model on the hub at one commit."""

    repository = fields.text()
    revision = fields.text("The commit.")
    licence = fields.text(allow_blank=True)
    licence_url = fields.text()
    size = fields.integer("Bytes to download.")


class HubModelFilters(Filters):
    """The model to look up."""

    repository = fields.text("OWNER/NAME.", most=200)
    revision = fields.text("Branch, tag or commit.", most=100, required=False)


class AdditionFilters(Filters):
    """Filters of additions."""

    state = fields.choice(JobState.choices, required=False)


class ProjectBaseSerializer(serializers.Serializer[Any]):
    """The base model of a project's next round."""

    base_model = fields.text(most=100)


def _base(view: ApiView, name: str) -> BaseModel:
    require_manager(view.user, None)
    if not CHECKPOINT_NAME.fullmatch(name):
        # PostgreSQL takes no NUL, not even to look for.
        raise Http404
    return get_object_or_404(bases_for(view.user), name=name)


def _addition(view: ApiView, pk: int) -> BaseModelAddition:
    view.require_superuser()
    return get_object_or_404(BaseModelAddition.objects.select_related("base"), pk=pk)


bases = Resource(ApiView, "base-models/", tag="base models")
base = bases.item("<str:name>/", find=_base)
additions = Resource(
    ApiView,
    "base-model-additions/",
    tag="base models",
    rows=lambda _view: BaseModelAddition.objects.select_related("base"),
)
addition = additions.item("<int:pk>/", find=_addition)
hub = Resource(ApiView, "hub-models/", tag="base models")
choice = Resource(ProjectView, f"{PROJECT}base-model/", tag="base models")

base.add_read(
    "base_models_read",
    WholeBaseModelSerializer,
    "Read a base model with its chat template, memory estimates and the digest of every file.",
)
additions.add_list(
    "base_model_additions_list",
    AdditionSerializer,
    "List what is being added, was added or refused, newest first.",
    filters=AdditionFilters,
    requires=superusers,
)
addition.add_read(
    "base_model_additions_read", AdditionSerializer, "Read how far it is, or why it was refused."
)


@bases.get_list(BaseModelSerializer)
def base_models_list(view: ApiView) -> QuerySet[BaseModel]:
    """List the base models of the installation, newest first."""
    require_manager(view.user, None)
    return bases_for(view.user)


@bases.post(takes=NewBaseModelSerializer, returns=AdditionSerializer, status=202, requires=superusers)
def base_models_add(view: ApiView, values: Values) -> BaseModelAddition:
    """Have a worker add a base model; what is not supported is refused. For superusers."""
    new_base = NewBaseModel(**{**values, "origin": BaseOrigin(values["origin"])})
    return request_base_model(new_base=new_base, requested_by=view.user)


@base.delete(requires=superusers)
def base_models_remove(view: ApiView, base: BaseModel) -> None:
    """Remove it with its files. 422 as long as anything needs it. For superusers."""
    remove_base_model(base=base, removed_by=view.user)


@base.post("inspection/", returns=AdditionSerializer, status=202, requires=superusers)
def base_models_inspect(view: ApiView, base: BaseModel) -> BaseModelAddition:
    """Have a worker read its files again."""
    return inspect_again(base=base, requested_by=view.user)


@addition.delete()
def base_model_additions_cancel(view: ApiView, addition: BaseModelAddition) -> None:
    """Cancel it; a worker removes what was downloaded."""
    cancel_addition(addition=addition, cancelled_by=view.user)


@hub.get(filters=HubModelFilters, returns=HubModelSerializer, requires=superusers)
def hub_models_read(view: ApiView, query: Values) -> HubModel:
    """Look up commit, licence and size of a model before it is added. 422 where the hub has none."""
    return look_up_on_hub(repository=query["repository"], revision=query.get("revision", ""))


@choice.get(returns=ProjectBaseSerializer)
def project_base_model_read(view: ProjectView) -> Values:
    """Read the base model that the next round begins from."""
    base = base_of(view.project)
    # Before the first round the installation's default is not registered.
    return {"base_model": base.name if base else settings.RONDO_STARTER_MODEL_NAME}


@choice.put(takes=ProjectBaseSerializer, returns=ProjectBaseSerializer)
def project_base_model_choose(view: ProjectView, values: Values) -> Values:
    """Choose it. A draft takes it at once; an open round goes on as it is."""
    name = values["base_model"]
    base = bases_for(view.user).filter(name=name).first()
    if base is None:
        raise serializers.ValidationError(
            {"base_model": [_("There is no base model %(name)r.") % {"name": name[:60]}]}
        )
    choose_base(project=view.project, base=base, chosen_by=view.user)
    return {"base_model": base.name}
