"""Base models: listed, added, inspected, removed; the one that a project's next round begins from."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from annotation.api.base import ApiView, Filters, ListView, ProjectView, read_body
from annotation.choices import JobState
from training.choices import BaseOrigin
from training.contract import CHECKPOINT_NAME
from training.models import BaseModel, BaseModelAddition
from training.selectors.base_models import base_of, bases_for
from training.services.registry.base_estimates import estimates_of
from training.services.registry.base_models import (
    NewBaseModel,
    cancel_addition,
    inspect_again,
    look_up_on_hub,
    remove_base_model,
    request_base_model,
)
from training.services.rounds.base_choice import choose_base
from training.views.access import require_manager


class BaseModelSerializer(serializers.ModelSerializer[BaseModel]):
    """A base model of the installation."""

    architecture = serializers.CharField(source="facts.architecture", default="")
    parameters = serializers.IntegerField(source="facts.parameters", default=None, allow_null=True)
    context = serializers.IntegerField(  # type: ignore[assignment]
        source="facts.context", default=None, allow_null=True
    )
    dtype = serializers.CharField(source="facts.dtype", default="", help_text="Precision of the files.")

    class Meta:
        model = BaseModel
        fields: tuple[str, ...] = (
            *("name", "origin", "architecture", "parameters", "context", "dtype", "size"),
            *("repository", "revision", "licence", "created_at"),
        )


class BaseFileSerializer(serializers.Serializer[Any]):
    """One file of a base model."""

    name = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes.")
    sha256 = serializers.CharField()


class EstimateSerializer(serializers.Serializer[Any]):
    """Memory of one use, in bytes, by the precision of the frozen base."""

    name = serializers.CharField(help_text="serving, reward, or a preset of the policy.")
    float32 = serializers.IntegerField()
    bfloat16 = serializers.IntegerField()
    full = serializers.IntegerField(
        allow_null=True, help_text="Training every parameter, without an adapter; null for serving."
    )


class WholeBaseModelSerializer(BaseModelSerializer):
    """A base model with its tokenizer, chat template, files and memory estimates."""

    facts = serializers.DictField(help_text="Architecture, sizes, tokenizer, chat template with an example.")
    files = BaseFileSerializer(many=True)
    memory = serializers.SerializerMethodField()

    class Meta(BaseModelSerializer.Meta):
        fields = (*BaseModelSerializer.Meta.fields, "tokenizer_digest", "facts", "files", "memory")

    def get_memory(self, base: BaseModel) -> list[dict[str, Any]]:
        """By the formulas of the dry run."""
        return [dict(EstimateSerializer(estimate).data) for estimate in estimates_of(base)]


class AdditionSerializer(serializers.ModelSerializer[BaseModelAddition]):
    """A base model that is being added, or was refused."""

    base_model = serializers.CharField(
        source="base.name", default=None, allow_null=True, help_text="What was added."
    )

    class Meta:
        model = BaseModelAddition
        fields = (
            *("id", "name", "origin", "state", "current", "total", "message", "error", "base_model"),
            *("folder", "repository", "revision", "licence", "server_url", "server_model", "server_key"),
            *("cancel_requested", "created_at", "finished_at"),
        )


class NewBaseModelSerializer(serializers.Serializer[Any]):
    """A base model to be added."""

    origin = serializers.ChoiceField(choices=BaseOrigin.choices)
    name = serializers.CharField(
        max_length=100, required=False, default="", allow_blank=True, help_text="Empty: its present name."
    )
    folder = serializers.CharField(
        max_length=1000,
        required=False,
        default="",
        allow_blank=True,
        help_text="Origin folder: its absolute path on the server.",
    )
    repository = serializers.CharField(
        max_length=200, required=False, default="", allow_blank=True, help_text="Origin hub: OWNER/NAME."
    )
    revision = serializers.CharField(max_length=100, required=False, default="", allow_blank=True)
    licence = serializers.CharField(
        max_length=200,
        required=False,
        default=None,
        allow_null=True,
        allow_blank=True,
        help_text="Origin hub: the licence that is accepted, as `/hub-models/` names it.",
    )
    server_url = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    server_model = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    server_key = serializers.CharField(
        max_length=100,
        required=False,
        default="",
        allow_blank=True,
        help_text="The variable with the server's key; its name begins with RONDO_SERVER_KEY_.",
    )


class HubModelSerializer(serializers.Serializer[Any]):
    """A model on the hub at one commit."""

    repository = serializers.CharField()
    revision = serializers.CharField(help_text="The commit.")
    licence = serializers.CharField(allow_blank=True)
    licence_url = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes to download.")


class HubModelFilters(Filters):
    """The model to look up."""

    repository = serializers.CharField(max_length=200, help_text="OWNER/NAME.")
    revision = serializers.CharField(max_length=100, required=False, help_text="Branch, tag or commit.")


class AdditionFilters(Filters):
    """Filters of additions."""

    state = serializers.ChoiceField(choices=JobState.choices, required=False)


class ProjectBaseSerializer(serializers.Serializer[Any]):
    """The base model of a project's next round."""

    base_model = serializers.CharField(max_length=100)


