"""An import is undone: what it brought is deleted, as long as nobody has judged it or builds on it.

Deleted are its judgments, comparisons, completions and prompts, and the categories and criteria that it made
and nothing uses. What was there before it stays, and so do the accounts of its annotators.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.db import models, transaction
from django.db.models import Count, F, ProtectedError, Q, QuerySet
from django.db.models.fields.reverse_related import ForeignObjectRel
from django.db.models.functions import Greatest
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, ImportState, SourceKind, TaskName
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Category,
    Comparison,
    Completion,
    ConversationTurn,
    Criterion,
    FileImport,
    Judgment,
    Prompt,
    User,
)
from annotation.selectors import access
from annotation.services import audit, jobs

_BATCH = 500
"""Rows deleted in one transaction: nobody who labels waits for longer than a moment."""


def request_undo(*, record: FileImport, user: User) -> None:
    """Have a worker undo an import. Refuses one that is not in, and one that people build on."""
    access.refuse_unless_manager(user, record.project, "manager_imports")
    with transaction.atomic():
        record = FileImport.objects.select_for_update().select_related("project").get(pk=record.pk)
        require_undoable(record)
        FileImport.objects.filter(pk=record.pk).update(
            state=ImportState.UNDOING, worker="", heartbeat_at=None, errors=[], errors_total=0
        )
        audit.record(
            action="import.undo",
            subject=record,
            actor=user,
            project=record.project,
            details={"name": record.name, "counts": record.counts},
        )
        jobs.send_after_commit(TaskName.DO_IMPORT, record.pk)


def require_undoable(record: FileImport) -> None:
    """Refuse an import that is not in, or of which something is in use."""
    if record.state not in (ImportState.FINISHED, ImportState.FAILED):
        raise Refusal("import_not_ended", _("Only an import that has ended can be undone."), field="state")
    judged = Judgment.objects.filter(comparison__file_import=record)
    others = judged.filter(~Q(imported_from__import=record.pk) | Q(imported_from__isnull=True))
    if others.exists() or Judgment.objects.filter(**_of_judgments("supersedes", record)).exists():
        raise Refusal(
            "import_annotated", _("Somebody has annotated what this import brought."), field="judgments"
        )
    held = Assignment.objects.filter(comparison__file_import=record)
    if held.filter(state__in=(AssignmentState.LEASED, AssignmentState.SKIPPED)).exists():
        raise Refusal(
            "import_in_annotation",
            _("Somebody is annotating what this import brought, or skipped it."),
            field="judgments",
        )
    turns = ConversationTurn.objects.filter(Q(comparison__file_import=record) | Q(prompt__file_import=record))
    if turns.exists():
        raise Refusal(
            "import_of_conversations",
            _("The import brought conversations, which cannot be undone."),
            field="conversations",
        )
    later = Comparison.objects.filter(prompt__file_import=record).exclude(file_import=record)
    sampled = Completion.objects.filter(prompt__file_import=record).exclude(source__kind=SourceKind.IMPORT)
    if later.exists() or sampled.exists():
        raise Refusal(
            "import_has_responses",
            _("Responses to prompts of this import were added later."),
            field="prompts",
        )
    for model, brought in _BROUGHT.items():
        if (user := _used_outside(model, brought, record)) is not None:
            raise Refusal(
                "import_in_use",
                _("What this import brought is used: %(by)s. It stays for the record."),
                field="used",
                by=user,
            )


def _of_judgments(name: str, record: FileImport) -> dict[str, Any]:
    """The condition that a relation of that name leads to a judgment of an import."""
    return {
        f"{name}__comparison__project": record.project_id,
        f"{name}__imported_from__import": record.pk,
    }


_BROUGHT: dict[type[models.Model], Callable[[str, FileImport], dict[str, Any]]] = {
    Judgment: _of_judgments,
    Comparison: lambda name, record: {f"{name}__file_import": record},
    Prompt: lambda name, record: {f"{name}__file_import": record},
    Completion: lambda name, record: {f"{name}__prompt__file_import": record},
}
"""Model → the condition that a relation leads to a row of it that an import brought."""


def _judgments(record: FileImport) -> QuerySet[Judgment]:
    return Judgment.objects.filter(comparison__project=record.project_id, imported_from__import=record.pk)


def _used_outside(
    model: type[models.Model], brought: Callable[[str, FileImport], dict[str, Any]], record: FileImport
) -> str | None:
    """The kind of rows of other applications, such as snapshots, that stand on what an import brought."""
    for relation in model._meta.get_fields(include_hidden=True):
        user = getattr(relation, "related_model", None)
        if not (isinstance(relation, ForeignObjectRel) and isinstance(user, type)):
            continue
        if not issubclass(user, models.Model) or user._meta.app_label == model._meta.app_label:
            continue
        # The table between two models stands for the one that owns it.
        through = user._meta.auto_created
        owner: type[models.Model] = through if isinstance(through, type) else user
        if model is Prompt and (relation.many_to_many or owner is not user):
            # A set of prompts may lose one.
            continue
        if user._base_manager.filter(**brought(relation.field.name, record)).exists():
            return str(owner._meta.verbose_name_plural)
    return None


def undo(record: FileImport, beat: Callable[[], object]) -> None:
    """Delete what an import brought, some rows at a time. The caller holds the claim on the record.

    One that was cut off goes on where it stopped. Raises `Refusal` where something is in use after all.
    """
    try:
        for ids in _batches(_judgments(record), beat):
            _delete_judgments(ids)
        for ids in _batches(record.comparisons.all(), beat):
            _delete_comparisons(ids)
        for ids in _batches(record.prompts.all(), beat):
            with transaction.atomic():
                Prompt.objects.filter(pk__in=ids).delete()
        _delete_unused(record)
    except ProtectedError:
        raise Refusal(
            "import_came_into_use",
            _("Something of this import came into use while it was undone. What is in use stays."),
            field="used",
        ) from None


def _batches(rows: QuerySet[Any], beat: Callable[[], object]) -> Iterator[Sequence[int]]:
    last = 0
    # From the last one on: what stays is not looked through again for each batch.
    while ids := list(rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:_BATCH]):
        last = ids[-1]
        beat()
        yield ids


@transaction.atomic
def _delete_judgments(ids: Sequence[int]) -> None:
    """Delete judgments with their assignments; a comparison gets back the places that were added for them."""
    rows = Judgment.objects.filter(pk__in=ids)
    assignments = list(rows.values_list("assignment", flat=True))
    taken = rows.values("comparison").annotate(number=Count("pk")).values_list("comparison", "number")
    numbers: dict[int, list[int]] = {}
    for comparison, number in taken:
        numbers.setdefault(number, []).append(comparison)
    # Through the base manager: a judgment is written once, and leaves only with the import that brought it.
    Judgment._base_manager.filter(pk__in=ids).delete()
    Assignment.objects.filter(pk__in=assignments).delete()
    for number, comparisons in numbers.items():
        Comparison.objects.filter(pk__in=comparisons).update(
            overlap=Greatest(F("overlap") - number, F("open_slots"), 1), agreement=None
        )


@transaction.atomic
def _delete_comparisons(ids: Sequence[int]) -> None:
    """Delete comparisons, and the imported completions that stand in no other."""
    completions = list(
        Completion.objects.filter(candidacies__comparison__in=ids).values_list("pk", flat=True)
    )
    Comparison.objects.filter(pk__in=ids).delete()
    alone = Completion.objects.filter(
        pk__in=completions, candidacies__isnull=True, source__kind=SourceKind.IMPORT
    )
    Completion._base_manager.filter(pk__in=alone.values("pk")).delete()


def _delete_unused(record: FileImport) -> None:
    """Delete the categories and criteria that the import made and nothing uses."""
    made: dict[str, type[models.Model]] = {"categories": Category, "criteria": Criterion}
    for name, model in made.items():
        for pk in record.made.get(name, []):
            try:
                with transaction.atomic():
                    model._base_manager.filter(pk=pk, project=record.project_id).delete()
            except ProtectedError:
                continue
    FileImport.objects.filter(pk=record.pk).update(made={})
