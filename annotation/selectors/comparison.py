"""One comparison with all that people did with it, for the page of managers and reviewers."""

import json
import string
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from django.db.models import Prefetch, Q, QuerySet
from django.urls import reverse
from django.utils.crypto import salted_hmac
from django.utils.formats import number_format
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.agreement.records import Units, by_comparison, decides_a_pair, pair_units, unordered_among
from annotation.choices import (
    SCALE_VALUES,
    FinishReason,
    Purpose,
    RatingScale,
    SpanRelation,
    StepLabel,
    Verdict,
)
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    ItemFlag,
    Judgment,
    LabelledStep,
    QuestionAnswer,
    RankedCompletion,
    Rating,
    Review,
    RubricScore,
    SpanFlag,
    TraceStep,
)
from annotation.selectors.judged import judged_in
from annotation.selectors.known_answers import known_ranks
from annotation.selectors.pastes import PastedText, pasted_by_assignment
from annotation.selectors.traces import Row, rows_of, shown_steps, steps_by_completion
from annotation.text.edits import DiffPiece, pieces
from annotation.text.identity import in_order, with_rest
from annotation.text.rendering import Mark, render_answer, render_turns, with_marks
from annotation.text.step_markup import ShownStep

# ── Neighbours ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours:
    """Neighbours of a comparison; None at the ends."""

    previous: int | None
    next: int | None
    position: int | None = None
    """Its place in the list, from 1; None where no list was chosen."""
    total: int | None = None


def neighbours_in(listed: Sequence[int], comparison: Comparison) -> Neighbours | None:
    """Return the neighbours in a list of comparisons; None where it is not in it any more."""
    if comparison.pk not in listed:
        return None
    place = listed.index(comparison.pk)
    return Neighbours(
        previous=listed[place - 1] if place else None,
        next=listed[place + 1] if place + 1 < len(listed) else None,
        position=place + 1,
        total=len(listed),
    )


def neighbours_by_age(comparison: Comparison) -> Neighbours:
    """Return the neighbours among all comparisons of the project, newest first. Two queries."""
    others = Comparison.objects.filter(project=comparison.project_id).exclude(purpose=Purpose.DELETED)
    newer = others.filter(pk__gt=comparison.pk).order_by("pk")
    older = others.filter(pk__lt=comparison.pk).order_by("-pk")
    return Neighbours(
        previous=newer.values_list("pk", flat=True).first(), next=older.values_list("pk", flat=True).first()
    )


def name_of(review: Review, completion_id: int) -> str:
    """The name of a completion on one review's page: it tells nothing and holds nowhere else.

    The same as on a labelling screen: see `selectors.reviews.page_of_review`.
    """
    mac = salted_hmac("annotation.candidate", f"{-review.pk}:{completion_id}", algorithm="sha256")
    return mac.hexdigest()[:20]


def completion_ids_by_name(review: Review) -> dict[str, int]:
    """Name → completion id, in the order in which this review shows them: by chance, and for good."""
    ids = review.comparison.completions.values_list("pk", flat=True)
    return dict(sorted((name_of(review, pk), pk) for pk in ids))


# ── Judgments ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """A span, missing information, rating, critique or correction, of one response or of all."""

    about: str
    """The letter of the response, as the annotator saw it; empty for the whole comparison."""
    kind: str
    text: str = ""
    quote: str = ""
    category: str = ""
    """The key of the category, for its colour."""
    severity: int | None = None
    pieces: Sequence[DiffPiece] = ()
    """Of a correction: the difference from the response."""


