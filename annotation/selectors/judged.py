"""The rows of the database as plain data, in a few queries however many judgments there are."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from django.db.models import OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.functions import Length

from annotation.agreement.records import Answered, GoldAnswered, Judged, JudgedSpan, Rated
from annotation.choices import Purpose
from annotation.models import (
    Completion,
    Correction,
    Judgment,
    Project,
    QuestionAnswer,
    RankedCompletion,
    Rating,
    SpanFlag,
    User,
)
from annotation.selectors.allocation import groups_of_annotators
from annotation.selectors.known_answers import disputes_in, gold_outcome

if TYPE_CHECKING:
    from annotation.agreement.reliability import Reliability


_FEW = 5000
"""Up to so many judgments are named one by one."""


def judged_in(
    project: Project, rounds: Sequence[int] | None = None, *, narrowed: Q | None = None
) -> list[Judged]:
    """The current judgments of those rounds (all for None), oldest first. Two queries."""
    judgments = current_in(project, rounds)
    if narrowed is not None:
        judgments = judgments.filter(narrowed)
    return judged_of(judgments, few=narrowed is not None)


def judged_of(judgments: QuerySet[Judgment], *, few: bool) -> list[Judged]:
    """Return these judgments as plain data, oldest first. Two queries. few: they are few among many."""
    fields = judgments.order_by("id").values_list(
        "pk",
        "comparison_id",
        "comparison__prompt_id",
        "comparison__round_number",
        "comparison__purpose",
        "assignment_id",
        "assignment__retest_of_id",
        "annotator_id",
        "verdict",
        "strength",
        "active_seconds",
        "created_at",
        "assignment__display_order",
        "imported_from",
        "supersedes_id",
        "in_bulk",
    )
    # Few are named, so that what narrowed them is not looked for once more.
    of_them = [row[0] for row in fields] if few else []
    ranked = RankedCompletion.objects.filter(judgment__in=of_them if 0 < len(of_them) <= _FEW else judgments)
    ranks: dict[int, dict[int, int]] = defaultdict(dict)
    for judgment, completion, rank in ranked.values_list("judgment_id", "completion_id", "rank"):
        ranks[judgment][completion] = rank
    return [
        Judged(
            pk=pk,
            comparison=comparison,
            prompt=prompt,
            round_number=round_number,
            purpose=purpose,
            assignment=assignment,
            retest_of=retest_of,
            annotator=annotator,
            verdict=verdict,
            strength=strength,
            seconds=seconds,
            at=at,
            shown=tuple(shown),
            ranks=ranks.get(pk, {}),
            undecided=_undecided(shown, imported),
            is_revision=supersedes is not None,
            in_bulk=in_bulk,
        )
        for (
            pk,
            comparison,
            prompt,
            round_number,
            purpose,
            assignment,
            retest_of,
            annotator,
            verdict,
            strength,
            seconds,
            at,
            shown,
            imported,
            supersedes,
            in_bulk,
        ) in fields
    ]


def current_of_people() -> QuerySet[Judgment]:
    """Return the current judgments of people for a project, in arenas aside."""
    return (
        Judgment.objects.current()
        .filter(annotator__is_machine=False)
        .exclude(comparison__purpose__in=(Purpose.ARENA, Purpose.DELETED))
    )


def current_in(project: Project, rounds: Sequence[int] | None) -> QuerySet[Judgment]:
    """Return the current judgments of people. AI annotators are measured against them."""
    judgments = current_of_people().filter(comparison__project=project)
    return judgments if rounds is None else judgments.filter(comparison__round_number__in=rounds)


def who_judged(project: Project) -> QuerySet[User]:
    """Return the users who judged in a project. Each is asked for one judgment: all are not read for it."""
    judgments = Judgment.objects.filter(comparison__project=project, annotator=OuterRef("pk"))
    first = Subquery(judgments.order_by().values("pk")[:1])
    return User.objects.alias(judged=first).filter(judged__isnull=False)


def _undecided(shown: Sequence[int], imported: dict[str, Any] | None) -> frozenset[frozenset[int]]:
    """Ties that the ranks could not express (`annotation.exchange.formats.qa_feedback`): ties here too."""
    # An imported set shows its answers in the order in which it numbers them, from 1.
    pairs = (imported or {}).get("more", {}).get("broken_ties", ())
    return frozenset(frozenset((shown[left - 1], shown[right - 1])) for left, right in pairs)


def spans_in(
    project: Project, rounds: Sequence[int] | None = None, *, category_id: int | None = None
) -> dict[tuple[int, int], list[JudgedSpan]]:
    """Return the spans of current judgments by judgment and completion. One query."""
    rows = SpanFlag.objects.filter(judgment__in=current_in(project, rounds))
    if category_id is not None:
        # A category counts its sub-categories.
        rows = rows.filter(Q(category_id=category_id) | Q(category__parent_id=category_id))
    fields = ("judgment_id", "completion_id", "start", "end", "category_id")
    spans: dict[tuple[int, int], list[JudgedSpan]] = defaultdict(list)
    for judgment, completion, start, end, category in rows.order_by("id").values_list(*fields):
        spans[judgment, completion].append(JudgedSpan(start, end, category))
    return spans


def relations_in(project: Project, rounds: Sequence[int] | None = None) -> list[tuple[int, str, str, str]]:
    """Return what spans of current judgments are to each other: judgment, category of the one, kind, category
    of the other. One query; none where no span has ever had a relation."""
    rows = SpanFlag.objects.filter(judgment__in=current_in(project, rounds), relations__isnull=False)
    marked = rows.order_by("id").values_list("judgment_id", "category__key", "relations")
    return [(pk, one, link["kind"], link["category"]) for pk, one, links in marked for link in links or ()]


def lengths_in(project: Project, rounds: Sequence[int] | None = None) -> dict[int, int]:
    """Return the length in code points of each judged completion. One query."""
    completions = Completion.objects.filter(prompt__project=project)
    if rounds is not None:
        completions = completions.filter(comparisons__round_number__in=rounds)
    return dict(completions.annotate(length=Length("text")).values_list("pk", "length"))


def shown_lengths(completions: Iterable[int]) -> dict[int, int]:
    """Return the length in code points of these completions, without traces. One query for 5,000 of them."""
    pks = sorted(completions)
    lengths: dict[int, int] = {}
    for start in range(0, len(pks), _FEW):
        rows = Completion.objects.filter(pk__in=pks[start : start + _FEW], step_count=0)
        lengths.update(rows.annotate(length=Length("text")).values_list("pk", "length"))
    return lengths


def changed_shares_in(project: Project, rounds: Sequence[int] | None = None) -> dict[int, list[float]]:
    """Return how much of each corrected response was changed, by judgment. One query.

    0 is nothing, 1 everything: characters removed and written over those of both texts.
    """
    corrections = Correction.objects.filter(judgment__in=current_in(project, rounds)).annotate(
        both=Length("completion__text") + Length("text"),
        changed=Sum(Length("edits__quote") + Length("edits__replacement")),
    )
    shares: dict[int, list[float]] = defaultdict(list)
    for judgment, both, changed in corrections.values_list("judgment_id", "both", "changed"):
        shares[judgment].append((changed or 0) / both if both else 0.0)
    return shares


def ratings_in(project: Project, rounds: Sequence[int] | None = None) -> list[Rated]:
    """The ratings of current judgments. One query."""
    return ratings_of(current_in(project, rounds))


def ratings_of(judgments: QuerySet[Judgment]) -> list[Rated]:
    """The ratings of judgments. One query."""
    ratings = Rating.objects.filter(judgment__in=judgments).order_by("id")
    return [
        Rated(judgment=judgment, completion=completion, criterion=criterion, value=value)
        for judgment, completion, criterion, value in ratings.values_list(
            "judgment_id", "completion_id", "criterion_id", "value"
        )
    ]


def answers_in(
    project: Project, versions: Mapping[str, int], rounds: Sequence[int] | None = None
) -> list[Answered]:
    """Return the answers of current judgments to these versions of questions. One query."""
    return answers_of(current_in(project, rounds), versions)


def answers_of(judgments: QuerySet[Judgment], versions: Mapping[str, int]) -> list[Answered]:
    """Return the answers of judgments to these versions of questions. One query."""
    answers = QuestionAnswer.objects.filter(judgment__in=judgments).order_by("id")
    return [
        Answered(judgment=judgment, question=key, about=tuple(about), value=value)
        for judgment, key, number, value, *about in answers.values_list(
            *("judgment_id", "version__question__key", "version__number", "value"),
            *("completion_id", "step_id", "span__category_id", "span__start", "span__end"),
        )
        if versions.get(key) == number
    ]


def gold_answered_in(project: Project, rounds: Sequence[int] | None = None) -> list[GoldAnswered]:
    """Return first answers to gold and qualification items: a later one may rest on feedback.

    Without those to an item that the annotator's group disputes (`disputed_gold`). Three queries; seven where
    annotators have groups.
    """
    judgments = Judgment.objects.filter(
        comparison__project=project,
        comparison__gold_answer__isnull=False,
        assignment__retest_of__isnull=True,
        supersedes__isnull=True,
    )
    if rounds is not None:
        judgments = judgments.filter(comparison__round_number__in=rounds)
    disputes = disputes_in(project)
    return [
        GoldAnswered(
            comparison=judgment.comparison_id,
            annotator=judgment.annotator_id,
            right=gold_outcome(judgment).right,
        )
        for judgment in judgments.select_related("comparison__gold_answer")
        .prefetch_related("ranks")
        .order_by("id")
        if not disputes.concerns(judgment.annotator_id, judgment.comparison_id)
    ]


# Reliability of a project's annotators, and the weights of their judgments.
#
# Snapshots import this in web workers, too, so NumPy and SciPy come with the first call and not before.


def project_reliability(
    judged: Iterable[Judged], groups: Mapping[int, str] = MappingProxyType({})
) -> "dict[int, Reliability]":
    """Return η of every annotator, by their id, from their preferences between all pairs in real work.

    groups: group by annotator; η within a group counts where it is higher.
    """
    from annotation.agreement.reliability import Preference, reliability_in_groups

    preferences = [
        Preference(
            item=judgment.comparison, annotator=judgment.annotator, left=left, right=right, outcome=outcome
        )
        for judgment in judged
        if judgment.is_first_work
        for left, right, outcome in judgment.outcomes()
    ]
    reliabilities = reliability_in_groups(preferences, dict(groups.items()))
    return {int(str(annotator)): reliability for annotator, reliability in reliabilities.items()}


def reliability_weights(project: Project, rounds: Sequence[int] | None = None) -> dict[int, float]:
    """Return the weight of each annotator's judgments of those rounds (all for None), by id.

    The weight is max(0, 2 η − 1): the share of judgments that carry the texts' quality rather than a
    tossed coin. 1 for who is never off, 0 for who answers at random or against everyone. Who shared
    no pair with anyone weighs as a newcomer does, 0.6. Everyone who judged a pair is in it. A group of
    annotators that is consistent with itself keeps its weight where it disagrees with the majority.
    """
    judged = list(judged_in(project, rounds))
    groups = groups_of_annotators(project, {judgment.annotator for judgment in judged})
    reliabilities = project_reliability(judged, groups)
    return {
        annotator: max(0.0, 2 * reliability.value - 1) for annotator, reliability in reliabilities.items()
    }
