"""Rows and prompts of a snapshot, read from the database some hundred at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from django.db.models import Exists, OuterRef, Prefetch, Q, QuerySet

from annotation.choices import Split, Verdict
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
)
from annotation.record.judgment import JudgmentParts, JudgmentRecord, MissingPart, SpanPart
from annotation.selectors.access import judgments_current
from annotation.selectors.records import records_of
from training.contract import (
    Message,
    Passage,
    SnapshotCompletion,
    SnapshotPrompt,
    SnapshotReview,
    SnapshotRow,
    SnapshotStepLabels,
)
from training.contract import Split as ContractSplit

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
    `read_by`: whose unmarked answers are faultless. `groups`: group by the annotator's id.
    """
    for first in range(0, len(judgment_ids), _ROWS_AT_ONCE):
        some = judgment_ids[first : first + _ROWS_AT_ONCE]
        records = records_of(some)
        for judgment in _with_all_that_a_row_needs(some):
            weight, group = weights.get(judgment.annotator_id, 1.0), groups.get(judgment.annotator_id, "")
            yield _row(judgment, records[judgment.pk], weight, read_by, group)


def _with_all_that_a_row_needs(ids: Sequence[int]) -> QuerySet[Judgment]:
    # Not `judgments_current`: one that is superseded while rows are written stays in this snapshot.
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    steps = TraceStep.objects.only("completion_id", "start", "end").order_by("completion_id", "index")
    return (
        Judgment.objects.filter(pk__in=ids)
        .select_related(
            *("annotator", "assignment", "guideline", "comparison__prompt", "comparison__review"),
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