class ShownJudgment:
    """A judgment as the page of its comparison shows it."""

    def __init__(self, judgment: Judgment, numbers: Mapping[int, int], name: str) -> None:
        self.judgment = judgment
        self.numbers = numbers
        self.name = name
        shown = judgment.assignment.display_order
        # An imported judgment may lack the order in which its responses were shown.
        self.order: list[int] = shown if sorted(shown) == sorted(numbers) else list(numbers)
        self.letters = dict(zip(self.order, string.ascii_uppercase, strict=False))
        self.ranks = {row.completion_id: row.rank for row in judgment.ranks.all()}
        self.superseded = hasattr(judgment, "superseded_by")
        self.is_repeated = judgment.assignment.retest_of_id is not None
        self.pasted: PastedText | None = None
        """Sums of pastes while it was written, for managers, where the project records them."""

    @property
    def preference(self) -> str:
        """`B > A = C` in the letters that its annotator saw; see `preference_in`."""
        return self.preference_in(self.letters)

    def preference_in(self, names: Mapping[int, str]) -> str:
        """Return the order of completions in these names, with what it leaves without an order last, or the
        label of a verdict without one."""
        if self.judgment.verdict != Verdict.RANKED:
            return str(self.judgment.get_verdict_display())
        order = in_order([(rank, names[pk]) for pk, rank in self.ranks.items()])
        return with_rest(order, [names[pk] for pk in unordered_among(self.ranks, names)])

    @property
    def unordered(self) -> list[int]:
        """The completions that a partial ranking leaves without an order, in displayed order."""
        return unordered_among(self.ranks, self.order)

    @property
    def letters_in_words(self) -> str:
        """The number of the response behind each letter."""
        return ", ".join(
            _("%(letter)s is response %(number)s") % {"letter": letter, "number": self.numbers[pk]}
            for pk, letter in self.letters.items()
        )

    @property
    def opened_at(self) -> datetime | None:
        """When its annotator got the comparison; None for a revision and for an imported judgment."""
        if self.judgment.supersedes_id is not None or self.judgment.imported_from is not None:
            return None
        return self.judgment.assignment.leased_at

    @property
    def remarks(self) -> list[Remark]:
        """Everything beside the order."""
        judgment = self.judgment
        return [
            *self._spans(),
            *self._missing(),
            *(
                Remark(about=self.letters[row.completion_id], kind=str(row.criterion), text=in_words(row))
                for row in judgment.ratings.all()
            ),
            *(
                Remark(
                    about=self.letters[row.completion_id], kind=str(row.criterion), text=score_in_words(row)
                )
                for row in judgment.rubric_scores.all()
            ),
            *(
                Remark(about=self.letters[row.completion_id], kind=_("Critique"), text=row.text)
                for row in judgment.critiques.all()
            ),
            *self._answers(),
            *(
                Remark(
                    about=self.letters[row.completion_id],
                    kind=_("Correction"),
                    text="" if row.text else _("(nothing should stand)"),
                    pieces=pieces(row.completion.text, row.text) if row.text else (),
                )
                for row in judgment.corrections.all()
            ),
            *self._of_the_whole(),
        ]

    def remarks_about(self, completion_id: int) -> list[Remark]:
        """Return what is written of one response, its spans aside: they stand in its text."""
        letter = self.letters[completion_id]
        spans = len(self.judgment.span_flags.all())
        return [remark for remark in self.remarks[spans:] if remark.about == letter]

    def _spans(self) -> list[Remark]:
        return [
            Remark(
                about=self.letters[span.completion_id],
                kind=span.category.signed_label,
                text=" · ".join(filter(None, [span.note, *self._relations(span)])),
                quote=span.quote,
                category=span.category.key,
                severity=span.severity,
            )
            for span in self.judgment.span_flags.all()
        ]

    def _relations(self, span: SpanFlag) -> list[str]:
        """Return in words what a span is to others."""
        quotes = {
            (other.completion_id, other.category.key, other.start, other.end): other.quote
            for other in self.judgment.span_flags.all()
            if span.relations
        }
        return [
            _("%(relation)s “%(quote)s”")
            % {
                "relation": SpanRelation(link["kind"]).label,
                "quote": quotes[link["completion"], link["category"], link["start"], link["end"]],
            }
            for link in span.relations or ()
        ]

    def _missing(self) -> list[Remark]:
        return [
            Remark(
                about=self.letters[row.completion_id],
                kind=str(row.category),
                text=row.text,
                quote=row.quote,
                category=row.category.key,
            )
            for row in self.judgment.missing_info.all()
        ]

    def _answers(self) -> list[Remark]:
        return [
            Remark(
                about="" if row.completion_id is None else self.letters[row.completion_id],
                kind=row.version.text
                if row.step is None
                else _("step %(number)s: %(question)s")
                % {"number": row.step.index + 1, "question": row.version.text},
                text=answer_in_words(row),
                quote=row.span.quote if row.span else "",
            )
            for row in self.judgment.answers.all()
        ]

    def _of_the_whole(self) -> list[Remark]:
        written = getattr(self.judgment, "demonstration", None)
        remarks = [Remark(about="", kind=_("Demonstration"), text=written.text)] if written else []
        if self.judgment.comment:
            remarks.append(Remark(about="", kind=_("Comment"), text=self.judgment.comment))
        return remarks


