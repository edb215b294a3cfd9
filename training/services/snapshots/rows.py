"""Rows and prompts of a snapshot, read from the database some hundred at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TypeVar, cast

from django.db.models import Exists, Model, OuterRef, Prefetch, Q, QuerySet

from annotation.choices import Split, Verdict
from annotation.models import (
    Candidate,
    Completion,
    Correction,
    Judgment,
    MissingInfo,
    Project,
    Prompt,
    Rating,
    Review,
    SpanFlag,
    TraceStep,
)
from annotation.record.judgment import (
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    MissingPart,
    RatingPart,
    SpanPart,
)
from annotation.record.judgment import Scale as ContractScale
from annotation.record.judgment import StepLabel as ContractStepLabel
from annotation.record.judgment import Verdict as ContractVerdict
from annotation.selectors.access import judgments_current
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

T = TypeVar("T")

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
        for judgment in _with_all_that_a_row_needs(some):
            weight, group = weights.get(judgment.annotator_id, 1.0), groups.get(judgment.annotator_id, "")
            yield _row(judgment, weight, read_by, group)


def _with_all_that_a_row_needs(ids: Sequence[int]) -> QuerySet[Judgment]:
    # Not `judgments_current`: one that is superseded while rows are written stays in this snapshot.
    candidates = Candidate.objects.select_related("completion__source").order_by("index")
    steps = TraceStep.objects.only("completion_id", "start", "end").order_by("completion_id", "index")
    return (
        Judgment.objects.filter(pk__in=ids)
        .select_related(
            *("annotator", "assignment", "guideline", "comparison__prompt", "comparison__review"),
            "demonstration",
        )
        .prefetch_related(
            Prefetch("comparison__candidates", queryset=candidates),
            Prefetch("comparison__candidates__completion__steps", queryset=steps),
            "ranks",
            "span_flags__category",
            "labelled_steps",
            "missing_info__category",
            "corrections__edits",
            "ratings__criterion",
            "critiques",
        )
        .order_by("pk")
    )


def _row(judgment: Judgment, weight: float, read_by: Readers, group: str) -> SnapshotRow:
    comparison = judgment.comparison
    prompt = comparison.prompt
    completions = [candidate.completion for candidate in comparison.candidates.all()]
    return SnapshotRow(
        judgment=str(judgment.pk),
        comparison=str(comparison.pk),
        annotator=str(judgment.annotator.pseudonym),
        round=comparison.round_number,
        prompt=str(prompt.pk),
        split=_split(prompt),
        messages=_messages(prompt),
        context=_context(prompt),
        completions=tuple(map(_completion, completions)),
        verdict=cast(ContractVerdict, judgment.verdict),
        ranks={str(place.completion_id): place.rank for place in judgment.ranks.all()},
        guideline_version=judgment.guideline.version if judgment.guideline else None,
        strength=judgment.strength,
        spans=tuple(map(_span, judgment.span_flags.all())),
        missing=tuple(map(_missing, judgment.missing_info.all())),
        corrections=tuple(map(_correction, judgment.corrections.all())),
        comment=judgment.comment,
        ratings=tuple(map(_rating, judgment.ratings.all())),
        critiques=tuple(
            CritiquePart(completion=str(critique.completion_id), text=critique.text)
            for critique in judgment.critiques.all()
        ),
        step_labels=tuple(_step_labels(judgment, completions)),
        demonstration=judgment.demonstration.text if hasattr(judgment, "demonstration") else "",
        review=_review(comparison.review) if hasattr(comparison, "review") else None,
        weight=weight,
        read_for_spans=_read(judgment, completions, judgment.span_flags.all(), read_by.spans),
        read_for_missing=_read(judgment, completions, judgment.missing_info.all(), read_by.missing),
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
    completions: Sequence[Completion],
    flags: Iterable[SpanFlag | MissingInfo],
    who: frozenset[int],
) -> tuple[str, ...]:
    """Ids of the completions that this judgment read for faults of one kind, in the row's order.

    Of an imported judgment those that it says anything of: a published set may speak of one answer of many
    (qa-feedback of the first of four, which always has a correction).
    """
    if judgment.imported_from is not None:
        relations = (judgment.span_flags, judgment.missing_info, judgment.corrections)
        read = {row.completion_id for relation in relations for row in relation.all()}
    elif judgment.annotator_id in who and judgment.verdict != Verdict.CANNOT_JUDGE:
        read = {completion.pk for completion in completions}
    else:
        read = {flag.completion_id for flag in flags}
    return tuple(str(completion.pk) for completion in completions if completion.pk in read)


def _review(review: Review) -> SnapshotReview | None:
    if review.decided_at is None:
        return None
    return SnapshotReview(verdict=cast(ContractVerdict, review.verdict), ranks=dict(review.ranks))


def _copied(part: type[T], row: Model, **values: object) -> T:
    """Return the part with these values, and the row's fields of the same names."""
    names = {field.name for field in fields(part)} - values.keys()  # type: ignore[arg-type]
    return part(**values, **{name: getattr(row, name) for name in names})


def _correction(correction: Correction) -> CorrectionPart:
    edits = tuple(_copied(Edit, edit) for edit in correction.edits.all())
    return _copied(CorrectionPart, correction, completion=str(correction.completion_id), edits=edits)


def _rating(rating: Rating) -> RatingPart:
    criterion = rating.criterion
    return RatingPart(
        completion=str(rating.completion_id),
        criterion=criterion.key,
        scale=cast(ContractScale, criterion.scale),
        value=rating.value,
    )


def _completion(completion: Completion) -> SnapshotCompletion:
    return SnapshotCompletion(
        id=str(completion.pk),
        text=completion.text,
        source=completion.source.name,
        steps=tuple((step.start, step.end) for step in completion.steps.all()),
    )


def _step_labels(judgment: Judgment, completions: Sequence[Completion]) -> Iterator[SnapshotStepLabels]:
    labels_by_step = {
        labelled_step.step_id: cast(ContractStepLabel, labelled_step.label)
        for labelled_step in judgment.labelled_steps.all()
    }
    if not labels_by_step:
        return
    for completion in completions:
        labels = tuple(labels_by_step.get(step.pk) for step in completion.steps.all())
        if any(labels):
            yield SnapshotStepLabels(completion=str(completion.pk), labels=labels)


def _span(flag: SpanFlag) -> SpanPart:
    return _copied(SpanPart, flag, completion=str(flag.completion_id), category=flag.category.key)


def _missing(missing: MissingInfo) -> MissingPart:
    return _copied(
        MissingPart,
        missing,
        completion=str(missing.completion_id),
        category=missing.category.key,
        evidence=_evidence(missing),
    )


def _evidence(missing: MissingInfo) -> tuple[EvidencePointer, ...]:
    if missing.passage is None:
        return ()
    first = EvidencePointer(passage=missing.passage, sentence=missing.sentence)
    further = (
        EvidencePointer(passage=place["passage"], sentence=place["sentence"])
        for place in missing.further_evidence
    )
    return (first, *further)
