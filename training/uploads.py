"""Uploaded files in the store that machines share: received by one, brought in by another."""

from collections.abc import Callable
from pathlib import Path

from annotation.uploaded_files import UploadedFiles, UploadsAwayError
from training import files


class SharedUploads(UploadedFiles):
    """In the store, with a copy where it is worked with."""

    def keep(self, path: Path) -> None:
        """Send it. Refuses where the store does not take it: then nothing was received."""
        self._tried(lambda: files.publish(path))

    def here(self, path: Path) -> Path:
        """Fetch it where it is not here."""
        self._tried(lambda: files.fetched(path))
        return path

    def remove(self, path: Path) -> None:
        """Remove it here and there."""
        super().remove(path)
        files.forget(path)

    def _tried(self, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except files.StoreAway as away:
            raise UploadsAwayError(away.message) from away
