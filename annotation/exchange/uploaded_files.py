"""Uploaded files between the web process that receives one and the worker that imports it."""

from pathlib import Path

from django.conf import settings
from django.utils.module_loading import import_string


class UploadedFiles:
    """In a folder that web processes and workers have in common: there is nothing to do.

    Files that lie elsewhere may be `Unavailable` for a while.
    """

    def keep(self, path: Path) -> None:
        """A file was received whole: have it where workers find it."""

    def here(self, path: Path) -> Path:
        """The file on this machine."""
        return path

    def remove(self, path: Path) -> None:
        """The file is not needed any more."""
        path.unlink(missing_ok=True)


def uploaded_files() -> UploadedFiles:
    """Return the store that the settings name: `annotation` knows none."""
    made: UploadedFiles = import_string(settings.RONDO_UPLOADED_FILES)()
    return made
