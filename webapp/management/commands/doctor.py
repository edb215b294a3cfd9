"""`manage.py doctor`: the status page on the command line."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from webapp.operations.health import Finding, Level
from webapp.operations.state import look

_MARKS = {Level.WRONG: "WRONG", Level.ATTENTION: "look", Level.FINE: "ok"}


class Command(BaseCommand):
    help = "Say what is wrong with this Rondo and what to do; the exit status is 1 where something is wrong."
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--quiet", action="store_true", help="Leave out what is fine.")

    def handle(self, *args: Any, **options: Any) -> None:
        state = look()
        for level in (Level.WRONG, Level.ATTENTION, Level.FINE):
            if level is Level.FINE and options["quiet"]:
                continue
            for finding in state.of(level):
                self._say(finding)
        if state.worst is Level.WRONG:
            sys.exit(1)

    def _say(self, finding: Finding) -> None:
        style = {Level.WRONG: self.style.ERROR, Level.ATTENTION: self.style.WARNING}.get(finding.level, str)
        self.stdout.write(f"{style(f'{_MARKS[finding.level]:<6}')}{finding.says}")
        if finding.remedy:
            self.stdout.write(f"      {finding.remedy}")
