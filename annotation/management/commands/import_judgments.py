"""`manage.py import_judgments FILE [--format FORMAT] [--map OURS=THEIRS] [--project SLUG]`"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from annotation.errors import Refusal
from annotation.formats import hub, qa_feedback
from annotation.formats.registry import READERS, Plan
from annotation.management.projects import project_named
from annotation.models import FileImport
from annotation.services.file_imports import import_file, plan_of, sample_of
from annotation.services.judgment_imports import JudgmentImportReport, import_qa_feedback

_QA = "qa-feedback"
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
        parser.epilog = f"formats:\n{listed}\n  {_QA:<22} The JSON of github.com/allenai/FineGrainedRLHF."
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", help="a file, a folder, or owner/name of the hub")
        parser.add_argument("--format", default="", choices=["", *READERS, _QA], help="guessed when left out")
        parser.add_argument(
            "--map",
            action="append",
            default=[],
            metavar="OURS=THEIRS",
            help="the column that is called THEIRS in the file, as --map prompt=question; may be repeated",
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
            help=f"the project that gets it; may be left out when there is one. {_QA} makes it if need be.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            if options["format"] == _QA or (not options["format"] and _looks_like_qa(options["file"])):
                self._qa_feedback(options)
            else:
                self._any(options)
        except OSError as error:
            raise CommandError(f"{options['file']} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{options['file']}: byte {error.start} is not UTF-8; save the file in UTF-8. "
                "Nothing was imported."
            ) from None
        except Refusal as refusal:
            raise CommandError(refusal.message) from None

    def _any(self, options: dict[str, Any]) -> None:
        path = Path(options["file"])
        if not path.exists() and (found := hub.hub_id(options["file"])):
            path = hub.fetch(found)
        mapping = dict(_mapping(given) for given in options["map"])
        reading: dict[str, Any] = {"split": options["split"]}
        plan = plan_of(path, format_name=options["format"], mapping=mapping, **reading)
        self._tell_plan(plan)
        if options["dry_run"]:
            return
        project = project_named(options["project"])
        record = import_file(
            project=project,
            path=path,
            name=options["file"],
            format_name=plan.reader.name,
            mapping=plan.mapping,
            skip_bad=options["skip_bad"],
            told=self._tell_progress,
            **reading,
        )
        self._tell_end(record)

    def _tell_plan(self, plan: Plan) -> None:
        self.stdout.write(f"Read as {plan.reader.name}. {plan.reader.sentence}")
        for ours, theirs in plan.mapping.items():
            self.stdout.write(f"  {ours} is the column {theirs}")

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
        if record.errors_total:
            self.stdout.write(f"{record.errors_total} were left out:")
            for error in record.errors[:_SHOWN_ERRORS]:
                self.stdout.write(f"  {error}")

    def _qa_feedback(self, options: dict[str, Any]) -> None:
        path, slug = Path(options["file"]), options["project"] or _QA
        items = qa_feedback.parse(path.read_text(encoding="utf-8-sig"), name=str(path))
        self.stdout.write(f"Read as {_QA}. {len(items)} questions, each with four answers.")
        if not options["dry_run"]:
            self._tell_qa_feedback(slug, import_qa_feedback(project_slug=slug, items=items, name=str(path)))

    def _tell_qa_feedback(self, slug: str, report: JudgmentImportReport) -> None:
        self.stdout.write(
            f"{report.judgments} judgments added to the project {slug}, "
            f"{report.already_there} were there already.\n"
            f"With them came {report.spans} span flags, {report.missing_info} missing infos "
            f"(pointing at {report.evidence} sentences) and {report.corrections} corrections."
        )
        if report.not_weak_orders:
            self.stdout.write(
                f"{len(report.not_weak_orders)} rankings have ties that are not transitive. Every decided "
                "pair stands; these ties were broken, and the pairs as given are kept with the judgment:"
            )
            for told in report.not_weak_orders:
                self.stdout.write(f"  {told}")


def _looks_like_qa(file: str) -> bool:
    """Whether the first rows have the fields of qa-feedback."""
    path = Path(file)
    if not path.is_file():
        return False
    try:
        rows = sample_of(path, name=file, rows=3)
    except Refusal:
        # Whoever reads it next says why.
        return False
    return bool(rows) and all(qa_feedback.matches(row) for row in rows)


def _mapping(given: str) -> tuple[str, str]:
    ours, sign, theirs = given.partition("=")
    if not sign or not ours or not theirs:
        raise Refusal(f"--map {given}: write OURS=THEIRS, as in --map prompt=question.")
    return ours, theirs
