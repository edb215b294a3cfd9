"""Uploaded files in the store that workers share: received by one host, imported by another."""

from pathlib import Path

from annotation.exchange.uploads import UploadedFiles
from training.files import shared


class SharedUploads(UploadedFiles):
    """Uploads in the store, with a local copy."""

    def keep(self, path: Path) -> None:
        """Send the file. Raises if the store refuses it: then nothing was received."""
        shared.publish(path)

    def here(self, path: Path) -> Path:
        """Fetch the file if it is missing here."""
        return shared.fetched(path)

    def remove(self, path: Path) -> None:
        """Remove the file here and in the store."""
        super().remove(path)
        shared.forget(path)