def in_words(rating: Rating) -> str:
    """Return the value of a rating with the end of its scale."""
    if rating.criterion.scale == RatingScale.THUMBS:
        return _("thumb up") if rating.value else _("thumb down")
    most = SCALE_VALUES[RatingScale(rating.criterion.scale)][-1]
    return _("%(value)s of %(most)s") % {"value": rating.value, "most": most}


def answer_in_words(answer: QuestionAnswer) -> str:
    """Return an answer to an additional question, choices by their labels as they were answered."""
    labels = {choice["key"]: choice["label"] for choice in answer.version.choices}
    values = answer.value if isinstance(answer.value, list) else [answer.value]
    words = ", ".join(labels.get(str(value)) or str(value) for value in values)
    return f"{words} {answer.version.unit}".strip()


def score_in_words(score: RubricScore) -> str:
    """Return an AI annotator's score with the end of its scale, and its reason."""
    most = SCALE_VALUES[RatingScale(score.criterion.scale)][-1]
    words = _("%(value)s of %(most)s") % {"value": f"{score.value:g}", "most": most}
    return f"{words}: {score.reason}" if score.reason else words


def judgments_of(comparison: Comparison) -> QuerySet[Judgment]:
    """Return every judgment of a comparison, superseded ones included, with all that belongs to it."""
    ranks = RankedCompletion.objects.order_by("rank", "id")
    answers = QuestionAnswer.objects.select_related("version", "step", "span")
    return (
        Judgment.objects.filter(comparison=comparison)
        .select_related(
            *("annotator", "assignment", "guideline", "rubric__rubric", "superseded_by", "demonstration")
        )
        .prefetch_related(
            Prefetch("ranks", queryset=ranks),
            "span_flags__category__parent",
            "missing_info__category",
            "ratings__criterion",
            "rubric_scores__criterion",
            "critiques",
            "corrections__completion",
        )
        .prefetch_related(Prefetch("answers", queryset=answers))
        .order_by("id")
    )


# ── Traces ──────────────────────────────────────────────────────────────────────────────


_LABELS = list(StepLabel.values)


