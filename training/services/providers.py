"""Providers of models: added, changed, tested, removed; their models respond here without a restart."""

from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.errors import NotAllowed, Refusal
from annotation.models import User
from annotation.models.webhooks import seal
from annotation.services import audit
from training.choices import BaseOrigin
from training.engine import OPENAI, Engine, EngineError, ModelServerTransport, base_of, check_url, key_of
from training.models import BaseModel, Checkpoint, ModelProvider
from training.models.providers import LONGEST_PROVIDER_NAME, MOST_MODELS, SEALED_FOR
from training.services.base_models import register_base_model, require_free_name

LONGEST_KEY = 500
TEST_SECONDS = 10.0
"""A test is given up after so long: a person waits for it."""


def add_provider(*, name: str, url: str, key: str = "", added_by: User) -> ModelProvider:
    """Write down a server and its key, which is sealed at once. For superusers.

    Refuses a name that is taken, an address that is not asked, and a key that no header can carry.
    """
    _require_superuser(added_by)
    provider = ModelProvider(created_by=added_by)
    _fill(provider, name=name, url=url)
    provider.sealed_key = _sealed(key)
    with transaction.atomic():
        _save(provider)
        _audit("provider.add", provider, added_by, name=provider.name, url=provider.url, key=bool(key))
    return provider


def change_provider(
    *, provider: ModelProvider, name: str, url: str, key: str | None = None, changed_by: User
) -> ModelProvider:
    """Change a provider; the next request to one of its models uses what stands then. For superusers.

    key: None keeps the present one, "" takes it away. Refuses another server without its key: the key of the
    first would be sent to the second.
    """
    _require_superuser(changed_by)
    with transaction.atomic():
        held = ModelProvider.objects.select_for_update().get(pk=provider.pk)
        before = base_of(held.url)
        _fill(held, name=name, url=url)
        if base_of(held.url) != before:
            if key is None and held.has_key:
                raise Refusal(
                    "provider_key_missing",
                    _("Write the key for the new address: the present one belongs to the old server."),
                    field="key",
                )
            held.served_models, held.tested_at, held.error = [], None, ""
        if key is not None:
            held.sealed_key = _sealed(key)
        _save(held)
        held.checkpoints.update(server_url=held.url)
        _audit("provider.change", held, changed_by, name=held.name, url=held.url, key_changed=key is not None)
    return held


def test_provider(*, provider: ModelProvider, tested_by: User) -> ModelProvider:
    """Ask a provider for its models and keep the answer: the list, or why there is none. For superusers."""
    _require_superuser(tested_by)
    found: list[str] = []
    error = ""
    try:
        check_url(provider.url)
        with Engine(
            url=base_of(provider.url),
            key=key_of("", provider=provider),
            timeout=TEST_SECONDS,
            transport=ModelServerTransport(),
            dialect=OPENAI,
        ) as engine:
            found = sorted(set(engine.models()))[:MOST_MODELS]
    except EngineError as failure:
        error = str(failure)
    provider.tested_at, provider.error = timezone.now(), error
    if not error:
        # A server that is down for a while still has its models.
        provider.served_models = found
    provider.save(update_fields=["tested_at", "error", "served_models"])
    return provider


def add_model(*, provider: ModelProvider, model: str, name: str = "", added_by: User) -> BaseModel:
    """Let a provider's model respond, be compared and judge, under a name; empty takes its own.

    Refuses a model that the last test did not find, and a name that is taken or not valid. For superusers.
    """
    _require_superuser(added_by)
    if model not in provider.served_models:
        raise Refusal(
            "unknown_server_model",
            _("%(provider)s has no model %(model)s. Test the connection to read the list again."),
            field="model",
            provider=provider,
            model=model[:200],
        )
    name = name.strip() or model.rpartition("/")[2]
    require_free_name(name)
    with transaction.atomic():
        # Its address cannot change between the two rows.
        held = ModelProvider.objects.select_for_update().get(pk=provider.pk)
        base = register_base_model(
            name=name,
            origin=BaseOrigin.SERVER,
            created_by=added_by,
            provider=held,
            server_url=held.url,
            server_model=model,
        )
        details = {"url": held.url, "model": model, "provider": held.name}
        audit.record(action="checkpoint.serve", subject=base.starter, actor=added_by, details=details)
    return base


def remove_provider(*, provider: ModelProvider, removed_by: User) -> None:
    """Remove a provider with its key. Refuses one whose models are here. For superusers."""
    _require_superuser(removed_by)
    with transaction.atomic():
        held = ModelProvider.objects.select_for_update().get(pk=provider.pk)
        used = list(Checkpoint.objects.filter(provider=held).values_list("name", flat=True)[:5])
        if used:
            raise Refusal(
                "provider_in_use",
                _("Models of this provider are here: %(models)s. Remove them first."),
                models=", ".join(used),
            )
        _audit("provider.remove", held, removed_by, name=held.name, url=held.url)
        held.delete()


def _require_superuser(user: User) -> None:
    if not user.is_superuser:
        raise NotAllowed("administrator_changes_providers", _("Only an administrator changes providers."))


def _fill(provider: ModelProvider, *, name: str, url: str) -> None:
    provider.name, provider.url = name.strip(), url.strip()
    if not 0 < len(provider.name) <= LONGEST_PROVIDER_NAME:
        raise Refusal(
            "invalid_provider_name",
            _("Write a name of at most %(most)d characters."),
            field="name",
            most=LONGEST_PROVIDER_NAME,
        )
    try:
        check_url(provider.url)
    except EngineError as error:
        raise Refusal("server_address_refused", str(error), field="url") from error


def _sealed(key: str) -> str:
    key = key.strip()
    if len(key) > LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise Refusal(
            "invalid_provider_key",
            _("A key has at most %(most)d printable characters without accents, as the provider shows it."),
            field="key",
            most=LONGEST_KEY,
        )
    return seal(key, purpose=SEALED_FOR) if key else ""


def _save(provider: ModelProvider) -> None:
    try:
        with transaction.atomic():
            provider.save()
    except IntegrityError:
        raise Refusal(
            "provider_name_in_use", _("A provider has this name. Choose another."), field="name"
        ) from None


def _audit(action: str, provider: ModelProvider, actor: User, **details: Any) -> None:
    """Record what was done. The key is never among the details, only whether there is one."""
    audit.record(action=action, subject=provider, actor=actor, details=details)
