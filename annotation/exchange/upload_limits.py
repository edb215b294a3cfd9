"""Limits of uploads: files per person and minute, and files that nobody imports."""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from annotation.choices import ImportState
from annotation.errors import Refusal
from annotation.models import AuditEntry, Project, User
from annotation.services import audit

UPLOAD = "import.upload"
MOST_KEPT = 50
"""Files of one project that were uploaded and not imported."""


def count_upload(*, project: Project, user: User, size: int) -> None:
    """Write an upload down; of many at once exactly as many pass as may. Refuses the others."""
    most = settings.RONDO_UPLOADS_PER_MINUTE
    with transaction.atomic():
        # Whoever uploads many files at once waits here for themselves.
        User.objects.select_for_update().get(pk=user.pk)
        since = timezone.now() - timedelta(minutes=1)
        lately = AuditEntry.objects.filter(action=UPLOAD, actor=user, created_at__gt=since)
        if lately.count() >= most:
            raise Refusal(
                "too_many_uploads",
                _("You may upload %(most)s files a minute. Wait a moment, then upload this one again."),
                field="file",
                most=number_format(most),
            )
        imports = project.file_imports.filter(state__in=(ImportState.UPLOADED, ImportState.FAILED))
        if imports.exclude(stored_as="").count() >= MOST_KEPT:
            raise Refusal(
                "too_many_waiting_files",
                _("%(most)s files wait here to be imported. Import some of them or delete them."),
                field="file",
                most=number_format(MOST_KEPT),
            )
        audit.record(action=UPLOAD, subject=project, actor=user, project=project, details={"bytes": size})
