"""Questions that a project asks beside Rondo's parts: write a version, order, and ask again."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.db.models import Exists, Max, OuterRef, Q, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, CategoryScope
from annotation.errors import Refusal
from annotation.models import (
    Assignment,
    Category,
    Judgment,
    Project,
    ProjectQuestion,
    QuestionVersion,
    RepeatedQuestion,
    User,
)
from annotation.record.questions import CHOSEN_KINDS, Choice, Question
from annotation.selectors.configuration import draw_revision, question_in
from annotation.selectors.questions import judgments_with_unsplit, judgments_without
from annotation.services import audit
from annotation.services.people.shortcuts import screen_keys

LONGEST_KEY = 60
LONGEST_TEXT = 300
LONGEST_HELP = 2000
LONGEST_LABEL = 120
LONGEST_UNIT = 30
MOST_CHOICES = 50
SCALE_POINTS = (2, 11)
MOST_QUESTIONS = 50
_RESPONSE_LETTERS = "abcdefghi"


def save_question(
    *, project: Project, question: Question, saved_by: User, is_new: bool = False
) -> ProjectQuestion:
    """Add a question after the others, or change the one of the same key.

    Another wording, choice, label, unit or bound is a new version; answers keep the version they answered.
    Refuses another kind or subject than it has, a condition that no earlier question can fulfil, a category
    that spans do not have, a key of the keyboard that is in use, and what breaks a limit, naming the field.
    is_new: refuse a key that is in use.
    """
    question = _checked(question)
    with transaction.atomic():
        # Two who save at once get positions and version numbers of their own.
        Project.objects.select_for_update(no_key=True).get(pk=project.pk)
        rows = {row.key: row for row in ProjectQuestion.objects.filter(project=project)}
        row = rows.get(question.key)
        if is_new and row is not None:
            raise Refusal(
                "key_in_use",
                _("The key %(key)s is in use. Choose another, or change what has it."),
                field="key",
                key=question.key,
            )
        before: Question | None = None
        if row is None:
            if len(rows) >= MOST_QUESTIONS:
                raise Refusal(
                    "too_many_questions",
                    _("A project has at most %(most)s questions. Delete one first."),
                    most=MOST_QUESTIONS,
                )
            last = max((each.position for each in rows.values()), default=0)
            row = ProjectQuestion(
                project=project,
                key=question.key,
                kind=question.kind,
                subject=question.subject,
                position=last + 1,
            )
        else:
            before = newest(row)
            for name in ("kind", "subject"):
                if getattr(row, name) != getattr(question, name):
                    raise Refusal(
                        "fixed_at_creation",
                        _("This was fixed at creation: annotations depend on it."),
                        field=name,
                    )
        row.shown_when = _deciding(question, row, rows)
        row.shown_values = list(question.shown_when.values) if question.shown_when else []
        row.categories = _checked_categories(project, question)
        _require_free_keys(project, question)
        _require_shown_choices(row, question)
        row.shortcuts = {choice.key: choice.shortcut for choice in question.choices if choice.shortcut}
        row.help_text = question.help_text
        row.is_required = question.is_required
        is_first = row.pk is None
        if is_first or before is None or _meaning(before) != _meaning(question):
            if is_first:
                row.save()
            _write_version(row, question, saved_by)
        # After the version: saving draws the revision by which pages read both again.
        row.save()
        audit.record(
            action="projectquestion.set",
            subject=row,
            actor=saved_by,
            project=project,
            details={"key": row.key, "version": newest(row).version},
        )
    return row


def newest(row: ProjectQuestion) -> Question:
    """Return a question in its newest version."""
    return question_in(row, row.versions.order_by("-number")[:1].get())


def require_order(project: Project, keys: Sequence[str]) -> None:
    """Refuse an order in which a question stands before the one that decides whether it is shown."""
    shown = ProjectQuestion.objects.filter(project=project).select_related("shown_when")
    for row in shown:
        if row.shown_when is not None and keys.index(row.shown_when.key) > keys.index(row.key):
            raise Refusal(
                "condition_comes_later",
                _("“%(key)s” is shown by an answer to “%(decides)s” and stands after it."),
                field="keys",
                key=row.key,
                decides=row.shown_when.key,
            )


def require_unneeded(row: ProjectQuestion, *, for_deletion: bool = False) -> None:
    """Refuse to archive or delete a question whose answers show another one; for a deletion, an archived
    one too."""
    dependents = row.shows.all() if for_deletion else row.shows.filter(is_archived=False)
    dependent = dependents.first()
    if dependent is not None:
        raise Refusal(
            "question_shows_another",
            _("“%(key)s” is shown by an answer to it. Change or archive that question first."),
            key=dependent.key,
        )


# ── Checks of a question ────────────────────────────────────────────────────────────────


def _checked(question: Question) -> Question:
    """Return the question without what its kind does not have. Refuses what breaks a limit."""
    try:
        validate_slug(question.key)
    except ValidationError as error:
        raise _invalid("key", _("Write a key of letters, digits, hyphens and underscores.")) from error
    if len(question.key) > LONGEST_KEY:
        raise _invalid("key", _("Write at most %(most)s characters."), most=LONGEST_KEY)
    for name, most in (("text", LONGEST_TEXT), ("help_text", LONGEST_HELP), ("unit", LONGEST_UNIT)):
        if len(getattr(question, name)) > most:
            raise _invalid(name, _("Write at most %(most)s characters."), most=most)
        if "\x00" in getattr(question, name):
            raise _invalid(name, _("The text holds the character NUL, which cannot be stored."))
    if not question.text.strip():
        raise _invalid("text", _("Write the question."))
    _check_choices(question)
    _check_bounds(question)
    is_number = question.kind == "number"
    return replace(
        question,
        choices=question.choices if question.kind in CHOSEN_KINDS else (),
        unit=question.unit if is_number else "",
        least=question.least if is_number else None,
        most=question.most if is_number else None,
    )


def _check_bounds(question: Question) -> None:
    if question.kind != "number":
        return
    for name in ("least", "most"):
        bound = getattr(question, name)
        if bound is not None and not math.isfinite(bound):
            raise _invalid(name, _("Write a number."))
    if question.least is not None and question.most is not None and question.least > question.most:
        raise _invalid("most", _("The largest number is below the smallest."))


def _check_choices(question: Question) -> None:
    if question.kind not in CHOSEN_KINDS:
        return
    keys = question.choice_keys
    least, most = SCALE_POINTS if question.kind == "scale" else (2, MOST_CHOICES)
    if not least <= len(keys) <= most:
        raise _invalid(
            "choices", _("Write %(least)s to %(most)s choices, one in a line."), least=least, most=most
        )
    if len(set(keys)) < len(keys):
        raise _invalid("choices", _("Two choices have the same key. Rename one."))
    labels = [choice.label for choice in question.choices if choice.label]
    if len(set(labels)) < len(labels):
        raise _invalid("choices", _("Two choices have the same label. Rename one."))
    for choice in question.choices:
        _check_choice(choice, is_point=question.kind == "scale")
    if question.kind == "scale":
        _check_points(keys)


def _check_choice(choice: Choice, *, is_point: bool) -> None:
    if len(choice.label) > LONGEST_LABEL or len(choice.key) > LONGEST_KEY:
        raise _invalid("choices", _("Write at most %(most)s characters a choice."), most=LONGEST_LABEL)
    if "\x00" in choice.label + choice.key or not choice.key.strip():
        raise _invalid("choices", _("A choice has no key, or a character that cannot be stored."))
    if not is_point and not choice.label.strip():
        raise _invalid("choices", _("A choice has no label."))


def _check_points(keys: Sequence[str]) -> None:
    if not all(re.fullmatch(r"-?\d{1,6}", key) for key in keys):
        raise _invalid("choices", _("The points of a scale are whole numbers."))
    points = [int(key) for key in keys]
    if points != list(range(points[0], points[0] + len(points))) or list(keys) != list(map(str, points)):
        raise _invalid("choices", _("The points of a scale follow each other, the lowest first."))


def _deciding(
    question: Question, row: ProjectQuestion, rows: Mapping[str, ProjectQuestion]
) -> ProjectQuestion | None:
    """Return the earlier question that shows this one. Refuses one that cannot."""
    condition = question.shown_when
    if condition is None:
        return None
    decides = rows.get(condition.question)
    if decides is None or decides.position >= row.position or decides.kind not in CHOSEN_KINDS:
        raise _invalid(
            "shown_when",
            _("Choose a question before this one that is answered by a choice or on a scale."),
        )
    if decides.is_archived:
        raise _invalid("shown_when", _("“%(key)s” is archived. Choose another."), key=decides.key)
    if not question.may_be_shown_by(decides.subject):
        raise _invalid(
            "shown_when",
            _("A question about the comparison is not shown by an answer about one response.")
            if question.subject == "comparison"
            else _("Choose a question about the comparison, the response, or the same span or step."),
        )
    known = newest(decides).choice_keys
    if not condition.values or not set(condition.values) <= set(known):
        raise _invalid(
            "shown_values",
            _("Choose the answers that show this question among these: %(known)s."),
            known=", ".join(known),
        )
    return decides


def _checked_categories(project: Project, question: Question) -> list[str]:
    """Return the keys of the categories whose spans the question is asked of. Refuses others."""
    if not question.categories:
        return []
    if question.subject != "span":
        raise _invalid("categories", _("Only a question about spans is asked of spans of some categories."))
    spans = Category.objects.filter(project=project, scope=CategoryScope.SPAN).order_by("position", "id")
    known = list(spans.values_list("key", flat=True))
    if unknown := [key for key in question.categories if key not in known]:
        raise _invalid(
            "categories",
            _("No span category has the key %(unknown)s. Choose among these: %(known)s."),
            unknown=", ".join(unknown),
            known=", ".join(known),
        )
    return [key for key in known if key in question.categories]


def _require_shown_choices(row: ProjectQuestion, question: Question) -> None:
    """Refuse to remove a choice that shows another question."""
    if row.pk is None:
        return
    for dependent in row.shows.filter(is_archived=False):
        if not set(dependent.shown_values) <= set(question.choice_keys):
            raise _invalid(
                "choices", _("“%(key)s” is shown by a choice that is missing here."), key=dependent.key
            )


def _require_free_keys(project: Project, question: Question) -> None:
    """Refuse keys of the keyboard that do something else on the labelling screen, naming those in use."""
    wanted = [choice.shortcut for choice in question.choices if choice.shortcut]
    if not wanted:
        return
    others = ProjectQuestion.objects.filter(project=project).exclude(key=question.key)
    spans = Category.objects.filter(project=project, scope=CategoryScope.SPAN).exclude(shortcut="")
    taken = {
        *screen_keys(),
        *_RESPONSE_LETTERS,
        *(key.lower() for key in spans.values_list("shortcut", flat=True)),
        *(key for row in others.filter(is_archived=False) for key in row.shortcuts.values()),
    }
    for key in wanted:
        if len(key) != 1 or key.isspace() or not key.isprintable():
            raise _invalid("choices", _("A key is one character; a capital letter is typed with Shift."))
        if key in taken or wanted.count(key) > 1:
            raise Refusal(
                "key_in_use_on_screen",
                _("The key %(key)s is in use. Choose another; in use are %(taken)s."),
                field="choices",
                key=key,
                taken=" ".join(sorted(taken)),
            )


def _invalid(field: str, message: str, **params: object) -> Refusal:
    return Refusal("invalid_question", message, field=field, **params)


# ── Versions ────────────────────────────────────────────────────────────────────────────


def _meaning(question: Question) -> tuple[Any, ...]:
    """Return what an answer depends on: another is a new version."""
    choices = [(choice.key, choice.label) for choice in question.choices]
    return question.text, choices, question.unit, question.least, question.most


def _write_version(row: ProjectQuestion, question: Question, saved_by: User) -> None:
    last = row.versions.aggregate(last=Max("number"))["last"] or 0
    QuestionVersion.objects.create(
        question=row,
        number=last + 1,
        text=question.text,
        choices=[{"key": choice.key, "label": choice.label} for choice in question.choices],
        unit=question.unit,
        least=question.least,
        most=question.most,
        created_by=saved_by,
    )


# ── A question added or changed in the middle ───────────────────────────────────────────


def ask_again(*, question: ProjectQuestion, asked_by: User) -> int:
    """Put a question again to whoever judged without answering its newest version; return how many.

    Each gets their annotation back on the labelling page, filled in. Accounts that cannot sign in are left
    out, and so is who has it already.
    """
    with transaction.atomic():
        return _ask_again(judgments_without(question), asked_by, question=question)


def ask_only_new(*, question: ProjectQuestion, asked_by: User) -> int:
    """Stop asking a question again; return how many were still waiting."""
    return _ask_only_new(asked_by, question=question)


def ask_split_again(*, category: Category, asked_by: User) -> int:
    """Put the spans of a category that was split to who marked them; return how many annotations go back.

    Each span then needs one of the sub-categories. Accounts that cannot sign in are left out, and so is who
    has it already. Refuses a category without sub-categories.
    """
    with transaction.atomic():
        if not category.parts.filter(is_archived=False).exists():
            raise Refusal(
                "category_not_split",
                _("“%(label)s” has no sub-categories. Add one first."),
                label=category.label,
            )
        return _ask_again(judgments_with_unsplit(category), asked_by, category=category)


def ask_split_only_new(*, category: Category, asked_by: User) -> int:
    """Stop asking for sub-categories of earlier spans; return how many annotations were still waiting."""
    return _ask_only_new(asked_by, category=category)


def _ask_again(judged: QuerySet[Judgment], asked_by: User, **subject: ProjectQuestion | Category) -> int:
    """Put a question or a category to who judged and has it not already. Call it in a transaction."""
    waiting = RepeatedQuestion.objects.filter(
        assignment=OuterRef("assignment"), answered_at__isnull=True, **subject
    )
    count = _repeat(judged.filter(~Exists(waiting)), **subject)
    _write_down("ask_again", count, asked_by, **subject)
    return count


def _ask_only_new(asked_by: User, **subject: ProjectQuestion | Category) -> int:
    with transaction.atomic():
        count, _deleted = RepeatedQuestion.objects.filter(answered_at__isnull=True, **subject).delete()
        _write_down("ask_only_new", count, asked_by, **subject)
    return count


def _write_down(what: str, count: int, asked_by: User, **subject: ProjectQuestion | Category) -> None:
    [asked] = subject.values()
    audit.record(
        action=f"{asked._meta.model_name}.{what}",
        subject=asked,
        actor=asked_by,
        project=asked.project,
        details={"key": asked.key, "annotations": count},
    )


def _repeat(judged: QuerySet[Judgment], **subject: ProjectQuestion | Category) -> int:
    """Put a question or a category to who judged, where they can still answer; return how many."""
    project = next(iter(subject.values())).project
    judged = judged.filter(
        annotator__is_active=True,
        assignment__retest_of__isnull=True,
        assignment__state=AssignmentState.SUBMITTED,
        annotator__memberships__project=project,
    )
    rows = [
        RepeatedQuestion(assignment_id=pk, **subject)
        for pk in judged.order_by("pk").values_list("assignment_id", flat=True).distinct()
    ]
    RepeatedQuestion.objects.bulk_create(rows, ignore_conflicts=True)
    project.revision = draw_revision(project.pk)
    return len(rows)


def oldest_repeated(project: Project, annotator: User) -> Assignment | None:
    """Return the assignment with the oldest question or split category that is put again to an annotator."""
    row = (
        RepeatedQuestion.objects.filter(
            assignment__annotator=annotator,
            assignment__comparison__project=project,
            assignment__state=AssignmentState.SUBMITTED,
            answered_at__isnull=True,
        )
        .exclude(question__is_archived=True)
        .select_related("assignment__comparison__prompt", "assignment__annotator")
        .first()
    )
    if row is None:
        return None
    row.assignment.comparison.project = project
    return row.assignment


def repeated_keys(assignment: Assignment) -> frozenset[str]:
    """Return the keys of the questions that are put again in an assignment."""
    rows = RepeatedQuestion.objects.filter(assignment=assignment, answered_at__isnull=True)
    return frozenset(rows.filter(question__isnull=False).values_list("question__key", flat=True))


def repeated_categories(assignment: Assignment) -> list[Category]:
    """Return the split categories whose spans are put again in an assignment."""
    open_rows = Q(repeated__assignment=assignment, repeated__answered_at__isnull=True)
    return list(Category.objects.filter(open_rows).order_by("position", "id").distinct())


def close_repeated(*, assignment: Assignment) -> None:
    """Close what was put again in an assignment. Call it in the transaction of the new judgment."""
    RepeatedQuestion.objects.filter(assignment=assignment, answered_at__isnull=True).update(
        answered_at=timezone.now()
    )
