"""Reviews: the queue, and one comparison with its votes, blind until it is decided.

Reads only. Completions and votes have opaque names and an order of their own in every review; until the
decision neither who voted nor which model wrote what is in anything that leaves this module.
"""

import string
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain, repeat
from typing import Any

from django.db.models import Case, Exists, IntegerField, OuterRef, QuerySet, Value, When
from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.agreement.records import unordered_among
from annotation.choices import (
    SCALE_VALUES,
    STRENGTHS,
    AssignmentState,
    FinishReason,
    RatingScale,
    ReturnState,
    ReviewReason,
    StepLabel,
    Verdict,
)
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    ItemFlag,
    Judgment,
    Project,
    Review,
    ReviewDecision,
    ReviewReturn,
    User,
)
from annotation.record.base import decode
from annotation.record.judgment import JudgmentRecord, SpanPart
from annotation.selectors import access
from annotation.selectors.comparison import Traces, completion_ids_by_name
from annotation.selectors.configuration import configuration_of
from annotation.selectors.records import records_of
from annotation.text.identity import with_rest
from annotation.text.rendering import render_answer, render_turns
from annotation.text.step_markup import ShownStep


def judgments_that_count(comparison: Comparison) -> QuerySet[Judgment]:
    """The judgments of a comparison that stand, one per person: no retest, nothing superseded."""
    return (
        Judgment.objects.current()
        .filter(
            comparison=comparison,
            assignment__retest_of__isnull=True,
            annotator__is_machine=False,
        )
        .order_by("pk")
    )


def not_annotated_by(reviews: QuerySet[Review], person: User) -> QuerySet[Review]:
    """Of these reviews those whose comparison this person neither judged nor holds as annotator."""
    assignments = Assignment.objects.filter(
        comparison=OuterRef("comparison"),
        annotator=person,
        state__in=[AssignmentState.LEASED, AssignmentState.SUBMITTED],
    )
    return reviews.filter(~Exists(assignments))


# ── The queue ───────────────────────────────────────────────────────────────────────────


_REASONS = (
    ReviewReason.FLAGGED,
    ReviewReason.REQUESTED,
    ReviewReason.DISAGREEMENT,
    ReviewReason.LOW_AGREEMENT,
    ReviewReason.NEWCOMER,
    ReviewReason.PERIODIC,
    ReviewReason.RANDOM,
)
"""The most urgent first."""


def open_reviews_for(project: Project, reviewer: User) -> QuerySet[Review]:
    """Return the reviews open to this reviewer: answered returns first, then by urgency, then the oldest.

    What waits for an annotator's answer is left out: see `returned_reviews_for`.
    """
    order = Case(
        When(Exists(_returns(ReturnState.CORRECTED, ReturnState.OBJECTED)), then=Value(-1)),
        *(When(reason=reason, then=Value(place)) for place, reason in enumerate(_REASONS)),
        output_field=IntegerField(),
    )
    waiting = _undecided(project, reviewer).filter(~Exists(_returns(ReturnState.OPEN)))
    return waiting.order_by(order, "opened_at", "id")


def returned_reviews_for(project: Project, reviewer: User) -> QuerySet[Review]:
    """Return the reviews that wait for an annotator's answer to a return, the oldest first."""
    waiting = _undecided(project, reviewer).filter(Exists(_returns(ReturnState.OPEN)))
    return waiting.order_by("opened_at", "id")


def _undecided(project: Project, reviewer: User) -> QuerySet[Review]:
    # What a calibration session hides is not reviewed before its reveal.
    rows = Review.objects.filter(
        comparison__project=project, comparison__is_sealed=False, decided_at__isnull=True
    )
    return not_annotated_by(rows, reviewer)


def _returns(*states: ReturnState) -> QuerySet[ReviewReturn]:
    return ReviewReturn.objects.filter(review=OuterRef("pk"), state__in=states)


def decided_reviews_of(project: Project) -> QuerySet[Review]:
    """Return decided reviews, newest first."""
    return Review.objects.filter(comparison__project=project, decided_at__isnull=False).order_by(
        "-decided_at", "-id"
    )


# ── Returns, for their annotator ────────────────────────────────────────────────────────


