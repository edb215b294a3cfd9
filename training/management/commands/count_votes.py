"""`manage.py count_votes [--rebuild] [PROJECT]`"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from annotation.management.projects import project_named
from annotation.models import Project
from training.services.leaderboard import count_votes, rebuild_votes


class Command(BaseCommand):
    help = (
        "Count the votes that leaderboards add up. The worker does so by itself every few seconds; with "
        "--rebuild a project's counts are made anew from its judgments."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "project", nargs="?", metavar="PROJECT", help="slug; with --rebuild, left out for every project"
        )
        parser.add_argument("--rebuild", action="store_true", help="forget the counts and count anew")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["rebuild"]:
            named = [project_named(options["project"])] if options["project"] else Project.objects.all()
            for project in named:
                self.stdout.write(f"{project}: {rebuild_votes(project=project)} judgments counted anew")
        self.stdout.write(f"{count_votes()} new judgments counted")
