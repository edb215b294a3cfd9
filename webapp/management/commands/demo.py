"""`manage.py demo`: add a simulated project for trying every page."""

import time
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from annotation.errors import Refusal
from training.contract.log_lines import errors_alone
from webapp.demo.project import create_demo


class Command(BaseCommand):
    help = "Add the demo project: three rounds of simulated texts, people, annotations and curves."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--annotations", type=int, default=2000, help="How many, about (default: 2000).")
        parser.add_argument("--seed", type=int, default=0, help="Another seed makes another project.")

    def handle(self, *args: Any, **options: Any) -> None:
        began = time.monotonic()
        try:
            with errors_alone():
                project = create_demo(
                    annotations=options["annotations"], seed=options["seed"], tell=self.stdout.write
                )
        except Refusal as error:
            raise CommandError(str(error)) from error
        seconds = time.monotonic() - began
        self.stdout.write(f"{project} is at /projects/{project.slug}/ ({seconds:.0f} s).")