def open_returns_to(project: Project, annotator: User) -> QuerySet[ReviewReturn]:
    """Return what was returned to an annotator and waits for their answer, the oldest first."""
    return (
        ReviewReturn.objects.filter(
            annotator=annotator, state=ReturnState.OPEN, assignment__comparison__project=project
        )
        .select_related("assignment__comparison__prompt", "assignment__annotator")
        .order_by("pk")
    )


def oldest_return(project: Project, annotator: User) -> Assignment | None:
    """Return the assignment that was returned first. No query where nothing was ever returned."""
    if not project.has_returns:
        return None
    returned = open_returns_to(project, annotator).first()
    if returned is None:
        return None
    returned.assignment.comparison.project = project
    return returned.assignment


def returns_of(assignment: Assignment) -> list[ReviewReturn]:
    """Return the returns of one annotation with their answers, the oldest first."""
    if not assignment.comparison.project.has_returns:
        return []
    return list(ReviewReturn.objects.filter(assignment=assignment).order_by("pk"))


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionForAnnotator:
    """The decision on a comparison, in the letters of an annotator's screen."""

    preference: str
    reason: str
    is_overruled: bool


def decision_for(assignment: Assignment) -> DecisionForAnnotator | None:
    """Return the decision on a comparison for who annotated it; None before there is one."""
    review = Review.objects.filter(
        comparison=assignment.comparison_id, decided_at__isnull=False, comparison__assignments=assignment
    ).first()
    judgment = access.current_judgment(assignment)
    if review is None or judgment is None:
        return None
    decided = decided_record(review)
    letters = dict(zip(map(str, assignment.display_order), string.ascii_uppercase, strict=False))
    return DecisionForAnnotator(
        preference=preference_in_words(decided, letters),
        reason=review.comment,
        is_overruled=is_overruled(
            records_of([judgment.pk])[judgment.pk], decided, whole=review.record is not None
        ),
    )


# ── What votes say alike ────────────────────────────────────────────────────────────────


PartKey = tuple[Any, ...]
"""A part of a record with all that it says. Its first entry is the kind."""
_MARKED = frozenset({"preference", "span", "missing"})
"""Kinds in which a decision overrules an annotation by anything that only one of them has."""
_ANSWERED = frozenset({"rating", "step", "answer"})
"""Kinds in which it does by another value; the value comes last."""


def part_keys(record: JudgmentRecord) -> Iterator[PartKey]:
    """Yield what a record says, part by part; the comment and the time aside."""
    ranks = tuple(sorted(record.ranks.items())) if record.verdict == Verdict.RANKED else ()
    yield "preference", record.verdict, ranks
    if record.strength is not None:
        yield "strength", record.strength
    for span in record.spans:
        yield _key("span", span.completion, span.category, span.start, span.end, span.severity)
    for missing in record.missing:
        places = tuple((pointer.passage, pointer.sentence) for pointer in missing.evidence)
        yield _key("missing", missing.completion, missing.category, missing.text, places)
    for rating in record.ratings:
        yield _key("rating", rating.completion, rating.criterion, rating.value)
    for step in record.step_labels:
        yield _key("step", step.completion, step.step, step.label)
    for answer in record.answers:
        yield _key("answer", *answer.target, answer.question, answer.version, answer.value)
    for critique in record.critiques:
        yield _key("critique", critique.completion, critique.text)
    for correction in record.corrections:
        yield _key("correction", correction.completion, correction.text)
    if record.demonstration:
        yield "demonstration", record.demonstration


def _key(*parts: Any) -> PartKey:
    return parts


def shared_parts(records: Sequence[JudgmentRecord]) -> frozenset[PartKey]:
    """Return what all of these records say."""
    sets = [frozenset(part_keys(record)) for record in records]
    return frozenset.intersection(*sets) if sets else frozenset()


def shared_record(records: Sequence[JudgmentRecord]) -> JudgmentRecord | None:
    """Return what all votes say alike as a record to begin a decision with; None without a vote.

    Where they do not prefer alike its verdict is "not asked", and nothing is chosen for the reviewer.
    """
    return only_parts(records[0], shared_parts(records)) if records else None


