"""Models of other servers: written down as checkpoints without files."""

from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.choices import SourceKind
from annotation.errors import NotAllowed, Refusal
from annotation.models import CompletionSource, Project, User
from annotation.services.audit import record
from training.choices import BaseOrigin, CheckpointKind
from training.engine import EngineError, check_url, key_of
from training.models import BaseModel, Checkpoint, validate_checkpoint_name


def register_served_model(
    *, name: str, url: str, model: str = "", key: str = "", project: Project | None = None, by: User
) -> Checkpoint:
    """Write down a model that another OpenAI-compatible server answers for.

    It answers prompts, is compared and judges like any checkpoint; nothing can be trained from it here.
    For superusers alone: whoever may choose an address and a key may send that key there. Refuses an
    address that is not asked, a variable that is no server's key or is not set, and a name that is taken.
    """
    if not by.is_superuser:
        raise NotAllowed(
            "administrator_changes_served_models", _("Only an administrator adds models of other servers.")
        )
    try:
        validate_checkpoint_name(name)
    except ValidationError as error:
        raise Refusal("invalid_model_name", error.messages[0], field="name") from error
    try:
        check_url(url)
    except EngineError as error:
        raise Refusal("server_address_refused", str(error), field="url") from error
    try:
        key_of(key)
    except EngineError as error:
        raise Refusal("server_key_refused", str(error), field="key") from error
    try:
        with transaction.atomic():
            base = BaseModel.objects.create(name=name, origin=BaseOrigin.SERVER, created_by=by)
            checkpoint = Checkpoint.objects.create(
                name=name,
                kind=CheckpointKind.STARTER,
                project=project,
                base_model=model or name,
                base=base,
                source=CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT),
                server_url=url,
                server_model=model,
                server_key=key,
            )
            record(
                action="checkpoint.serve",
                subject=checkpoint,
                actor=by,
                project=project,
                details={"url": url, "model": model, "key": key},
            )
    except IntegrityError:
        raise Refusal(
            "model_name_in_use",
            _("A checkpoint or an imported set has this name. Choose another."),
            field="name",
        ) from None
    return checkpoint
