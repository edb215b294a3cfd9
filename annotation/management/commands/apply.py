"""`manage.py apply FILE [--project SLUG] [--dry-run]`, and `manage.py apply --export [--project SLUG]`"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.project_file import ProjectFile, in_yaml, read, write
from annotation.management.projects import project_named
from annotation.models import Project, User
from annotation.selectors.project_file import Change
from annotation.services.projects.project_file import json_schema

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


class Command(BaseCommand):
    help = (
        "Apply a project file: questions, categories, rubrics, guidelines, settings and recipe of a project "
        "in one YAML file. Prints every change. All or nothing; what stands as the file says is left alone. "
        "A project that --project names and that is not there is created."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", nargs="?", metavar="FILE", help="the file to apply; - for standard input")
        parser.add_argument(
            "--project", metavar="SLUG", help="the project; may be left out when there is one"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="print the changes, check them, and apply nothing"
        )
        parser.add_argument(
            "--by", metavar="USERNAME", help="who applies it, for the audit log; by default a superuser"
        )
        parser.add_argument("--export", action="store_true", help="write the project as a file instead")
        parser.add_argument("--schema", action="store_true", help="write the JSON Schema of files instead")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["schema"]:
            self.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False))
            return
        if options["export"]:
            self.stdout.write(write(project_named(options["project"])), ending="")
            return
        if not options["file"]:
            raise CommandError(_("Name the file to apply, or - for standard input."))
        try:
            self._apply(read(_bytes(options["file"])), options)
        except OSError as error:
            raise CommandError(
                _("%(path)s cannot be read: %(error)s.") % {"path": options["file"], "error": error.strerror}
            ) from None
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal

    def _apply(self, file: ProjectFile, options: dict[str, Any]) -> None:
        slug, dry_run = options["project"], options["dry_run"]
        by = _person(options["by"])
        project = Project.objects.filter(slug=slug).first() if slug else project_named(None)
        if project is None:
            changes = file.compare(None)
            file.create(slug=slug, by=by, rehearses=dry_run)
        else:
            changes = file.compare(project)
            file.apply(project=project, by=by, rehearses=dry_run)
        self._tell(changes)
        name = slug or (project.slug if project else "")
        if dry_run:
            self.stdout.write(_("Nothing was applied to %(name)s.") % {"name": name})
        elif project is None:
            self.stdout.write(_("The project %(name)s was created.") % {"name": name})
        else:
            self.stdout.write(
                _("Applied to %(name)s.") % {"name": name} if changes else _("Nothing to change.")
            )

    def _tell(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.stdout.write(f"{_SIGNS[change.kind]} {change.path}")
            for sign, value in (("-", change.before), ("+", change.after)):
                if value is not None:
                    for line in in_yaml(value).splitlines():
                        self.stdout.write(f"    {sign} {line}")


def _bytes(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _person(username: str | None) -> User:
    """Return who applies the file: the one that is named, or the first superuser."""
    people = User.objects.filter(is_active=True)
    chosen = people.filter(username=username) if username else people.filter(is_superuser=True)
    person = chosen.order_by("pk").first()
    if person is None:
        raise CommandError(
            _("There is no active account %(name)s. Name one that manages the project with --by.")
            % {"name": username or ""}
        )
    return person
