"""One comparison with all its annotations, for a manager's page.

Responses have numbers, in the order in which they were recorded: each annotator saw them in an order of their
own. An annotation is shown in the letters that its annotator saw, because its comment uses them.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from django.db.models import Prefetch, QuerySet
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.choices import FinishReason, Verdict
from annotation.marked import Mark, with_marks
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    ItemFlag,
    Judgment,
    RankedCompletion,
    SpanFlag,
)
from annotation.rendering import render_answer, render_markdown


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """One mark, omission, rating, critique or correction, about one answer or about all."""

    about: str
    """The letter of the response, as the annotator saw it."""
    kind: str
    quote: str
    text: str
    category: str = ""
    """The key of the category, for its colour."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One completion, with all that is marked in it now."""

    number: int
    seen_as: list[tuple[str, str]]
    """The letters under which annotators saw it, each with their names."""
    is_truncated: bool
    markup: SafeString
    marks: list[tuple[int, SpanFlag]]
    """Each under its number in the text."""


class Said:
    """One judgment as a manager reads it, in the letters that its annotator saw."""

    def __init__(self, judgment: Judgment, numbers: dict[int, int]) -> None:
        self.judgment = judgment
        shown = judgment.assignment.display_order
        # An imported judgment may lack the order in which its responses were shown.
        order = shown if sorted(shown) == sorted(numbers) else list(numbers)
        self.letters = dict(zip(order, string.ascii_uppercase, strict=False))
        self.numbers = numbers
        self.superseded = hasattr(judgment, "superseded_by")

    @property
    def verdict(self) -> str:
        """`B > A = C`, or what was said in place of an order."""
        if self.judgment.verdict != Verdict.RANKED:
            return str(self.judgment.get_verdict_display())
        return order_in_letters(
            [(row.rank, self.letters[row.completion_id]) for row in self.judgment.ranks.all()]
        )

    @property
    def shown(self) -> str:
        """The number of the response behind each letter."""
        pairs = ((letter, self.numbers[pk]) for pk, letter in self.letters.items())
        return ", ".join(
            _("%(letter)s is response %(number)s") % {"letter": letter, "number": number}
            for letter, number in pairs
        )

    @property
    def remarks(self) -> list[Remark]:
        """Everything beside the order."""
        said = self.judgment
        found = [
            self._remark(mark.completion_id, str(mark.category), mark.note, mark.quote, mark.category.key)
            for mark in said.span_flags.all()
        ]
        found += [
            self._remark(row.completion_id, str(row.category), row.text, row.quote, row.category.key)
            for row in said.missing_info.all()
        ]
        found += [
            self._remark(row.completion_id, str(row.criterion), str(row.value)) for row in said.ratings.all()
        ]
        found += [self._remark(row.completion_id, _("Critique"), row.text) for row in said.critiques.all()]
        found += [
            self._remark(row.completion_id, _("Correction"), row.text or _("(nothing should stand)"))
            for row in said.corrections.all()
        ]
        if hasattr(said, "demonstration"):
            found.append(self._remark(None, _("Demonstration"), said.demonstration.text))
        if said.comment:
            found.append(self._remark(None, _("Comment"), said.comment))
        return found

    def _remark(
        self, completion: int | None, kind: str, text: str, quote: str = "", category: str = ""
    ) -> Remark:
        about = "" if completion is None else self.letters[completion]
        return Remark(about=about, kind=kind, text=text, quote=quote, category=category)


def order_in_letters(places: Sequence[tuple[int, str]]) -> str:
    """`[(1, "B"), (2, "A"), (2, "C")]` → `B > A = C`."""
    ordered = sorted(places)
    text = ordered[0][1] if ordered else ""
    for (before, _letter), (rank, letter) in pairwise(ordered):
        text += f" {'=' if rank == before else '>'} {letter}"
    return text


class ItemPage:
    """One comparison: prompt, responses numbered in the order in which they were recorded, judgments."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.completions = [
            candidate.completion for candidate in comparison.candidates.select_related("completion")
        ]
        self.numbers = {completion.pk: number for number, completion in enumerate(self.completions, start=1)}

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """Role and rendered content of every turn of the prompt."""
        return [
            (message["role"], render_markdown(message["content"]))
            for message in self.comparison.prompt.messages
        ]

    @cached_property
    def answers(self) -> list[Answer]:
        """Every completion with what stands marked in it; marks of superseded judgments do not."""
        return [self._answer(one) for one in self.completions]

    def _answer(self, completion: Completion) -> Answer:
        found = [
            flag
            for said in self.said
            if not said.superseded
            for flag in said.judgment.span_flags.all()
            if flag.completion_id == completion.pk
        ]
        marks = list(enumerate(sorted(found, key=lambda flag: (flag.start, flag.end)), start=1))
        drawn = [
            Mark(number=number, start=flag.start, end=flag.end, category=flag.category.key)
            for number, flag in marks
        ]
        markup = with_marks(render_answer(completion.text), drawn)
        return Answer(
            number=self.numbers[completion.pk],
            seen_as=self._seen_as(completion.pk),
            is_truncated=completion.finish_reason == FinishReason.LENGTH,
            markup=markup,
            marks=marks,
        )

    def _seen_as(self, completion_id: int) -> list[tuple[str, str]]:
        names: dict[str, dict[str, None]] = {}
        for said in self.said:
            names.setdefault(said.letters[completion_id], {})[str(said.judgment.annotator)] = None
        return [(letter, ", ".join(names[letter])) for letter in sorted(names)]

    @cached_property
    def said(self) -> list[Said]:
        """Every judgment, the superseded ones included, oldest first."""
        return [Said(judgment, self.numbers) for judgment in _judgments_of(self.comparison)]

    @cached_property
    def flags(self) -> list[ItemFlag]:
        """What annotators reported about it."""
        found = ItemFlag.objects.filter(assignment__comparison=self.comparison)
        return list(found.select_related("assignment__annotator"))

    @cached_property
    def skipped(self) -> list[Assignment]:
        """Who gave it back, and why."""
        found = self.comparison.assignments.exclude(reason="")
        return list(found.select_related("annotator").order_by("pk"))

    @property
    def known(self) -> str:
        """The known answer of a gold item, in the numbers of the page; empty for others."""
        gold = getattr(self.comparison, "gold_answer", None)
        if gold is None:
            return ""
        if gold.verdict != Verdict.RANKED:
            return str(gold.get_verdict_display())
        return order_in_letters([(rank, str(self.numbers[int(pk)])) for pk, rank in gold.ranks.items()])


def _judgments_of(comparison: Comparison) -> QuerySet[Judgment]:
    ranks = RankedCompletion.objects.order_by("rank", "id")
    return (
        Judgment.objects.filter(comparison=comparison)
        .select_related("annotator", "assignment", "guideline", "superseded_by", "demonstration")
        .prefetch_related(
            Prefetch("ranks", queryset=ranks),
            "span_flags__category",
            "missing_info__category",
            "ratings__criterion",
            "critiques",
            "corrections",
        )
        .order_by("id")
    )
