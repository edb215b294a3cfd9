"""Checkpoints that programs may query."""

from django.db.models import QuerySet

from annotation.models import User
from training.choices import WRITES_TEXT
from training.models import Checkpoint
from training.selectors.projects import checkpoints_for


def served_models(user: User) -> QuerySet[Checkpoint]:
    """Return checkpoints that write text and whose files exist: of projects that `user` manages, and of none.

    A mere annotator gets none: querying a checkpoint would reveal which answers it wrote.
    """
    return (
        checkpoints_for(user)
        .filter(kind__in=WRITES_TEXT, files_deleted_at__isnull=True)
        .select_related("project")
    )
