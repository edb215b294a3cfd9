"""`manage.py share_files`: what this machine has and the store lacks goes there."""

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from training.files.shared import OWN_FILES, shared
from training.store import StoreError

KINDS = ("models", "snapshots", "runs", "checkpoints", "imports")


class Command(BaseCommand):
    help = "Send every folder that the store of RONDO_STORE_URL lacks; what is there already stays as it is."

    def handle(self, *args: Any, **options: Any) -> None:
        store = shared()
        if store is None:
            raise CommandError(_("RONDO_STORE_URL is not set: there is nothing to send files to."))
        sent = 0
        for kind in KINDS:
            folder = Path(settings.RONDO_HOME) / kind
            here = sorted(folder.iterdir()) if folder.is_dir() else []
            try:
                there = set(store.names(kind))
                for path in here:
                    if not path.name.startswith(".") and path.name not in there:
                        store.publish(
                            f"{kind}/{path.name}", path, left_out=OWN_FILES if kind == "runs" else ()
                        )
                        sent += 1
            except StoreError as error:
                raise CommandError(str(error)) from error
        self.stdout.write(f"{sent} folders sent.")
