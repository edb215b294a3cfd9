"""Providers of models: listed, added, changed, tested, removed; their models added. For superusers."""

from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework import serializers

from annotation.api import fields
from annotation.api.base import ApiView
from annotation.api.operations import Resource, Values, superusers
from training.api.checkpoints import CheckpointSerializer
from training.models import Checkpoint, ModelProvider
from training.models.providers import LONGEST_PROVIDER_NAME
from training.services.providers import (
    LONGEST_KEY,
    add_model,
    add_provider,
    change_provider,
    remove_provider,
    test_provider,
)


@fields.of(ModelProvider, "id name url has_key served_models tested_at error created_at")
class ProviderSerializer(serializers.ModelSerializer[ModelProvider]):
    """A provider, without its key."""

    has_key = fields.flag("Whether a key is sent along.")
    served_models = fields.several(fields.text(), "Names that it gave when last tested.")


class NewProviderSerializer(serializers.Serializer[Any]):
    """A provider to be added."""

    name = fields.text(most=LONGEST_PROVIDER_NAME)
    url = fields.text("Of a server with an OpenAI-compatible API.", most=200)
    key = fields.text("Stored encrypted; no response holds it.", most=LONGEST_KEY, default="")


class ProviderChangeSerializer(serializers.Serializer[Any]):
    """The fields of a provider to change."""

    name = fields.text(most=LONGEST_PROVIDER_NAME, required=False)
    url = fields.text("Another server needs its key, too.", most=200, required=False)
    key = fields.text("Empty takes it away.", most=LONGEST_KEY, required=False, allow_blank=True)


class ProviderModelSerializer(serializers.Serializer[Any]):
    """One of a provider's models."""

    model = fields.text("Its name there.", most=200)
    name = fields.text("Its name here; empty: the same.", most=100, default="")


providers = Resource(ApiView, "providers/", tag="base models", rows=lambda _view: ModelProvider.objects.all())


def _provider(view: ApiView, pk: int) -> ModelProvider:
    view.require_superuser()
    return get_object_or_404(ModelProvider, pk=pk)


provider = providers.item("<int:pk>/", find=_provider)

providers.add_list("providers_list", ProviderSerializer, "List the providers.", requires=superusers)
provider.add_read("providers_read", ProviderSerializer, "Read a provider with its models.")


# A request with a key is not stored in plain text.
@providers.post(
    takes=NewProviderSerializer,
    returns=ProviderSerializer,
    status=201,
    requires=superusers,
    keeps_answers=False,
)
def providers_add(view: ApiView, values: Values) -> ModelProvider:
    """Add a provider; `test/` then asks it for its models."""
    return add_provider(**values, added_by=view.user)


@provider.patch(takes=ProviderChangeSerializer, returns=ProviderSerializer, locks=True)
def providers_change(view: ApiView, provider: ModelProvider, values: Values) -> ModelProvider:
    """Change the fields that are sent. Honours `If-Match`."""
    changes: Values = {"name": provider.name, "url": provider.url, "key": None} | values
    return change_provider(provider=provider, **changes, changed_by=view.user)


@provider.delete(requires=superusers)
def providers_remove(view: ApiView, provider: ModelProvider) -> None:
    """Remove a provider with its key. 422 as long as models of it are here."""
    remove_provider(provider=provider, removed_by=view.user)


@provider.post("test/", returns=ProviderSerializer)
def providers_test(view: ApiView, provider: ModelProvider) -> ModelProvider:
    """Ask it for its models. `error` says why it did not answer."""
    return test_provider(provider=provider, tested_by=view.user)


@provider.post("models/", takes=ProviderModelSerializer, returns=CheckpointSerializer, status=201)
def providers_add_model(view: ApiView, provider: ModelProvider, values: Values) -> Checkpoint:
    """Let one of its models respond, be compared and judge."""
    return add_model(provider=provider, **values, added_by=view.user).starter
