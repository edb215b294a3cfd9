"""Gold items out of a file: each annotation in it is a known answer."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.choices import Purpose
from annotation.errors import ImportErrors, Refusal
from annotation.exchange.file_imports import items_of, plan_of
from annotation.exchange.formats.fields import FieldError, row_error
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.formats.plans import require_answers
from annotation.exchange.formats.rows import read_rows
from annotation.exchange.prompts import store_completions, write_prompt
from annotation.models import Completion, Project, User
from annotation.selectors import access
from annotation.services.quality import create_gold_item

MOST_ITEMS = 1000
"""Known answers of one file: more are not read by people, who have to stand for each."""
MOST_BYTES = 20 * 1024**2
_LISTED_ERRORS = 20
_KINDS = (".csv", ".tsv", ".jsonl", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class GoldImport:
    """How many gold items a file made, and how many were there already."""

    made: int
    known: int


def import_gold(
    *, project: Project, upload: Any, created_by: User, purpose: Purpose = Purpose.GOLD
) -> GoldImport:
    """Make gold or qualification items of the annotations in an uploaded file, in any format of annotations.

    Their comments are the explanations. What has a known answer already is left as it is, so the same file
    twice adds nothing. Refuses who does not manage the project, a file that is too large or has more than
    `MOST_ITEMS`, and with one bad row the whole file (`ImportErrors`: row, field and remedy of each).
    """
    access.refuse_unless_manager(created_by, project, "manager_sets_known_answers")
    if upload.size is None or upload.size > MOST_BYTES:
        raise Refusal(
            "gold_file_too_large",
            _("The file is larger than %(most)s MB. Split it."),
            field="file",
            most=MOST_BYTES // 1024**2,
        )
    name = str(upload.name or "gold.jsonl")[-255:]
    with tempfile.TemporaryDirectory() as folder:
        kinds = (kind for kind in _KINDS if name.lower().endswith(kind))
        path = Path(folder) / f"gold{next(kinds, '')}"
        with path.open("xb") as stream:
            for part in upload.chunks():
                stream.write(part)
        items = _known_answers(path, name)
    made = known = 0
    errors: list[str] = []
    with transaction.atomic():
        for number, item in items:
            try:
                with transaction.atomic():
                    _make(project, item, created_by, purpose)
                made += 1
            except Refusal as refusal:
                if refusal.code == "known_answer_exists":
                    known += 1
                else:
                    error = FieldError(refusal.code, refusal.message, field=refusal.field)
                    errors.append(row_error(number, error))
        if errors:
            raise ImportErrors(name, errors[:_LISTED_ERRORS], more=len(errors) > _LISTED_ERRORS)
    return GoldImport(made=made, known=known)


def _known_answers(path: Path, name: str) -> list[tuple[int, ImportedItem]]:
    """Return the items of a file that have a known answer, with their rows."""
    plan = plan_of(path, name=name, unpack=False)
    require_answers(plan.questions)
    errors: list[str] = []

    def wrong(number: int, error: FieldError) -> None:
        if len(errors) <= _LISTED_ERRORS:
            errors.append(row_error(number, error))

    def fitting() -> Iterator[tuple[int, ImportedItem]]:
        for number, item in items_of(read_rows(path, unpack=False), plan, wrong):
            if len(item.judgments) == 1 and len(item.completions) > 1:
                yield number, item
            else:
                wrong(
                    number,
                    FieldError(
                        "no_known_answer",
                        _("A known answer needs two responses or more and one annotation."),
                        field=None,
                    ),
                )

    items = []
    for entry in fitting():
        items.append(entry)
        if len(items) > MOST_ITEMS:
            raise Refusal(
                "gold_file_too_long",
                _("The file has more than %(most)s known answers. Split it."),
                field="file",
                most=MOST_ITEMS,
            )
    if errors:
        raise ImportErrors(name, errors[:_LISTED_ERRORS], more=len(errors) > _LISTED_ERRORS)
    return items


def _make(project: Project, item: ImportedItem, created_by: User, purpose: Purpose) -> None:
    prompt, _is_new = write_prompt(project=project, actor=created_by, parsed=item)
    ((*ids,),) = store_completions([(item, prompt.pk)], set())
    rows = Completion.objects.in_bulk(ids)
    (judgment,) = item.judgments
    create_gold_item(
        prompt=prompt,
        completions=[rows[pk] for pk in ids],
        verdict=judgment.verdict,
        ranks={ids[int(place)]: rank for place, rank in judgment.ranks.items()},
        created_by=created_by,
        explanation=judgment.comment[:5000],
        purpose=purpose,
    )
