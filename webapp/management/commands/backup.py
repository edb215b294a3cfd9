"""`manage.py backup`: database and files into a folder or a bucket."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from training.store import StoreError
from webapp.backup import make_backup
from webapp.backup.target import BackupError, Target


class Command(BaseCommand):
    help = "Copy the database and all files into a folder or a store."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("target", help="A folder, or an address such as s3://bucket/prefix.")
        parser.add_argument(
            "--verify",
            action="store_true",
            help="Make none; read the newest, or --name, and check every file.",
        )
        parser.add_argument("--name", default="", help="Which back-up --verify reads.")
        parser.add_argument("--list", action="store_true", help="Make none; list those that are there.")
        parser.add_argument("--keep", type=int, metavar="N", help="Afterwards keep only the newest N.")
        parser.add_argument("--without-models", action="store_true", help="Leave the base models out.")
        parser.add_argument(
            "--with-secrets",
            action="store_true",
            help="Take RONDO_HOME/secret_key along, without which second factors have to be set up anew.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["keep"] is not None and options["keep"] < 1:
            raise CommandError(_("--keep takes a number from 1."))
        try:
            target = Target(options["target"])
            if options["list"]:
                of_1_0 = [f"{name} (of Rondo 1.0, which restores it)" for name in target.names_of_1_0()]
                self.stdout.write("\n".join(sorted(of_1_0 + target.names())))
            elif options["verify"]:
                self._verify(target, options["name"])
            else:
                self._make(target, options)
        except (BackupError, Refusal, StoreError) as error:
            raise CommandError(str(error)) from error

    def _make(self, target: Target, options: dict[str, Any]) -> None:
        made = make_backup(target, models=not options["without_models"], secrets=options["with_secrets"])
        rows = sum(made.manifest.rows.values())
        self.stdout.write(
            f"{made.name}: {rows} rows, {len(made.manifest.paths)} files, {_megabytes(made.manifest.size)}."
        )
        if options["keep"]:
            for name in target.forget_all_but(options["keep"]):
                self.stdout.write(f"{name}: removed")

    def _verify(self, target: Target, name: str) -> None:
        manifest = target.manifest(name)
        if damaged := target.damaged(name or target.names()[-1], manifest):
            raise CommandError(_("Damaged: %(names)s.") % {"names": ", ".join(damaged)})
        self.stdout.write(f"The back-up of {manifest.time} is intact: {_megabytes(manifest.size)}.")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
