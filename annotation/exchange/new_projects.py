"""New projects that begin with a file."""

from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.db import transaction

from annotation.exchange.uploads import receive_upload
from annotation.models import FileImport, Project, User
from annotation.services.projects.templates import create_from_template


@transaction.atomic
def create_with_upload(
    *,
    template: str,
    name: str,
    slug: str,
    description: str = "",
    upload: "UploadedFile[Any] | None" = None,
    created_by: User,
) -> tuple[Project, FileImport | None]:
    """Create a project from a template and keep a file to be looked through before it is imported.

    Refuses as `create_from_template` and `receive_upload` do; then there is neither project nor file.
    """
    project = create_from_template(
        template=template, name=name, slug=slug, description=description, created_by=created_by
    )
    if upload is None:
        return project, None
    return project, receive_upload(project=project, upload=upload, user=created_by)
