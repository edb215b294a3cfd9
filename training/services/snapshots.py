"""Judgments leave the database: content-addressed, immutable, pseudonymous.

`rows` reads what a snapshot holds; `freezing` writes it.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import Split, Verdict
from annotation.errors import Refusal
from annotation.models import (
    Candidate,
    Completion,
    Judgment,
    MissingInfo,
    Project,
    Prompt,
    Review,
    SpanFlag,
    TraceStep,
    User,
)
from annotation.record.judgment import JudgmentParts, JudgmentRecord, MissingPart, SpanPart
from annotation.selectors.access import judgments_current, judgments_hidden
from annotation.selectors.allocation import groups_of_annotators
from annotation.selectors.judged import reliability_weights
from annotation.selectors.records import records_of
from annotation.selectors.reviews import decided_record
from training.contract.snapshot import (
    Message,
    Passage,
    SnapshotCompletion,
    SnapshotPrompt,
    SnapshotReview,
    SnapshotRow,
    SnapshotStepLabels,
    write_snapshot,
)
from training.contract.snapshot import Split as ContractSplit
from training.files.shared import publish
from training.models import Snapshot
from training.recipe.recipe import FeedbackUse
from training.selectors.rounds import decided_judgments, judgments_with_labelled_steps
from training.services.feedback.selection import feedback_rows

# Rows and prompts of a snapshot, read from the database some hundred at a time.

_ROWS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Readers:
    """Ids of the annotators who read answers for faults.

    A project that lets people mark does not make them: who never marks may just not look. So an annotator
    counts as one who looks once they marked anything, and what they then left unmarked was found faultless.
    """

    spans: frozenset[int] = frozenset()
    missing: frozenset[int] = frozenset()


_NOBODY = Readers()


def readers(project: Project, rounds: Sequence[int], *, first_passes: bool = False) -> Readers:
    """Return who marked any span or missing information, where the project asks for it."""

    judgments = judgments_current(project, rounds, first_passes=first_passes).annotate(
        marks=Exists(SpanFlag.objects.filter(judgment=OuterRef("pk"))),
        lacks=Exists(MissingInfo.objects.filter(judgment=OuterRef("pk"))),
    )
    annotators = set(
        judgments.filter(Q(marks=True) | Q(lacks=True)).values_list("annotator", "marks", "lacks")
    )
    return Readers(
        spans=frozenset(who for who, marks, _ in annotators if marks and project.ask_span_flags),
        missing=frozenset(who for who, _, lacks in annotators if lacks and project.ask_missing_info),
    )


def snapshot_rows(
    judgment_ids: Sequence[int],
    *,
    weights: Mapping[int, float] = MappingProxyType({}),
    read_by: Readers = _NOBODY,
    groups: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[SnapshotRow]:
    """Yield the rows of these judgments, in their order, read some hundred at a time.

    `weights`: what the judgments of an annotator weigh, by the annotator's id; 1 for who is not in it.
    `read_by`: whose unmarked answers are faultless. `groups`: group by the annotator's id. Where a reviewer
    decided more than the preference, the first row of the comparison has the decided parts and the others
    none: like the preference they count once.
    """
    decided: set[int] = set()
    for first in range(0, len(judgment_ids), _ROWS_AT_ONCE):
        some = judgment_ids[first : first + _ROWS_AT_ONCE]
        records = records_of(some)
        for judgment in _with_all_that_a_row_needs(some):
            weight, group = weights.get(judgment.annotator_id, 1.0), groups.get(judgment.annotator_id, "")
            review = getattr(judgment.comparison, "review", None)
            if review is None or review.record is None:
                yield _row(judgment, records[judgment.pk], weight, read_by, group)
                continue
            record = _decided_parts(review, records[judgment.pk], again=judgment.comparison_id in decided)
            reader = frozenset() if judgment.comparison_id in decided else frozenset({judgment.annotator_id})
            decided.add(judgment.comparison_id)
            project = judgment.comparison.project
            reviewed = Readers(
                spans=reader if project.ask_span_flags else frozenset(),
                missing=reader if project.ask_missing_info else frozenset(),
            )
            yield _row(judgment, record, weight, reviewed, group)


def _with_all_that_a_row_needs(ids: Sequence[int]) -> QuerySet[Judgment]:
    # Not `judgments_current`: one that is superseded while rows are written stays in this snapshot.
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    steps = TraceStep.objects.only("completion_id", "start", "end").order_by("completion_id", "index")
    return (
        Judgment.everything.filter(pk__in=ids)
        .select_related(
            *("annotator", "assignment", "guideline", "comparison__prompt", "comparison__review"),
            "comparison__project",
        )
        .prefetch_related(
            Prefetch("comparison__candidates", queryset=candidates),
            Prefetch("comparison__candidates__completion__steps", queryset=steps),
        )
        .order_by("pk")
    )


def _row(
    judgment: Judgment, record: JudgmentRecord, weight: float, read_by: Readers, group: str
) -> SnapshotRow:
    comparison = judgment.comparison
    prompt = comparison.prompt
    completions = [candidate.completion for candidate in comparison.candidates.all()]
    return SnapshotRow(
        **{part.name: getattr(record, part.name) for part in fields(JudgmentParts)},
        judgment=str(judgment.pk),
        comparison=str(comparison.pk),
        annotator=str(judgment.annotator.pseudonym),
        round=comparison.round_number,
        prompt=str(prompt.pk),
        split=_split(prompt),
        messages=_messages(prompt),
        context=_context(prompt),
        completions=tuple(map(_completion, completions)),
        guideline_version=judgment.guideline.version if judgment.guideline else None,
        step_labels=tuple(_step_labels(record, completions)),
        review=_review(comparison.review) if hasattr(comparison, "review") else None,
        weight=weight,
        read_for_spans=_read(judgment, record, completions, record.spans, read_by.spans),
        read_for_missing=_read(judgment, record, completions, record.missing, read_by.missing),
        shown=_shown(judgment, completions),
        group=group,
    )


_DECIDED_PARTS = ("spans", "missing", "ratings", "corrections", "critiques", "answers", "step_labels")


def _decided_parts(review: Review, vote: JudgmentRecord, *, again: bool) -> JudgmentRecord:
    """Return a vote with the parts that a reviewer decided, or without them where they were met before."""
    parts = decided_record(review)
    kept: dict[str, Any] = {name: () if again else getattr(parts, name) for name in _DECIDED_PARTS}
    return replace(vote, **kept)


def _shown(judgment: Judgment, completions: Sequence[Completion]) -> tuple[str, ...]:
    """Return the order on the annotator's screen; nothing of an imported judgment that did not say it."""
    order = judgment.assignment.display_order
    unknown = (judgment.imported_from or {}).get("display_order") == "unknown"
    if unknown or sorted(order) != sorted(completion.pk for completion in completions):
        return ()
    return tuple(map(str, order))