class Traces:
    """The traces among a comparison's completions; no query where none is one."""

    def __init__(self, comparison: Comparison, completions: Sequence[Completion]) -> None:
        self._comparison = comparison
        self._steps = steps_by_completion(completions)
        self._completions = completions

    @cached_property
    def _labels(self) -> dict[int, dict[int, str]]:
        """Labels by judgment and step."""
        labels: dict[int, dict[int, str]] = defaultdict(dict)
        if self._steps:
            rows = LabelledStep.objects.filter(judgment__comparison=self._comparison)
            for judgment, step, label in rows.values_list("judgment_id", "step_id", "label"):
                labels[judgment][step] = label
        return labels

    def of(
        self, completion: Completion, judgments: Sequence[ShownJudgment], *, is_named: bool = True
    ) -> list[ShownStep]:
        """Return the steps of a completion with the labels of these judgments; none of a plain response."""
        steps = self._steps.get(completion.pk, [])
        # Beside the same trace as another annotator saw it.
        judged = [str(judgments[0].judgment.pk)] if len(judgments) == 1 else []
        return shown_steps(
            completion,
            steps,
            column="-".join([step_token(self._comparison.pk, completion.pk), *judged]),
            address=step_address(self._comparison, completion.pk) if steps else "",
            labels={step.index: self._step_labels(step, judgments, is_named=is_named) for step in steps},
        )

    def rows(self, judgments: Sequence[ShownJudgment]) -> list[Row]:
        """Return two traces in rows; none where there are not two."""
        if len(self._completions) != 2 or len(self._steps) != 2:
            return []
        return rows_of([self.of(completion, judgments) for completion in self._completions])

    def _step_labels(
        self, step: TraceStep, judgments: Sequence[ShownJudgment], *, is_named: bool
    ) -> list[tuple[str, str, str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for shown in judgments:
            if label := self._labels.get(shown.judgment.pk, {}).get(step.pk):
                names[label].append(shown.name)
        return [
            (label, str(StepLabel(label).label), ", ".join(names[label]) if is_named else "")
            for label in sorted(names, key=_LABELS.index)
        ]


def step_address(comparison: Comparison, completion_id: int) -> str:
    """Return the address of the parts of a trace's first step, for who may open the comparison."""
    token = step_token(comparison.pk, completion_id)
    return reverse("comparison-step", args=[comparison.project.slug, comparison.pk, token, 0])


def step_token(comparison_id: int, completion_id: int) -> str:
    """The name of a completion in addresses of its comparison: it tells nothing of its place or its model."""
    return salted_hmac(
        "annotation.trace", f"{comparison_id}:{completion_id}", algorithm="sha256"
    ).hexdigest()[:20]


# ── Responses ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedSpan:
    """A span under its number in the text."""

    number: int
    span: SpanFlag
    annotator: str
    """Empty where the whole text is of one annotator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownResponse:
    """A response with spans in its text."""

    number: int
    is_truncated: bool
    markup: SafeString
    marks: Sequence[NumberedSpan]
    seen_as: Sequence[tuple[str, str]] = ()
    """The letters under which annotators saw it, each with their names."""
    letter: str = ""
    """The letter under which the annotator saw it; empty where it is shown with everybody's spans."""
    rank: int | None = None
    is_unordered: bool = False
    """True where a partial ranking leaves it below the ranked ones, without an order."""
    remarks: Sequence[Remark] = ()
    steps: Sequence[ShownStep] = ()
    """Of a trace, which is shown by them and not by its markup."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatorColumn:
    """The responses as one annotator saw them, in their order."""

    judgment: ShownJudgment
    responses: Sequence[ShownResponse]


def with_everybody(
    completion: Completion,
    number: int,
    judgments: Sequence[ShownJudgment],
    standing: Sequence[ShownJudgment],
    traces: Traces,
) -> ShownResponse:
    """Return a response with the spans of all standing judgments."""
    spans = [
        (span, shown.name)
        for shown in standing
        for span in shown.judgment.span_flags.all()
        if span.completion_id == completion.pk
    ]
    markup, marks = _marked(completion, spans)
    seen_as: dict[str, dict[str, None]] = {}
    for shown in judgments:
        seen_as.setdefault(shown.letters[completion.pk], {})[shown.name] = None
    return ShownResponse(
        number=number,
        is_truncated=completion.finish_reason == FinishReason.LENGTH,
        markup=markup,
        marks=marks,
        steps=traces.of(completion, standing),
        seen_as=[(letter, ", ".join(seen_as[letter])) for letter in sorted(seen_as)],
    )


def column_of(shown: ShownJudgment, completions: Sequence[Completion], traces: Traces) -> AnnotatorColumn:
    """Return the responses in the order in which the annotator of a judgment saw them."""
    by_pk = {completion.pk: completion for completion in completions}
    seen = [_as_seen(shown, by_pk[pk], traces) for pk in shown.order if pk in by_pk]
    return AnnotatorColumn(judgment=shown, responses=seen)


def _as_seen(shown: ShownJudgment, completion: Completion, traces: Traces) -> ShownResponse:
    spans = [(span, "") for span in shown.judgment.span_flags.all() if span.completion_id == completion.pk]
    markup, marks = _marked(completion, spans)
    return ShownResponse(
        number=shown.numbers[completion.pk],
        is_truncated=completion.finish_reason == FinishReason.LENGTH,
        markup=markup,
        marks=marks,
        letter=shown.letters[completion.pk],
        rank=shown.ranks.get(completion.pk) if decides_a_pair(shown.ranks, len(shown.order)) else None,
        is_unordered=completion.pk in shown.unordered,
        remarks=shown.remarks_about(completion.pk),
        steps=traces.of(completion, [shown], is_named=False),
    )


def _marked(
    completion: Completion, spans: Sequence[tuple[SpanFlag, str]]
) -> tuple[SafeString, list[NumberedSpan]]:
    """Return the text with the spans in it, and the spans under their numbers."""
    ordered = sorted(spans, key=lambda pair: (pair[0].start, pair[0].end))
    numbered = [
        NumberedSpan(number=number, span=span, annotator=annotator)
        for number, (span, annotator) in enumerate(ordered, start=1)
    ]
    drawn = [
        Mark(
            number=numbered_span.number,
            start=numbered_span.span.start,
            end=numbered_span.span.end,
            category=numbered_span.span.category.key,
        )
        for numbered_span in numbered
    ]
    # A trace is shown by its steps.
    markup = SafeString() if completion.step_count else with_marks(render_answer(completion.text), drawn)
    return markup, numbered


# ── Agreement ───────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonAgreement:
    """Percent agreement on one comparison: current first annotations of people, retests aside."""

    annotators: int
    share: float | None
    """Mean over pairs of responses of the share of pairs of annotators who agree; None for nothing shared."""
    pairs: int
    """Pairs of responses on which two annotators gave a preference."""
    winners: Mapping[int | None, int]
    """Of a comparison of two: completion → how many prefer it; None counts those who prefer neither."""


def agreement_on(comparison: Comparison) -> ComparisonAgreement | None:
    """Return the agreement on a comparison; None where it is no work, as for gold items. Two queries."""
    if comparison.purpose != Purpose.WORK:
        return None
    narrowed = Q(comparison=comparison)
    judged = judged_in(comparison.project, [comparison.round_number], narrowed=narrowed)
    item = by_comparison(judged).get(comparison.pk, [])
    units = pair_units(item)
    shared = [unit for unit in units if len(unit) > 1]
    winners: Counter[int | None] = Counter()
    if comparison.size == 2:
        for judgment in item:
            winners.update(
                left if outcome > 0 else right if outcome < 0 else None
                for left, right, outcome in judgment.outcomes()
            )
    return ComparisonAgreement(
        annotators=len({reading.annotator for reading in item}),
        share=_share(shared),
        pairs=len(shared),
        winners=winners,
    )


def in_a_sentence(agreement: ComparisonAgreement, numbers: Mapping[int, int]) -> str:
    """Return the agreement in words; `numbers` are those of the responses."""
    if agreement.annotators < 2:
        return ngettext(
            "%(count)s annotation: agreement needs two annotators.",
            "%(count)s annotations: agreement needs two annotators.",
            agreement.annotators,
        ) % {"count": agreement.annotators}
    if agreement.share is None:
        return _("No two annotators gave a preference on the same pair of responses.")
    percent = number_format(round(100 * agreement.share)) + "\N{NO-BREAK SPACE}%"
    text = ngettext(
        "%(people)s annotators agree %(percent)s on %(pairs)s pair of responses.",
        "%(people)s annotators agree %(percent)s on %(pairs)s pairs of responses.",
        agreement.pairs,
    ) % {"people": agreement.annotators, "percent": percent, "pairs": agreement.pairs}
    return " ".join([text, *_preferences(agreement, numbers)])


def _preferences(agreement: ComparisonAgreement, numbers: Mapping[int, int]) -> list[str]:
    sentences = [
        ngettext("%(count)s prefers response %(number)s.", "%(count)s prefer response %(number)s.", count)
        % {"count": count, "number": numbers[winner]}
        for winner, count in sorted(agreement.winners.items(), key=lambda pair: numbers.get(pair[0] or 0, 0))
        if winner is not None
    ]
    if neither := agreement.winners.get(None, 0):
        text = ngettext("%(count)s prefers neither.", "%(count)s prefer neither.", neither)
        sentences.append(text % {"count": neither})
    return sentences


def _share(shared: Units) -> float | None:
    if not shared:
        return None
    shares = []
    for unit in shared:
        people = len(unit)
        alike = sum(count * (count - 1) for count in Counter(unit.values()).values())
        shares.append(alike / (people * (people - 1)))
    return sum(shares) / len(shares)


# ── The page ────────────────────────────────────────────────────────────────────────────


TOGETHER, SIDE_BY_SIDE = "together", "side"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseView:
    """One way to look at the responses: an entry of the switch."""

    key: str
    label: str
    current: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgmentVersions:
    """Judgments of one annotator in one assignment: the current one and earlier versions of it."""

    key: str
    shown: ShownJudgment
    earlier: Sequence[ShownJudgment]
    """Superseded ones, newest first."""


class ComparisonPage:
    """One comparison: prompt, numbered responses, judgments, flags, skips, review and agreement."""

    def __init__(
        self, comparison: Comparison, *, view: str = "", review: Review | None = None, is_blind: bool = False
    ) -> None:
        self.comparison = comparison
        self.review = review
        self.is_blind = is_blind
        completions = [
            candidate.completion for candidate in comparison.candidates.select_related("completion__source")
        ]
        if is_blind and review is not None:
            order = list(completion_ids_by_name(review).values())
            completions.sort(key=lambda completion: order.index(completion.pk))
        self.completions = completions
        self.numbers = {completion.pk: number for number, completion in enumerate(completions, start=1)}
        self._view = view

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """Role and rendered content of every turn of the prompt."""
        return render_turns(self.comparison.prompt.messages)

    @cached_property
    def metadata(self) -> list[tuple[str, str]]:
        """Name and value of each column of the file it came in with that nothing else reads.

        A value that names the model of a response is not shown: a manager may label, too.
        """
        return self._shown({**(self.comparison.prompt.metadata or {}), **(self.comparison.metadata or {})})

    @cached_property
    def metadata_of_responses(self) -> list[tuple[int, list[tuple[str, str]]]]:
        """The number of each response that has metadata, with name and value; of a blind review nothing."""
        if self.is_blind:
            return []
        return [
            (self.numbers[completion.pk], self._shown(completion.metadata))
            for completion in self.completions
            if completion.metadata
        ]

    def _shown(self, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        models = {completion.source.name for completion in self.completions}
        return [
            (name, _("(names the model of a response)") if text in models else text)
            for name, value in values.items()
            for text in [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)]
        ]

    @cached_property
    def judgments(self) -> list[ShownJudgment]:
        """Every judgment, the superseded ones included, oldest first; in the blind in random order."""
        rows = list(judgments_of(self.comparison))
        if self.is_blind:
            rows.sort(key=lambda row: (_random_place(row.assignment_id), row.pk))
        names = self._names(rows)
        judgments = [ShownJudgment(row, self.numbers, names[row.assignment_id]) for row in rows]
        if not self.is_blind:
            pasted = pasted_by_assignment(self.comparison)
            for shown in judgments:
                shown.pasted = pasted.get(shown.judgment.assignment_id)
        return judgments

    @cached_property
    def threads(self) -> list[JudgmentVersions]:
        """The judgments by assignment."""
        by_assignment: dict[int, list[ShownJudgment]] = {}
        for shown in self.judgments:
            by_assignment.setdefault(shown.judgment.assignment_id, []).append(shown)
        keys: dict[str, int] = {}
        threads = []
        for number, versions in enumerate(by_assignment.values(), start=1):
            key = str(number) if self.is_blind else f"a{versions[0].judgment.annotator_id}"
            keys[key] = keys.get(key, 0) + 1
            current = next(
                (version for version in reversed(versions) if not version.superseded), versions[-1]
            )
            threads.append(
                JudgmentVersions(
                    key=key if keys[key] == 1 else f"{key}-{keys[key]}",
                    shown=current,
                    earlier=[version for version in reversed(versions) if version is not current],
                )
            )
        return threads

    @cached_property
    def view(self) -> str:
        """The chosen way to look at the responses; together for one that is not there."""
        keys = {thread.key for thread in self.threads}
        known = keys | ({SIDE_BY_SIDE} if len(keys) > 1 else set())
        return self._view if self._view in known else TOGETHER

    @property
    def views(self) -> list[ResponseView]:
        """The entries of the switch; none where nobody has judged."""
        entries = [(TOGETHER, _("Everybody"))]
        entries += [(thread.key, _with_repetition(thread.shown)) for thread in self.threads]
        if len(self.threads) > 1:
            entries.append((SIDE_BY_SIDE, _("Side by side")))
        return [
            ResponseView(key=key, label=label, current=key == self.view)
            for key, label in (entries if self.threads else ())
        ]

    @cached_property
    def traces(self) -> Traces:
        """The steps of those responses that are traces."""
        return Traces(self.comparison, self.completions)

    @cached_property
    def step_rows(self) -> list[Row]:
        """Two traces in rows with everybody's labels; none where there are not two."""
        return self.traces.rows([shown for shown in self.judgments if not shown.superseded])

    @property
    def response_numbers(self) -> list[int]:
        return list(self.numbers.values())

    @cached_property
    def responses(self) -> list[ShownResponse]:
        """Every response with the spans of all standing judgments."""
        standing = [shown for shown in self.judgments if not shown.superseded]
        return [
            with_everybody(completion, self.numbers[completion.pk], self.judgments, standing, self.traces)
            for completion in self.completions
        ]

    @cached_property
    def columns(self) -> list[AnnotatorColumn]:
        """The responses as the chosen annotator saw them, or each of them; none together."""
        return [
            column_of(thread.shown, self.completions, self.traces)
            for thread in self.threads
            if self.view in (thread.key, SIDE_BY_SIDE)
        ]

    @cached_property
    def agreement(self) -> str:
        """The agreement of its annotators in a sentence; empty for what is no work."""
        agreement = agreement_on(self.comparison)
        return "" if agreement is None else in_a_sentence(agreement, self.numbers)

    @cached_property
    def flags(self) -> list[ItemFlag]:
        """Return the annotators' flags."""
        flags = ItemFlag.objects.filter(assignment__comparison=self.comparison)
        return list(flags.select_related("assignment__annotator"))

    @cached_property
    def skipped(self) -> list[Assignment]:
        """Return the assignments that were skipped, with their reasons."""
        skipped = self.comparison.assignments.exclude(reason="")
        return list(skipped.select_related("annotator").order_by("pk"))

    @property
    def known(self) -> str:
        """The known answer of a gold item, in the numbers of the page; empty for others."""
        gold = getattr(self.comparison, "gold_answer", None)
        if gold is None:
            return ""
        if gold.verdict != Verdict.RANKED:
            return str(gold.get_verdict_display())
        return self._in_numbers(known_ranks(gold))

    @property
    def decision(self) -> str:
        """The decision of the review, in the numbers of the page; empty while it is open."""
        if self.review is None or self.review.decided_at is None:
            return ""
        if self.review.verdict != Verdict.RANKED:
            return str(self.review.get_verdict_display())
        return self._in_numbers({int(pk): rank for pk, rank in self.review.ranks.items()})

    def _in_numbers(self, ranks: dict[int, int]) -> str:
        order = in_order([(rank, str(self.numbers[pk])) for pk, rank in ranks.items() if pk in self.numbers])
        return with_rest(order, [str(self.numbers[pk]) for pk in unordered_among(ranks, self.numbers)])

    def _names(self, rows: Sequence[Judgment]) -> dict[int, str]:
        """Return assignment → the name of its annotator, or a number in the blind."""
        if not self.is_blind:
            return {row.assignment_id: str(row.annotator) for row in rows}
        order = list(dict.fromkeys(row.annotator_id for row in rows))
        return {
            row.assignment_id: _("Annotator %(number)s") % {"number": order.index(row.annotator_id) + 1}
            for row in rows
        }


def _with_repetition(shown: ShownJudgment) -> str:
    return _("%(name)s, retest") % {"name": shown.name} if shown.is_repeated else shown.name


def _random_place(assignment_id: int) -> str:
    return salted_hmac("annotation.comparison.judgment", str(assignment_id), algorithm="sha256").hexdigest()