class BaseModelsView(ListView, ApiView):
    """The base models. For managers; superusers add to them."""

    serializer_class = BaseModelSerializer
    queryset = BaseModel.objects.none()

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """All that a manager may see."""
        require_manager(self.user, None)
        return bases_for(self.user)

    @extend_schema(
        operation_id="base_models_list", tags=["base models"], responses=BaseModelSerializer(many=True)
    )
    def get(self, request: Request) -> Response:
        """List the base models of the installation, newest first."""
        return self.listed()

    @extend_schema(
        operation_id="base_models_add",
        tags=["base models"],
        request=NewBaseModelSerializer,
        responses={202: AdditionSerializer},
    )
    def post(self, request: Request) -> Response:
        """Have a worker add a base model; what is not supported is refused. For superusers."""
        self.require_superuser()
        values = read_body(NewBaseModelSerializer, request)
        new_base = NewBaseModel(**{**values, "origin": BaseOrigin(values["origin"])})
        addition = request_base_model(new_base=new_base, requested_by=self.user)
        return Response(AdditionSerializer(addition).data, status=202)


class OfBaseModel(ApiView):
    """Something of the base model in the address. For managers."""

    def base(self, name: str) -> BaseModel:
        """Return the base model in the address."""
        require_manager(self.user, None)
        if not CHECKPOINT_NAME.fullmatch(name):
            # PostgreSQL takes no NUL, not even to look for.
            raise Http404
        return get_object_or_404(bases_for(self.user), name=name)


class BaseModelView(OfBaseModel):
    """One base model. For managers; superusers remove it."""

    @extend_schema(operation_id="base_models_read", tags=["base models"], responses=WholeBaseModelSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Read a base model with its chat template, memory estimates and the digest of every file."""
        return Response(WholeBaseModelSerializer(self.base(name)).data)

    @extend_schema(operation_id="base_models_remove", tags=["base models"], responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Remove it with its files. 422 as long as anything needs it. For superusers."""
        base = self.base(name)
        self.require_superuser()
        remove_base_model(base=base, removed_by=self.user)
        return Response(status=204)


class InspectionView(OfBaseModel):
    """The inspection of a base model. For superusers."""

    @extend_schema(
        operation_id="base_models_inspect",
        tags=["base models"],
        request=None,
        responses={202: AdditionSerializer},
    )
    def post(self, request: Request, name: str) -> Response:
        """Have a worker read its files again."""
        base = self.base(name)
        self.require_superuser()
        return Response(AdditionSerializer(inspect_again(base=base, requested_by=self.user)).data, status=202)


class AdditionsView(ListView, ApiView):
    """Base models that are being added. For superusers."""

    serializer_class = AdditionSerializer
    queryset = BaseModelAddition.objects.none()
    filters = AdditionFilters

    def rows(self, query: Mapping[str, Any]) -> QuerySet[Any]:
        """By state."""
        additions = BaseModelAddition.objects.select_related("base")
        return additions.filter(state=query["state"]) if "state" in query else additions

    @extend_schema(
        operation_id="base_model_additions_list",
        tags=["base models"],
        parameters=[AdditionFilters],
        responses=AdditionSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List what is being added, was added or refused, newest first."""
        self.require_superuser()
        return self.listed()


class AdditionView(ApiView):
    """One addition. For superusers."""

    @extend_schema(
        operation_id="base_model_additions_read", tags=["base models"], responses=AdditionSerializer
    )
    def get(self, request: Request, pk: int) -> Response:
        """Read how far it is, or why it was refused."""
        return Response(AdditionSerializer(self._addition(pk)).data)

    @extend_schema(operation_id="base_model_additions_cancel", tags=["base models"], responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Cancel it; a worker removes what was downloaded."""
        cancel_addition(addition=self._addition(pk), cancelled_by=self.user)
        return Response(status=204)

    def _addition(self, pk: int) -> BaseModelAddition:
        self.require_superuser()
        return get_object_or_404(BaseModelAddition.objects.select_related("base"), pk=pk)


class HubModelView(ApiView):
    """A model on the hub. For superusers."""

    @extend_schema(
        operation_id="hub_models_read",
        tags=["base models"],
        parameters=[HubModelFilters],
        responses=HubModelSerializer,
    )
    def get(self, request: Request) -> Response:
        """Look up commit, licence and size of a model before it is added. 422 where the hub has none."""
        self.require_superuser()
        filters = HubModelFilters(data=request.query_params)
        filters.is_valid(raise_exception=True)
        values = filters.validated_data
        model = look_up_on_hub(repository=values["repository"], revision=values.get("revision", ""))
        return Response(HubModelSerializer(model).data)


class ProjectBaseView(ProjectView):
    """The base model of a project. For managers."""

    @extend_schema(
        operation_id="project_base_model_read", tags=["base models"], responses=ProjectBaseSerializer
    )
    def get(self, request: Request, slug: str) -> Response:
        """Read the base model that the next round begins from."""
        base = base_of(self.project)
        # Before the first round the installation's default is not registered.
        name = base.name if base else settings.RONDO_STARTER_MODEL_NAME
        return Response({"base_model": name})

    @extend_schema(
        operation_id="project_base_model_choose",
        tags=["base models"],
        request=ProjectBaseSerializer,
        responses=ProjectBaseSerializer,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Choose it. A draft takes it at once; an open round goes on as it is."""
        name = read_body(ProjectBaseSerializer, request)["base_model"]
        base = bases_for(self.user).filter(name=name).first()
        if base is None:
            raise serializers.ValidationError(
                {"base_model": [_("There is no base model %(name)r.") % {"name": name[:60]}]}
            )
        choose_base(project=self.project, base=base, chosen_by=self.user)
        return Response({"base_model": base.name})