def snapshot_prompts(project: Project) -> Iterator[SnapshotPrompt]:
    """Yield all prompts of a project, in their order. Several reference answers to one are a list."""
    for prompt in project.prompts.order_by("pk").iterator(chunk_size=_ROWS_AT_ONCE):
        references = list(prompt.references)
        yield SnapshotPrompt(
            id=str(prompt.pk),
            split=_split(prompt),
            messages=_messages(prompt),
            context=_context(prompt),
            reference=references if len(references) > 1 else next(iter(references), None),
        )


def _split(prompt: Prompt) -> ContractSplit:
    return "held-out" if prompt.split == Split.HELD_OUT else "train"


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    return tuple(Message(role=turn["role"], content=turn["content"]) for turn in prompt.messages)


def _context(prompt: Prompt) -> tuple[Passage, ...]:
    return tuple(
        Passage(title=passage["title"], sentences=tuple(passage["sentences"])) for passage in prompt.context
    )


def _read(
    judgment: Judgment,
    record: JudgmentRecord,
    completions: Sequence[Completion],
    flags: Iterable[SpanPart | MissingPart],
    who: frozenset[int],
) -> tuple[str, ...]:
    """Ids of the completions that this judgment read for faults of one kind, in the row's order.

    Of an imported judgment those that it says anything of: a published set may speak of one answer of many
    (qa-feedback of the first of four, which always has a correction).
    """
    ids = [str(completion.pk) for completion in completions]
    if judgment.imported_from is not None:
        read = {span.completion for span in record.spans} | {lack.completion for lack in record.missing}
        read |= {correction.completion for correction in record.corrections}
    elif judgment.annotator_id in who and judgment.verdict != Verdict.CANNOT_JUDGE:
        return tuple(ids)
    else:
        read = {flag.completion for flag in flags}
    return tuple(pk for pk in ids if pk in read)


def _review(review: Review) -> SnapshotReview | None:
    if review.decided_at is None:
        return None
    return SnapshotReview(verdict=review.verdict, ranks=dict(review.ranks))


def _completion(completion: Completion) -> SnapshotCompletion:
    return SnapshotCompletion(
        id=str(completion.pk),
        text=completion.text,
        source=completion.source.name,
        steps=tuple((step.start, step.end) for step in completion.steps.all()),
    )


def _step_labels(record: JudgmentRecord, completions: Sequence[Completion]) -> Iterator[SnapshotStepLabels]:
    labels = {(label.completion, label.step): label.label for label in record.step_labels}
    for completion in completions if labels else ():
        pk, count = str(completion.pk), len(completion.steps.all())
        of_steps = tuple(labels.get((pk, step)) for step in range(count))
        if any(of_steps):
            yield SnapshotStepLabels(completion=pk, labels=of_steps)


# Freeze judgments into a snapshot: a folder named by its digest, and the row of it.


