"""`manage.py import_judgments --format qa-feedback FILE [--project SLUG]`"""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from annotation.errors import Refusal
from annotation.formats import qa_feedback
from annotation.services.judgment_imports import JudgmentImportReport, import_qa_feedback


class Command(BaseCommand):
    help = (
        "Import a published set of judgments, with its prompts and completions, into a project, which is "
        "created when there is none. Nothing is imported from a file with an error, and importing a file "
        "twice adds nothing."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the file, in UTF-8")
        parser.add_argument(
            "--format",
            required=True,
            choices=["qa-feedback"],
            help="qa-feedback: the JSON of github.com/allenai/FineGrainedRLHF (Wu et al. 2023)",
        )
        parser.add_argument(
            "--project",
            default="qa-feedback",
            metavar="SLUG",
            help="the project that gets them (%(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path, slug = options["file"], options["project"]
        try:
            items = qa_feedback.parse(path.read_text(encoding="utf-8-sig"), name=str(path))
            report = import_qa_feedback(project_slug=slug, items=items, name=str(path))
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise CommandError(
                f"{path}: byte {error.start} is not UTF-8; save the file in UTF-8. Nothing was imported."
            ) from None
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        self._tell(slug, report)

    def _tell(self, slug: str, report: JudgmentImportReport) -> None:
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
