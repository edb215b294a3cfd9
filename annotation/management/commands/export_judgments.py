"""`manage.py export_judgments --format jsonl [--project SLUG] [--output FILE]`"""

import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError

from annotation.formats import rondo_jsonl
from annotation.management.projects import project_named
from annotation.selectors import judgments_current


class Command(BaseCommand):
    help = (
        "Write the current judgments of a project, one a line (annotation/formats/rondo_jsonl.py tells the "
        "fields). Judgments that were superseded are left out; people appear under a pseudonym."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--format", required=True, choices=["jsonl"], help="jsonl: Rondo's own JSON Lines"
        )
        parser.add_argument(
            "--project", metavar="SLUG", help="whose judgments; may be left out when there is one project"
        )
        parser.add_argument("--round", type=int, action="append", help="only this round; may be repeated")
        parser.add_argument(
            "--output", type=Path, metavar="FILE", help="a file; standard output when left out"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = project_named(options["project"])
        judgments = judgments_current(project, options["round"])
        path: Path | None = options["output"]
        count = 0
        try:
            with _opened(path, cast(TextIO, self.stdout)) as stream:
                for line in rondo_jsonl.lines(judgments):
                    stream.write(line)
                    count += 1
        except OSError as error:
            raise CommandError(f"{path or 'Standard output'} cannot be written: {error.strerror}.") from None
        self.stderr.write(f"{count} judgments written.")


@contextmanager
def _opened(path: Path | None, standard_output: TextIO) -> Iterator[TextIO]:
    """The file to write to. It takes its name when all is written: a part is never taken for the whole."""
    if path is None:
        yield standard_output
        return
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
