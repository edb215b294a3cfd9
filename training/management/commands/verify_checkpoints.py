"""`manage.py verify_checkpoints`: read every file of the checkpoints and hold it against its digest."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.choices import CheckpointKind
from training.models import Checkpoint
from training.services.checkpoint_files import FileState, check_files


class Command(BaseCommand):
    help = "Check every file of the named checkpoints, or of all, against the digests that were registered."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("names", nargs="*", metavar="NAME", help="checkpoints; all where none is named")

    def handle(self, *args: Any, **options: Any) -> None:
        chosen = Checkpoint.objects.exclude(kind=CheckpointKind.STARTER).order_by("pk")
        if options["names"]:
            chosen = chosen.filter(name__in=options["names"])
            if missing := sorted(set(options["names"]) - set(chosen.values_list("name", flat=True))):
                raise CommandError(_("No such checkpoint: %(names)s.") % {"names": ", ".join(missing)})
        else:
            chosen = chosen.filter(files_deleted_at__isnull=True, server_url="")
        damaged = [checkpoint.name for checkpoint in chosen if not self._check(checkpoint)]
        if damaged:
            raise CommandError(_("Damaged: %(names)s.") % {"names": ", ".join(damaged)})

    def _check(self, checkpoint: Checkpoint) -> bool:
        try:
            files = check_files(checkpoint, in_store=True)
        except Refusal as refusal:
            self.stdout.write(f"{checkpoint}: {refusal.message}")
            return False
        for file in files:
            if not file.is_sound:
                self.stdout.write(f"{checkpoint}: {file.name} is {file.state}")
        sound = not any(file.state in (FileState.CHANGED, FileState.MISSING) for file in files)
        self.stdout.write(f"{checkpoint}: {'intact' if sound else 'damaged'}, {len(files)} files")
        return sound
