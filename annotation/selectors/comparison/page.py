"""One comparison with everything that its page shows.

Responses have numbers, in the order in which they were recorded: each annotator saw them in an order of their
own. Before a reviewer's decision nothing names an annotator or tells who came first, and the numbers follow
the review's own order.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from django.utils.crypto import salted_hmac
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.agreement.records import unordered_among
from annotation.choices import Verdict
from annotation.models import Assignment, Comparison, ItemFlag, Judgment, Review
from annotation.selectors.comparison.agreement import agreement_on, in_a_sentence
from annotation.selectors.comparison.judgments import ShownJudgment, judgments_of
from annotation.selectors.comparison.responses import Column, ShownResponse, column_of, with_everybody
from annotation.selectors.comparison.traces import Traces
from annotation.selectors.known_answers import known_ranks
from annotation.selectors.reviews import completion_ids_by_name
from annotation.selectors.traces import Row
from annotation.text.orders import in_order, with_rest
from annotation.text.rendering import render_markdown

TOGETHER, SIDE_BY_SIDE = "together", "side"


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One way to look at the responses: an entry of the switch."""

    key: str
    label: str
    current: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
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
        return [
            (message["role"], render_markdown(message["content"]))
            for message in self.comparison.prompt.messages
        ]

    @cached_property
    def metadata(self) -> list[tuple[str, str]]:
        """Name and value of each column of the file it came in with that nothing else reads.

        A value that names the model of a response is not shown: a manager may label, too.
        """
        values = {**(self.comparison.prompt.metadata or {}), **(self.comparison.metadata or {})}
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
        return [ShownJudgment(row, self.numbers, names[row.assignment_id]) for row in rows]

    @cached_property
    def threads(self) -> list[Thread]:
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
                Thread(
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
    def views(self) -> list[View]:
        """The entries of the switch; none where nobody has judged."""
        entries = [(TOGETHER, _("Everybody"))]
        entries += [(thread.key, _with_repetition(thread.shown)) for thread in self.threads]
        if len(self.threads) > 1:
            entries.append((SIDE_BY_SIDE, _("Side by side")))
        return [
            View(key=key, label=label, current=key == self.view)
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
        """The numbers of the responses."""
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
    def columns(self) -> list[Column]:
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
