"""`manage.py restore`: a back-up into an empty installation."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from annotation.errors import Refusal
from training.store import StoreError
from webapp.backup import restore_backup
from webapp.backup.target import BackupError, Target


class Command(BaseCommand):
    help = "Bring a back-up into this installation, which must be empty and must not run."
    # The database may not exist yet, or have an older schema.
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", help="Where `manage.py backup` put it: a folder or an address.")
        parser.add_argument("--name", default="", help="Which one; the newest otherwise.")
        parser.add_argument(
            "--force", action="store_true", help="Replace what this installation holds. It is gone then."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        def report(words: str) -> None:
            if options["verbosity"] > 1:
                self.stdout.write(words)

        try:
            manifest = restore_backup(
                Target(options["source"]), options["name"], force=options["force"], report=report
            )
        except (BackupError, Refusal, StoreError) as error:
            raise CommandError(str(error)) from error
        rows = sum(manifest.rows.values())
        self.stdout.write(f"Restored from {manifest.time}: {rows} rows, {len(manifest.paths)} files.")
