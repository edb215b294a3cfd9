"""Questions of a project, as its managers see them: wording, progress, and who is asked again."""

from collections.abc import Sequence

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from annotation.choices import Purpose, QuestionSubject, Verdict
from annotation.models import (
    Candidate,
    Category,
    Judgment,
    ProjectQuestion,
    QuestionAnswer,
    QuestionVersion,
    SpanFlag,
)


def judgments_without(question: ProjectQuestion) -> QuerySet[Judgment]:
    """Return the current judgments of people that do not answer the newest version of a question.

    In arenas nobody is asked; who could not judge is not asked either. A question about spans lacks an answer
    where a span has none, one about steps where the comparison has a trace.
    """
    number = question.versions.order_by("-number").values("number")[:1]
    answered = QuestionAnswer.objects.filter(
        judgment=OuterRef("pk"), version__question=question, version__number=number
    )
    judgments = (
        Judgment.objects.current()
        .filter(comparison__project=question.project_id, annotator__is_machine=False)
        .exclude(comparison__purpose__in=(Purpose.ARENA, Purpose.DELETED))
        .exclude(verdict=Verdict.CANNOT_JUDGE)
    )
    if question.subject == QuestionSubject.SPAN:
        of_span = QuestionAnswer.objects.filter(
            span=OuterRef("pk"), version__question=question, version__number=number
        )
        spans = SpanFlag.objects.filter(~Exists(of_span), judgment=OuterRef("pk"))
        if question.categories:
            # A category stands for its sub-categories, too.
            keys = question.categories
            spans = spans.filter(Q(category__key__in=keys) | Q(category__parent__key__in=keys))
        return judgments.filter(Exists(spans))
    if question.subject == QuestionSubject.STEP:
        traces = Candidate.objects.filter(comparison=OuterRef("comparison"), completion__step_count__gt=0)
        judgments = judgments.filter(Exists(traces))
    return judgments.filter(~Exists(answered))


def judgments_with_unsplit(category: Category) -> QuerySet[Judgment]:
    """Return the current judgments of people that have a span of the category itself, not of a part of it."""
    spans = SpanFlag.objects.filter(judgment=OuterRef("pk"), category=category)
    return (
        Judgment.objects.current()
        .filter(Exists(spans), comparison__project=category.project_id, annotator__is_machine=False)
        .exclude(comparison__purpose=Purpose.ARENA)
    )


def add_split_progress(rows: Sequence[Category]) -> None:
    """Give split categories how many annotations have unsplit spans, and how many are asked again."""
    split = {row.parent_id for row in rows if row.parent_id is not None and not row.is_archived}
    if not split:
        return
    waiting = dict(
        Category.objects.filter(pk__in=split)
        .annotate(open=Count("repeated", filter=Q(repeated__answered_at__isnull=True)))
        .values_list("pk", "open")
    )
    for row in rows:
        if row.pk in split:
            row.waiting = waiting.get(row.pk, 0)
            row.lacking = judgments_with_unsplit(row).count()


def add_progress(rows: Sequence[ProjectQuestion]) -> None:
    """Give questions their newest version, how many annotations lack it, and how many are asked again."""
    versions: dict[int, QuestionVersion] = {}
    for version in QuestionVersion.objects.filter(question__in=rows).order_by("number"):
        versions[version.question_id] = version
    waiting = dict(
        ProjectQuestion.objects.filter(pk__in=[row.pk for row in rows])
        .annotate(open=Count("repeated", filter=Q(repeated__answered_at__isnull=True)))
        .values_list("pk", "open")
    )
    for row in rows:
        row.newest = versions.get(row.pk)
        row.waiting = waiting.get(row.pk, 0)
        row.lacking = 0 if row.is_archived else judgments_without(row).count()
