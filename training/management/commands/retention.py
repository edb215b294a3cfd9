"""`manage.py retention`: delete the files that this installation does not keep, or say which."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.template.defaultfilters import filesizeformat

from training.services.checkpoint_files import apply_retention, expired_files


class Command(BaseCommand):
    help = (
        "Delete files that the settings RONDO_KEEP_CHECKPOINTS and RONDO_KEEP_RUN_STATES do not keep, and "
        "exports that waited a week. Records stay. A worker does the same once a day."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="delete nothing, only list it")

    def handle(self, *args: Any, **options: Any) -> None:
        listed = expired_files() if options["dry_run"] else apply_retention()
        for entry in listed:
            self.stdout.write(f"{entry.what}, {filesizeformat(entry.size)}")
        total = filesizeformat(sum(entry.size for entry in listed))
        done = "would be deleted" if options["dry_run"] else "deleted"
        self.stdout.write(f"{len(listed)} {done}, {total}")
