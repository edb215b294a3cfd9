"""Which checkpoints programs may ask."""

from django.db.models import QuerySet

from annotation.models import User
from training.choices import WRITES_TEXT
from training.models import Checkpoint
from training.selectors import checkpoints_for


def served_models(user: User) -> QuerySet[Checkpoint]:
    """Checkpoints that write text and whose files are there: of projects that `user` manages, and of none.

    Who only judges in a project gets none: asking a checkpoint would tell which answers are its own.
    """
    return (
        checkpoints_for(user)
        .filter(kind__in=WRITES_TEXT, files_deleted_at__isnull=True)
        .select_related("project")
    )