def refuse_unless_learnable(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False, first_passes: bool = False
) -> None:
    """Refuse where no judgment says anything that a reward model could learn from."""
    if decided_judgments(project, rounds, ai_feedback=ai_feedback, first_passes=first_passes).exists():
        return
    if judgments_with_labelled_steps(project, rounds, ai_feedback=ai_feedback).exists():
        return
    count = judgments_current(project, rounds, machines=ai_feedback).count()
    if not count:
        raise Refusal(
            "no_judgments",
            _("%(project)s has no judgments yet: label some comparisons, then start the training round."),
            project=project,
        )
    message = ngettext(
        "%(project)s has %(count)d judgment, but it prefers no response on a training prompt "
        "(held-out prompts only measure). Label more comparisons, then start again.",
        "%(project)s has %(count)d judgments, but none prefers one response to another on a training prompt "
        "(held-out prompts only measure). Label more comparisons, then start again.",
        count,
    )
    raise Refusal("no_preferences", message, project=project, count=count)


@dataclass(slots=True)
class _Tally:
    """Counts of a snapshot's contents."""

    judgments: int = 0
    annotators: set[str] = field(default_factory=set)
    rankings: int = 0
    decided_pairs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Split.values, 0))
    spans: int = 0
    missing: int = 0
    corrections: int = 0
    reviewed: int = 0

    def add(self, row: SnapshotRow) -> None:
        self.judgments += 1
        self.rankings += len(row.completions) > 2
        self.spans += len(row.spans)
        self.missing += len(row.missing)
        self.corrections += len(row.corrections)
        self.reviewed += row.review is not None
        self.decided_pairs[row.split] += sum(1 for _ in row.pairs())
        self.annotators.add(row.annotator)

    def counts(self) -> dict[str, object]:
        return {**asdict(self), "annotators": len(self.annotators)}


def freeze_snapshot(
    *,
    project: Project,
    rounds: Sequence[int],
    created_by: User | None = None,
    weigh_by_reliability: bool = False,
    ai_feedback: bool = False,
    feedback: FeedbackUse | None = None,
    first_passes: bool = False,
    only: Collection[int] | None = None,
    on_row: Callable[[int, int], object] = lambda done, total: None,
) -> Snapshot:
    """Freeze the current judgments of `rounds` into a snapshot.

    Which judgments are in it is decided by one query; what comes later is not. With them go all prompts of
    the project, judged or not, with their references. Equal content gives the snapshot that is already
    there. `weigh_by_reliability` gives each row the weight of
    its annotator, as estimated from the judgments of these rounds; else every row weighs 1.
    `ai_feedback` puts the judgments of programs in, each with the weight 1; their number is in the header
    and the counts. `feedback` says which feedback of applications comes after the judgments, as rows of its
    own; None none.
    `first_passes` takes the first pass of what was judged with suggestions, not the final one; how many is
    told in the counts, and so is how many calibration sessions hide. `only` restricts the judgments to
    those with these ids. `on_row(done, total)` is called as rows are written. Refuses where there is
    nothing to learn from.
    """
    refuse_unless_learnable(project, rounds, ai_feedback=ai_feedback, first_passes=first_passes)
    judgments = judgments_current(project, rounds, machines=ai_feedback, first_passes=first_passes)
    if only is not None:
        judgments = judgments.filter(pk__in=only)
    judgment_rows = list(judgments.values_list("pk", "annotator__is_machine", "annotator"))
    by_machine = {pk: is_machine for pk, is_machine, _ in judgment_rows}
    ids = list(by_machine)
    hidden = judgments_hidden(project, rounds).count() if project.calibration_seals else 0
    before_help = judgments.filter(help_after__final_judgment__isnull=False).count() if first_passes else 0
    weights = reliability_weights(project, rounds) if weigh_by_reliability else {}
    groups = groups_of_annotators(project, {annotator for _, _, annotator in judgment_rows})
    read_by = readers(project, rounds, first_passes=first_passes)
    rows_from_feedback = feedback_rows(project, feedback, round_number=max(rounds)) if feedback else []
    tally = _Tally()

    def rows() -> Iterator[SnapshotRow]:
        for row in snapshot_rows(ids, weights=weights, read_by=read_by, groups=groups):
            tally.add(row)
            on_row(tally.judgments, len(ids))
            yield row
        yield from rows_from_feedback

    root = Path(settings.RONDO_SNAPSHOTS)
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=root, prefix=".draft-"))
    try:
        header = write_snapshot(
            draft,
            rows(),
            project=project.slug,
            rounds=tuple(sorted(rounds)),
            prompts=snapshot_prompts(project),
            ai_judgments=sum(by_machine.values()),
            feedback=len(rows_from_feedback),
        )
        folder = root / header.digest
        if not folder.exists():
            draft.chmod(0o755)
            os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    publish(folder)
    with transaction.atomic():
        snapshot, created = Snapshot.objects.get_or_create(
            project=project,
            digest=header.digest,
            defaults={
                "folder": str(folder.relative_to(settings.RONDO_HOME)),
                "rounds": sorted(rounds),
                "counts": {
                    **tally.counts(),
                    "ai_judgments": sum(by_machine.values()),
                    **({"feedback": len(rows_from_feedback)} if feedback else {}),
                    **({"hidden": hidden} if hidden else {}),
                    "first_passes": before_help,
                },
                "created_by": created_by,
            },
        )
        if created:
            snapshot.judgments.add(*ids)
    return snapshot
