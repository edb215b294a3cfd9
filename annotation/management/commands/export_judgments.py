"""`manage.py export_judgments --format FORMAT [--project SLUG] [--output FILE]`"""

import json
import os
import shutil
import tempfile
import uuid
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError
from django.utils.translation import gettext as _

from annotation.choices import Split
from annotation.errors import Refusal
from annotation.exchange.file_exports import (
    Export,
    ExportFilters,
    dropped_line,
    require_known,
    require_rounds,
    write_dataset_folder,
    write_parquet,
)
from annotation.exchange.formats.registry import WRITERS
from annotation.exchange.formats.spans import tokens_of
from annotation.exchange.formats.writers import Dropped, Record
from annotation.management.projects import project_named

_FOLDER = "dataset"


class Command(BaseCommand):
    help = (
        "Write the current judgments of a project. Judgments that were superseded are left out; people "
        "appear under a pseudonym. Beside FILE stand FILE.manifest.json, which tells filters and counts, and "
        "FILE.dropped.jsonl, which names everything that the format cannot carry, with the reason."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        listed = "\n".join(f"  {writer.name:<15} {writer.sentence}" for writer in WRITERS.values())
        folder = f"  {_FOLDER:<15} A folder for datasets.load_dataset, with a data card; --output names it."
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parser.formatter_class = RawDescriptionHelpFormatter
        parser.epilog = f"formats:\n{listed}\n{folder}"
        return parser

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--format", required=True, choices=[*WRITERS, _FOLDER], help="listed below")
        parser.add_argument(
            "--project", metavar="SLUG", help="whose judgments; may be left out when there is one project"
        )
        parser.add_argument("--round", type=int, action="append", help="only this round; may be repeated")
        parser.add_argument("--split", choices=Split.values, help="only prompts of this side of the split")
        parser.add_argument("--with-machines", action="store_true", help="those of programs that judge, too")
        parser.add_argument(
            "--annotator", metavar="PSEUDONYM", default="", help="only those of this annotator"
        )
        parser.add_argument("--since", metavar="DATE", type=_day, help="from this day on, as 2026-03-31")
        parser.add_argument("--until", metavar="DATE", type=_day, help="up to this day, inclusive")
        parser.add_argument("--tag", default="", help="only prompts with this tag")
        parser.add_argument(
            "--category",
            metavar="KEY",
            default="",
            help="only those with a span or missing information of it",
        )
        parser.add_argument(
            "--tokenizer", type=Path, metavar="FOLDER", help="for bio: a model folder with tokenizer.json"
        )
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="a file; standard output when left out"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = project_named(options["project"])
        path: Path | None = options["output"]
        try:
            filters = _filters(options)
            require_rounds(project=project, rounds=filters.rounds)
            require_known(project=project, filters=filters)
            if options["format"] == _FOLDER:
                self._folder(project, path, filters)
                return
            export = Export(
                project=project,
                writer=WRITERS[options["format"]],
                filters=filters,
                tokens=tokens_of(options["tokenizer"]) if options["tokenizer"] else None,
            )
            if path is None:
                self._to_standard_output(export)
            else:
                _to_file(export, path)
        except Refusal as refusal:
            raise CommandError(refusal.message) from refusal
        except OSError as error:
            message = (
                _("%(path)s cannot be written: %(error)s.")
                if path
                else _("Standard output cannot be written: %(error)s.")
            )
            raise CommandError(message % {"path": path, "error": error.strerror}) from None
        self._tell(export)

    def _to_standard_output(self, export: Export) -> None:
        if export.writer.container == "parquet":
            raise Refusal("output_missing", _("Parquet is no text: name a file with --output."))
        stream = cast(TextIO, self.stdout)
        for piece in export.text_stream():
            stream.write(piece)

    def _folder(self, project: Any, path: Path | None, filters: ExportFilters) -> None:
        if path is None:
            raise Refusal("output_missing", _("Name the folder with --output."))
        if path.exists():
            raise Refusal(
                "output_exists", _("%(path)s is there already; name a folder that is not."), path=path
            )
        draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            exports = write_dataset_folder(project=project, folder=draft, filters=filters)
            draft.chmod(0o755)
            draft.rename(path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        for export in exports:
            self._tell(export)

    def _tell(self, export: Export) -> None:
        programs = f", {export.by_programs} of them by programs" if export.filters.machines else ""
        if export.rows == export.judgments and not export.dropped:
            self.stderr.write(f"{export.judgments} judgments written{programs}.")
            return
        self.stderr.write(f"{export.judgments} judgments{programs} gave {export.rows} rows.")
        for reason, count in sorted(export.dropped.items()):
            self.stderr.write(f"  not carried, {count} times: {reason}")
        if export.contexts_left_out:
            self.stderr.write(f"  without their context passages: {export.contexts_left_out} judgments")


def _filters(options: dict[str, Any]) -> ExportFilters:
    try:
        pseudonym = str(uuid.UUID(options["annotator"])) if options["annotator"] else ""
    except ValueError:
        raise Refusal(
            "unknown_pseudonym",
            _("%(name)s is no pseudonym. Exports name one in `annotator`."),
            name=options["annotator"],
        ) from None
    return ExportFilters(
        rounds=options["round"],
        machines=options["with_machines"],
        split=options["split"] or "",
        annotator=pseudonym,
        since=options["since"],
        until=options["until"],
        tag=options["tag"],
        category=options["category"],
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text} is no date; write it as 2026-03-31") from None


def _to_file(export: Export, path: Path) -> None:
    with (
        _draft(path.with_name(f"{path.name}.manifest.json")) as manifest,
        _draft(path.with_name(f"{path.name}.dropped.jsonl")) as listed,
        _draft(path) as draft,
    ):
        with listed.open("w", encoding="utf-8") as dropped:

            def note(record: Record, what: Dropped) -> None:
                dropped.write(dropped_line(record, what))

            export.on_drop = note
            if export.writer.container == "parquet":
                write_parquet(export.row_stream(), export.writer.columns, draft)
            else:
                with draft.open("w", encoding="utf-8", newline="\n") as stream:
                    stream.writelines(export.text_stream())
        manifest.write_text(json.dumps(export.manifest(), ensure_ascii=False, indent=2), encoding="utf-8")


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A file to write to. It takes its name when all is written: a part is never taken for the whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o644)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