def only_parts(record: JudgmentRecord, wanted: Collection[PartKey]) -> JudgmentRecord:
    """Return a record with these of its parts alone; without its preference the verdict is "not asked"."""
    keys = list(part_keys(record))

    def kept(kind: str, parts: Sequence[Any]) -> tuple[Any, ...]:
        own = [key for key in keys if key[0] == kind]
        return tuple(part for part, key in zip(parts, own, strict=True) if key in wanted)

    agreed = keys[0] in wanted
    spans = kept("span", record.spans)
    kept_places = {(span.completion, span.place) for span in spans}
    # An answer about a span stands on it.
    answers = tuple(
        part
        for part in kept("answer", record.answers)
        if part.span is None or (part.completion, part.span) in kept_places
    )
    return replace(
        record,
        verdict=record.verdict if agreed else Verdict.NOT_ASKED,
        ranks=record.ranks if agreed else {},
        strength=record.strength if agreed and ("strength", record.strength) in wanted else None,
        comment="",
        active_seconds=None,
        spans=_with_relations_among(record.spans, spans),
        missing=kept("missing", record.missing),
        ratings=kept("rating", record.ratings),
        step_labels=kept("step", record.step_labels),
        answers=answers,
        critiques=kept("critique", record.critiques),
        corrections=kept("correction", record.corrections),
        demonstration=record.demonstration if ("demonstration", record.demonstration) in wanted else "",
    )


def _belonging(record: JudgmentRecord, keys: Sequence[PartKey], key: PartKey) -> Iterator[PartKey]:
    """Yield the span that an answer is about, and the answers about a span."""
    spans = dict(zip([each for each in keys if each[0] == "span"], record.spans, strict=True))
    answers = dict(zip([each for each in keys if each[0] == "answer"], record.answers, strict=True))
    for span_key, span in spans.items():
        about = [
            answer_key
            for answer_key, answer in answers.items()
            if (answer.completion, answer.span) == (span.completion, span.place)
        ]
        if key == span_key:
            yield from about
        elif key in about:
            yield span_key


def _with_relations_among(spans: Sequence[SpanPart], kept: Sequence[SpanPart]) -> tuple[SpanPart, ...]:
    """Return the kept spans with their relations to each other: a relation names a place in the list."""
    places = {spans.index(span): place for place, span in enumerate(kept)}
    return tuple(
        replace(
            span,
            relations=tuple(
                replace(link, to=places[link.to]) for link in span.relations if link.to in places
            ),
        )
        for span in kept
    )


def is_overruled(vote: JudgmentRecord, decided: JudgmentRecord, *, whole: bool) -> bool:
    """Return True where a decision says something else than a vote.

    whole: the decision is about all parts, else about the preference alone. A rating, a step or a question
    that only one of the two has is no contradiction: the project may not have asked it of both.
    """
    theirs, ours = list(part_keys(vote)), list(part_keys(decided))

    def of(kinds: Collection[str], keys: Sequence[PartKey]) -> set[PartKey]:
        return {key for key in keys if key[0] in kinds}

    compared = _MARKED if whole else {"preference"}
    if of(compared, theirs) != of(compared, ours):
        return True
    if not whole:
        return False
    said = {key[:-1]: key[-1] for key in of(_ANSWERED, theirs)}
    return any(said.get(key[:-1], key[-1]) != key[-1] for key in of(_ANSWERED, ours))


def as_json(record: JudgmentRecord) -> dict[str, Any]:
    """Return a decision's record as a review stores it."""
    return asdict(record)


def decided_record(review: Review | ReviewDecision) -> JudgmentRecord:
    """Return what was decided; of a decision on the preference alone, only that."""
    if review.record is not None:
        return decode(JudgmentRecord, review.record)
    return JudgmentRecord(verdict=review.verdict, ranks=review.ranks)


