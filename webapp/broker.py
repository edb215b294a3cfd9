"""The broker in a folder: kombu's file-system transport with atomic writes."""

import os
import uuid
from pathlib import Path
from time import monotonic
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    """A channel that writes each message to a temporary name, then renames it.

    kombu writes into the file under its final name; a reader that opens it too early gets an empty file,
    which crashes its worker.
    """

    # Its two parents disagree on the name of the second parameter.
    def _put(self, queue: str, payload: dict[str, Any], **_options: object) -> None:  # type: ignore[override]
        name = f"{round(monotonic() * 1000)}_{uuid.uuid4()}"
        folder = Path(self.data_folder_out)
        draft = folder / f"{name}.draft"
        try:
            draft.write_text(dumps(payload), encoding="utf-8")
            os.replace(draft, folder / f"{name}.{queue}.msg")
        except OSError as error:
            raise ChannelError(f"Cannot write a message to {folder}: {error.strerror}") from error


class Transport(filesystem.Transport):
    """The transport that `CELERY_BROKER_TRANSPORT` names."""

    Channel = Channel
