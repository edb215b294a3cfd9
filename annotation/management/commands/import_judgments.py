"""`manage.py import_judgments FILE [--format FORMAT] [--map OURS=THEIRS] [--project SLUG]`"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.exchange.file_imports import import_file, plan_of
from annotation.exchange.formats import rows
from annotation.exchange.formats.plans import Plan, require_answers
from annotation.exchange.formats.registry import READERS
from annotation.management.projects import project_named
from annotation.models import FileImport, Project
from annotation.services.projects.projects import create_project

_SHOWN_ERRORS = 50


class Command(BaseCommand):
    help = (
        "Import prompts, answers and judgments into a project. The format and the columns are guessed and "
        "told; --dry-run only tells them. FILE may be JSON Lines (also .gz), JSON, CSV, Parquet or Arrow, "
        "the folder of a data set, or the id of one on the Hugging Face hub. Nothing is imported from a file "
        "with a bad row, unless --skip-bad; importing a file twice adds nothing; what was cut off goes on "
        "where it stopped."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        listed = "\n".join(f"  {reader.name:<22} {reader.sentence}" for reader in READERS.values())
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = f"formats:\n{listed}"
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="a file, a folder, or owner/name of the hub")
        parser.add_argument("--format", default="", choices=["", *READERS], help="guessed when left out")
        parser.add_argument(
            "--map",
            action="append",
            default=[],
            metavar="OURS=THEIRS",
            help="the column that is called THEIRS in the file, as --map prompt=question; may be repeated. "
            "Several columns may be metadata, rating, tag or reference.",
        )
        parser.add_argument(
            "--leave-out",
            action="append",
            default=[],
            metavar="COLUMN",
            help="do not read this column; may be repeated",
        )
        parser.add_argument(
            "--value",
            action="append",
            default=[],
            metavar="VALUE=MEANING",
            help="what a value of the winner's column means: the name of an answer (also with its strength, "
            "as answer_2:3), equal, both_good, both_bad or cannot_judge; may be repeated",
        )
        parser.add_argument(
            "--split", default="", help="of a folder: only files whose path names it, as train"
        )
        parser.add_argument("--skip-bad", action="store_true", help="leave bad rows out and list them")
        parser.add_argument(
            "--dry-run", action="store_true", help="tell format, columns and one row; import nothing"
        )
        parser.add_argument(
            "--project",
            metavar="SLUG",
            help="the project that gets it; may be left out when there is one, and with qa-feedback, which "
            "makes its own",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._import(options)
        except OSError as error:
            raise CommandError(
                _("%(path)s cannot be read: %(error)s.") % {"path": options["file"], "error": error.strerror}
            ) from None
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal

    def _import(self, options: dict[str, Any]) -> None:
        path = Path(options["file"])
        if not path.exists() and (dataset := rows.hub_id(options["file"])):
            path = rows.fetch(dataset)
        mapping: dict[str, list[str]] = {}
        for option in options["map"]:
            ours, theirs = _parted(option, "--map", "OURS=THEIRS", "prompt=question")
            mapping.setdefault(ours, []).append(theirs)
        reading: dict[str, Any] = {
            "split": options["split"],
            "leave_out": options["leave_out"],
            "meanings": dict(
                _parted(option, "--value", "VALUE=MEANING", "neither=both_bad") for option in options["value"]
            ),
        }
        plan = plan_of(path, format_name=options["format"], mapping=mapping, **reading)
        self._tell_plan(plan)
        require_answers(plan.questions)
        if options["dry_run"]:
            return
        project = _project_for(options["project"], plan)
        record = import_file(
            project=project,
            path=path,
            name=options["file"],
            format_name=plan.reader.name,
            mapping={role: names for role, names in plan.mapping.items() if role != "leave_out"},
            skip_bad=options["skip_bad"],
            on_progress=self._tell_progress,
            **reading,
        )
        self._tell_end(record)

    def _tell_plan(self, plan: Plan) -> None:
        self.stdout.write(f"Read as {plan.reader.name}. {plan.reader.sentence}")
        self.stdout.write(f"{plan.rows} rows with {len(plan.account)} columns:")
        for column in plan.account:
            self.stdout.write(f"  {column.line}")

    def _tell_progress(self, done: int, total: int) -> None:
        self.stderr.write(f"\r{done} of {total} rows", ending="" if done < total else "\n")

    def _tell_end(self, record: FileImport) -> None:
        counts = record.counts
        self.stdout.write(
            f"{counts['judgments']} judgments added to the project {record.project.slug}, "
            f"{counts['already_there']} were there already.\n"
            f"With them came {counts['prompts']} prompts and {counts['comparisons']} comparisons; "
            f"{counts['waiting']} comparisons wait for people."
        )
        if repeated := counts.get("prompts_already_there"):
            self.stdout.write(
                f"{repeated} of {record.rows_total} rows repeat a prompt of the file or of the project, "
                "which has it once."
            )
        if differing := counts.get("metadata_differs"):
            self.stdout.write(
                f"{differing} rows have other metadata than the prompt or comparison that was there, which "
                "keeps its own."
            )
        if broken := counts["rankings_with_broken_ties"]:
            self.stdout.write(
                f"{broken} rankings have ties that are not transitive. Every decided pair stands; these ties "
                "were broken, and the pairs of the file are kept with the judgment."
            )
        if record.errors_total:
            self.stdout.write(f"{record.errors_total} were left out:")
            for error in record.errors[:_SHOWN_ERRORS]:
                self.stdout.write(f"  {error}")


def _project_for(slug: str | None, plan: Plan) -> Project:
    """The project named, or the one of a published set, which is made where there is none."""
    new = plan.reader.project
    if new is None:
        return project_named(slug)
    project = Project.objects.filter(slug=slug or new.slug).first()
    return project or create_project(
        name=slug or new.name, slug=slug or new.slug, description=new.description, categories=()
    )


def _parted(option: str, name: str, form: str, example: str) -> tuple[str, str]:
    before, sign, after = option.partition("=")
    if not sign or not before or not after:
        raise Refusal(
            "option_not_readable",
            _("%(name)s %(option)s: write %(form)s, as in %(name)s %(example)s."),
            name=name,
            option=option,
            form=form,
            example=example,
        )
    return before, after