# ── One review ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownCompletion:
    """One answer on a review's page."""

    name: str
    """Opaque; what the form sends."""
    letter: str
    markup: SafeString
    is_truncated: bool = False
    steps: Sequence[ShownStep] = ()
    """Of a trace, which is shown by them and not by its markup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VoteRemark:
    """One thing that a vote says beside its verdict, in words."""

    about: str
    """The letter of an answer; empty for the comparison as a whole."""
    kind: str
    text: str
    quote: str = ""
    differs: bool = False
    """Not every vote says it."""
    part: int = 0
    """Its place among the parts of the record, from 0, which is the preference."""
    digit: int = 0
    """The digit of its key on the page of an open review; 0 without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownVersion:
    """What one version of a vote says."""

    verdict: str
    remarks: Sequence[VoteRemark]
    differs: bool = False
    """Another vote prefers otherwise."""
    digit: int = 0
    """The digit of the key of its preference; 0 without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownReturn:
    """A return of a vote with its answer."""

    comment: str
    state: str
    state_label: str
    objection: str
    returned_at: Any
    before: ShownVersion | None
    """The version that was returned, where it was corrected since."""

    @property
    def is_open(self) -> bool:
        """Return True while the annotator has not answered."""
        return self.state == ReturnState.OPEN


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewVote:
    """An annotator's vote without their name."""

    name: str
    """Opaque; names this version of the annotation on this page."""
    number: int
    version: ShownVersion
    letters: list[tuple[str, str]]
    """The letter of an answer on the annotator's screen, and on this page: their words use the former.
    Empty where both are the same."""
    annotator: str
    """Empty until the review is decided."""
    returns: Sequence[ShownReturn] = ()

    @property
    def verdict(self) -> str:
        """The preference in words."""
        return self.version.verdict

    @property
    def remarks(self) -> Sequence[VoteRemark]:
        """Everything besides the preference."""
        return self.version.remarks

    @property
    def is_returned(self) -> bool:
        """Return True while it waits for its annotator."""
        return any(returned.is_open for returned in self.returns)


def vote_name(review: Review, judgment: Judgment) -> str:
    """Return the opaque name of one version of an annotation on its review's page."""
    return _opaque("annotation.review.vote", review, judgment.pk)


def page_of_review(review: Review, reviewer: User) -> Assignment:
    """Return the assignment by which a reviewer gets the labelling screen. It is no row: nothing is leased.

    Its negative number is no assignment's, so its names of completions hold on this review's page alone.
    """
    page = Assignment(
        pk=-review.pk,
        comparison=review.comparison,
        annotator=reviewer,
        display_order=list(completion_ids_by_name(review).values()),
    )
    page.fresh_completions = list(Completion.objects.filter(pk__in=page.display_order))
    return page


def _opaque(salt: str, review: Review, pk: int) -> str:
    return salted_hmac(salt, f"{review.pk}:{pk}", algorithm="sha256").hexdigest()[:20]


