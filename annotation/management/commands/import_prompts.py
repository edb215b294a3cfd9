"""`manage.py import_prompts FILE [--project SLUG]`"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.prompts import import_prompts
from annotation.management.projects import project_named


class Command(BaseCommand):
    help = (
        "Import prompts from a JSONL file into a project: one object a line with 'prompt' (a text or chat "
        "messages) and, where there is one, 'context', 'reference', 'tags' and 'completions' (answers to be "
        "compared). Nothing is imported from a "
        "file with an error, and importing a file twice adds nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the JSONL file, in UTF-8")
        parser.add_argument(
            "--project", metavar="SLUG", help="the project that gets them; may be left out when there is one"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = project_named(options["project"])
        try:
            # A byte that is no UTF-8 comes through as a mark, so that its line can be named;
            # only "\n" ends a line: a lone "\r" may stand inside a JSON text's line.
            with options["file"].open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
                report = import_prompts(project=project, lines=lines, name=str(options["file"]))
        except OSError as error:
            raise CommandError(
                _("%(path)s cannot be read: %(error)s.") % {"path": options["file"], "error": error.strerror}
            ) from None
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal
        message = f"{report.added} prompts added to {project}, {report.already_there} were there already."
        if report.comparisons:
            message += f" {report.comparisons} comparisons added."
        self.stdout.write(message)
