"""Where uploaded files are between the web process that receives one and the worker that brings it in."""

from pathlib import Path

from django.conf import settings
from django.utils.module_loading import import_string

from annotation.errors import Refusal


class UploadsAwayError(Refusal):
    """The file lies elsewhere, and cannot be had from there now. The same may be tried again."""


class UploadedFiles:
    """In a folder that web processes and workers have in common: there is nothing to do."""

    def keep(self, path: Path) -> None:
        """A file was received whole: have it where workers find it."""

    def here(self, path: Path) -> Path:
        """The file on this machine."""
        return path

    def remove(self, path: Path) -> None:
        """The file is not needed any more."""
        path.unlink(missing_ok=True)


def uploaded_files() -> UploadedFiles:
    """What the settings name: `annotation` knows no store, whoever puts Rondo together does."""
    made: UploadedFiles = import_string(settings.RONDO_UPLOADED_FILES)()
    return made