class ReviewPage:
    """One review as its page shows it."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self.prompt = review.comparison.prompt
        self._ids = completion_ids_by_name(review)
        self._letters = dict(zip(map(str, self._ids.values()), string.ascii_uppercase, strict=False))

    @property
    def size(self) -> int:
        """Return the number of completions."""
        return len(self._ids)

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """The chat that the answers answer."""
        return render_turns(self.prompt.messages)

    @cached_property
    def completions(self) -> list[ShownCompletion]:
        """The answers, in this review's order."""
        completions = Completion.objects.in_bulk(self._ids.values())
        traces = Traces(self.review.comparison, list(completions.values()))
        return [
            ShownCompletion(
                name=name,
                letter=self._letters[str(pk)],
                markup=SafeString() if completions[pk].step_count else render_answer(completions[pk].text),
                steps=traces.of(completions[pk], ()),
                is_truncated=completions[pk].finish_reason == FinishReason.LENGTH,
            )
            for name, pk in self._ids.items()
        ]

    @cached_property
    def _judgments(self) -> list[Judgment]:
        """The votes in random order: it must not reveal who came first. A revision keeps its place."""
        rows = judgments_that_count(self.review.comparison).select_related("annotator", "assignment")
        return sorted(
            rows, key=lambda row: _opaque("annotation.review.place", self.review, row.assignment_id)
        )

    @cached_property
    def _returns(self) -> list[ReviewReturn]:
        return list(self.review.returns.order_by("pk"))

    @cached_property
    def _records(self) -> dict[int, JudgmentRecord]:
        """Records of the votes, and of the versions that were returned."""
        ids = {judgment.pk for judgment in self._judgments}
        return records_of(sorted(ids | {returned.judgment_id for returned in self._returns}))

    @property
    def records(self) -> list[JudgmentRecord]:
        """The records of the votes, in the order of the page."""
        return [self._records[judgment.pk] for judgment in self._judgments]

    def record_of(self, name: str) -> JudgmentRecord | None:
        """Return the record of the vote of this name; None for another name."""
        for vote, record in zip(self.votes, self.records, strict=True):
            if vote.name == name:
                return record
        return None

    def part_of(self, name: str) -> JudgmentRecord | None:
        """Return one part of a vote as a record. `name` is the vote's and the part's place, a dot between.

        A preference comes with its strength, an answer about a span with the span, a span with the answers
        about it. None where there is no such part.
        """
        vote, _dot, place = name.partition(".")
        record = self.record_of(vote)
        keys = list(part_keys(record)) if record else []
        if record is None or place not in map(str, range(len(keys))):
            return None
        key = keys[int(place)]
        if key is keys[0]:
            return only_parts(record, {key, ("strength", record.strength)})
        return only_parts(record, {key, *_belonging(record, keys, key)})

    @cached_property
    def votes(self) -> list[ReviewVote]:
        """Return the votes, each with what differs from the others; the first nine such parts have keys."""
        shared = shared_parts(self.records)
        digits = chain(range(1, 10), repeat(0))
        return [
            ReviewVote(
                name=vote_name(self.review, judgment),
                number=number,
                version=_with_digits(self._version(record, shared), digits),
                letters=self._letters_on_their_screen(judgment),
                annotator=str(judgment.annotator) if self.review.decided_at else "",
                returns=[
                    self._return(returned)
                    for returned in self._returns
                    if returned.assignment_id == judgment.assignment_id
                ],
            )
            for number, (judgment, record) in enumerate(
                zip(self._judgments, self.records, strict=True), start=1
            )
        ]

    @property
    def vote_names(self) -> list[str]:
        """The names of the votes, in the order of the page."""
        return [vote.name for vote in self.votes]

    @cached_property
    def flags(self) -> list[ItemFlag]:
        """Return the annotators' flags on this comparison."""
        return list(ItemFlag.objects.filter(assignment__comparison=self.review.comparison).order_by("pk"))

    @property
    def decision(self) -> str:
        """Return the decided preference in words."""
        return self.decided.verdict

    @cached_property
    def decided(self) -> ShownVersion:
        """The decision with all its parts."""
        return self._version(decided_record(self.review))

    @cached_property
    def earlier_decisions(self) -> list[tuple[ReviewDecision, str]]:
        """Earlier entries in the record of the review, each decision in words, the oldest first."""
        entries = list(self.review.decisions.select_related("reviewer").order_by("pk"))
        if self.review.decided_at is not None:
            entries = entries[:-1]
        return [
            (entry, preference_in_words(decided_record(entry), self._letters) if entry.verdict else "")
            for entry in entries
        ]

    def _return(self, returned: ReviewReturn) -> ShownReturn:
        is_corrected = returned.state == ReturnState.CORRECTED
        return ShownReturn(
            comment=returned.comment,
            state=returned.state,
            state_label=str(ReturnState(returned.state).label),
            objection=returned.objection,
            returned_at=returned.returned_at,
            before=self._version(self._records[returned.judgment_id]) if is_corrected else None,
        )

    def _letters_on_their_screen(self, judgment: Judgment) -> list[tuple[str, str]]:
        theirs = [
            (letter, self._letters[str(pk)])
            for letter, pk in zip(string.ascii_uppercase, judgment.assignment.display_order, strict=False)
        ]
        return theirs if any(their != our for their, our in theirs) else []

    def _version(self, record: JudgmentRecord, shared: frozenset[PartKey] | None = None) -> ShownVersion:
        """Return a record in words; with the parts that all votes share, those that differ are marked."""
        words = preference_in_words(record, self._letters)
        if record.strength:
            words = f"{words}, {STRENGTHS[record.strength]}"
        places = {key: place for place, key in enumerate(part_keys(record))}
        differing = {key for key in places if shared is not None and key not in shared}
        remarks = [
            VoteRemark(
                about=self._letters[about] if about else "",
                kind=kind,
                text=text,
                quote=quote,
                differs=key in differing,
                part=places.get(key, 0),
            )
            for key, about, kind, text, quote in self._parts_in_words(record)
        ]
        return ShownVersion(
            verdict=words,
            # The answers in the order of the page, the comparison as a whole at the end.
            remarks=sorted(remarks, key=lambda remark: remark.about or "~"),
            differs=any(key[0] in ("preference", "strength") for key in differing),
        )

    def _parts_in_words(self, record: JudgmentRecord) -> Iterator[tuple[PartKey, str | None, str, str, str]]:
        """Yield key, completion, kind, text and quote of every part besides the preference."""
        configured = configuration_of(self.review.comparison.project)
        categories = {category.key: category.label for category in configured.categories}
        criteria = {criterion.key: criterion.label for criterion in configured.criteria}
        questions = {question.key: question for question in configured.questions}
        quotes: dict[tuple[Any, Any], str] = {
            (span.completion, span.place): span.quote for span in record.spans
        }
        keys = [key for key in part_keys(record) if key[0] not in ("preference", "strength")]
        parts: list[tuple[str | None, str, str, str]] = []
        for span in record.spans:
            severity = _("severity %(step)s") % {"step": span.severity} if span.severity else ""
            text = " · ".join(part for part in (severity, span.note) if part)
            parts.append((span.completion, categories.get(span.category, span.category), text, span.quote))
        for missing in record.missing:
            kind = categories.get(missing.category, missing.category)
            quote = missing.evidence[0].quote if missing.evidence else ""
            parts.append((missing.completion, kind, missing.text, quote))
        for rating in record.ratings:
            kind = criteria.get(rating.criterion, rating.criterion)
            parts.append((rating.completion, kind, _rating_in_words(rating.scale, rating.value), ""))
        for step in record.step_labels:
            kind = _("step %(number)s") % {"number": step.step + 1}
            parts.append((step.completion, kind, str(StepLabel(step.label).label), ""))
        for answer in record.answers:
            question = questions.get(answer.question)
            labels = {choice.key: choice.label for choice in question.choices} if question else {}
            values = answer.value if isinstance(answer.value, tuple) else (answer.value,)
            words = ", ".join(labels.get(str(value)) or str(value) for value in values)
            unit = question.unit if question else ""
            kind = question.text if question else answer.question
            if answer.step is not None:
                kind = _("step %(number)s: %(question)s") % {"number": answer.step + 1, "question": kind}
            quote = quotes.get((answer.completion, answer.span), "")
            parts.append((answer.completion, kind, f"{words} {unit}".strip(), quote))
        parts += [(critique.completion, _("critique"), critique.text, "") for critique in record.critiques]
        parts += [
            (correction.completion, _("corrected to"), correction.text, "")
            for correction in record.corrections
        ]
        if record.demonstration:
            parts.append((None, _("would have written"), record.demonstration, ""))
        yield from ((key, *part) for key, part in zip(keys, parts, strict=True))
        if record.comment:
            yield ("comment",), None, _("comment"), record.comment, ""


def _with_digits(version: ShownVersion, digits: Iterator[int]) -> ShownVersion:
    digit = next(digits) if version.differs else 0
    remarks = [
        replace(remark, digit=next(digits)) if remark.differs and remark.part else remark
        for remark in version.remarks
    ]
    return replace(version, digit=digit, remarks=remarks)


def preference_in_words(record: JudgmentRecord, letters: dict[str, str]) -> str:
    """Return the preference of a record; `letters` by the ids of the completions."""
    if record.verdict != Verdict.RANKED or len(letters) == 1:
        return str(Verdict(record.verdict).label)
    by_rank: dict[int, list[str]] = {}
    for pk, rank in record.ranks.items():
        by_rank.setdefault(rank, []).append(letters[pk])
    order = " > ".join(" = ".join(sorted(by_rank[rank])) for rank in sorted(by_rank))
    return with_rest(order, [letters[pk] for pk in unordered_among(record.ranks, letters)])


def _rating_in_words(scale: str, value: int) -> str:
    if scale == RatingScale.THUMBS:
        return _("thumb up") if value else _("thumb down")
    most = SCALE_VALUES[RatingScale(scale)][-1]
    return _("%(value)s of %(most)s") % {"value": value, "most": most}
