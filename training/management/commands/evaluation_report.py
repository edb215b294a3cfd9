"""`manage.py evaluation_report CHECKPOINT --output FILE`: the report of an evaluation as one HTML file."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from training.models import Checkpoint
from training.selectors.evaluations import report_file, report_of


class Command(BaseCommand):
    help = "Write the evaluation of a checkpoint against its parent as one HTML file that can be mailed."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("checkpoint", help="its name")
        parser.add_argument("--output", required=True, type=Path, help="the file to write")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["checkpoint"]
        checkpoint = Checkpoint.objects.filter(name=name).first()
        if checkpoint is None:
            raise CommandError(
                _("There is no checkpoint %(name)r. The Checkpoints page lists all names.") % {"name": name}
            )
        report = report_of(checkpoint)
        if report is None:
            raise CommandError(
                _("%(name)s has not been evaluated: a round evaluates the policy that it trained.")
                % {"name": name}
            )
        try:
            options["output"].write_text(report_file(report), encoding="utf-8")
        except OSError as error:
            raise CommandError(
                _("%(path)s cannot be written: %(error)s.")
                % {"path": options["output"], "error": error.strerror}
            ) from None
        self.stdout.write(f"{len(report.rows)} prompts, {options['output']}")
