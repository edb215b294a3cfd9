"""A project's settings of conversations."""

from collections.abc import Sequence

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.models.conversations import MOST_TURNS
from annotation.selectors import access
from annotation.services import audit
from training.models import Checkpoint, ContinuesWith, ConversationSettings
from training.selectors.projects import responding_checkpoints

FEWEST_RESPONSES, MOST_RESPONSES = 2, 4
MOST_CHECKPOINTS = 8


@transaction.atomic
def save_conversation_settings(
    *,
    project: Project,
    actor: User,
    checkpoints: Sequence[Checkpoint],
    responses: int = 2,
    continues_with: str = ContinuesWith.CHOSEN,
    most_turns: int = 10,
    rates_whole: bool = True,
    is_open: bool = True,
    temperature: float = 0.7,
    max_tokens: int = 256,
) -> ConversationSettings:
    """Write how annotators talk with the project's checkpoints. Conversations that go on follow it at once.

    One checkpoint is enough: it then gives all responses, each with its own seed. Refuses who does not manage
    the project, no checkpoint, and checkpoints that do not answer here, naming the field.
    """
    access.refuse_unless_manager(actor, project, "manager_changes_conversations")
    chosen = {checkpoint.pk for checkpoint in checkpoints}
    if not FEWEST_RESPONSES <= responses <= MOST_RESPONSES:
        raise Refusal("invalid_response_count", _("Choose two to four responses."), field="responses")
    if not 1 <= len(chosen) <= MOST_CHECKPOINTS:
        raise Refusal(
            "invalid_checkpoint_count",
            _("Choose one to %(most)s checkpoints."),
            field="checkpoints",
            most=MOST_CHECKPOINTS,
        )
    if responding_checkpoints(project).filter(pk__in=chosen).count() < len(chosen):
        raise Refusal(
            "unknown_checkpoint",
            _("Choose checkpoints of this project that write text."),
            field="checkpoints",
        )
    if not 1 <= most_turns <= MOST_TURNS:
        raise Refusal(
            "invalid_turn_count", _("Choose 1 to %(most)s turns."), field="most_turns", most=MOST_TURNS
        )
    saved, _new = ConversationSettings.objects.update_or_create(
        project=project,
        defaults={
            "responses": responses,
            "continues_with": continues_with,
            "most_turns": most_turns,
            "rates_whole": rates_whole,
            "is_open": is_open,
            "sampling": {"temperature": temperature, "top_p": 0.95, "max_tokens": max_tokens},
        },
    )
    saved.checkpoints.set(chosen)
    audit.record(
        action="conversation.settings",
        subject=project,
        actor=actor,
        project=project,
        details={"checkpoints": sorted(checkpoint.name for checkpoint in checkpoints), "is_open": is_open},
    )
    return saved
