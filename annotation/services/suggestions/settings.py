"""Help of a project: switched on and off by its managers."""

from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from annotation.errors import Refusal
from annotation.models import HelpSettings, Project, User
from annotation.selectors import access
from annotation.services import audit


@transaction.atomic
def set_help(*, project: Project, is_active: bool, by: User, **values: Any) -> HelpSettings:
    """Switch help on or off, and give its settings other values. Arms that were drawn stay.

    `values` are fields of `HelpSettings`. Refuses who does not manage the project, and a value that a field
    does not accept, naming the field.
    """
    access.refuse_unless_manager(by, project, "manager_changes_suggestions")
    settings = HelpSettings.objects.filter(project=project).first() or HelpSettings(project=project)
    for name, value in values.items():
        setattr(settings, name, value)
    try:
        settings.full_clean(validate_unique=False)
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        raise Refusal(
            "invalid_suggestion_settings", " ".join(messages), field=None if field == "__all__" else field
        ) from None
    settings.save()
    project.has_help = is_active
    project.save(update_fields=["has_help"])
    audit.record(
        action="help.start" if is_active else "help.stop",
        subject=project,
        actor=by,
        project=project,
        details=dict(values),
    )
    return settings
