"""A labelling page, read into the answer that the service takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import STRENGTHS, Verdict
from annotation.errors import Refusal
from annotation.forms.entered import Entered, MissingRow, rating_field, step_of_field
from annotation.forms.rewrites import corrected, rewrites_sent
from annotation.models import Assignment, Completion
from annotation.record.judgment import (
    MOST_SECONDS,
    CorrectionPart,
    CritiquePart,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    RatingPart,
    SpanPart,
    StepLabelPart,
)
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments.display_order import tokens_of
from annotation.services.judgments.incomplete import Incomplete

_STALE = gettext_lazy("This page no longer fits what is stored. Reload it; what you entered is listed below.")
# Where a service's refusal is shown on the page.
_SHOWN_AT = {
    "verdict": "choice",
    "ranks": "choice",
    "strength": "choice",
    **{
        name: name
        for name in (
            *("span_flags", "missing_info", "step_labels", "ratings", "corrections"),
            *("critiques", "demonstration", "comment", "suggestions"),
        )
    },
}


class JudgmentForm(forms.Form):
    """Reads a labelling page; `answer` is what the service takes."""

    idempotency_key = forms.UUIDField()
    guideline = forms.IntegerField(required=False, min_value=1)
    active_seconds = forms.IntegerField(required=False, min_value=0, max_value=MOST_SECONDS)
    comment = forms.CharField(required=False, max_length=20_000)
    choice = forms.CharField(required=False)
    span_flags = forms.JSONField(required=False)
    missing_info = forms.CharField(required=False)
    step_labels = forms.CharField(required=False)
    ratings = forms.CharField(required=False)
    corrections = forms.CharField(required=False)
    critiques = forms.CharField(required=False)
    demonstration = forms.CharField(required=False, strip=False)
    suggestions = forms.CharField(required=False)

    def __init__(self, entered: Entered, data: QueryDict, *, assignment: Assignment) -> None:
        super().__init__(data)
        self.entered = entered
        self._project = assignment.comparison.project
        configured = configuration_of(self._project)
        self._completions = {token: str(pk) for token, pk in tokens_of(assignment).items()}
        self._categories = {category.key for category in configured.categories}
        self._criteria = configured.asked_criteria
        self._letters = dict(zip(self._completions, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))

    @property
    def answer(self) -> JudgmentRecord:
        """Return the judgment that the page describes. Only after `is_valid()`."""
        verdict, ranks, strength = self.cleaned_data["choice"]
        return JudgmentRecord(
            verdict=verdict,
            ranks=ranks,
            strength=strength,
            comment=_plain(self.cleaned_data["comment"]),
            spans=self.cleaned_data["span_flags"],
            missing=self.cleaned_data["missing_info"],
            step_labels=self.cleaned_data["step_labels"],
            ratings=self.cleaned_data["ratings"],
            corrections=self.cleaned_data["corrections"],
            critiques=self.cleaned_data["critiques"],
            demonstration=self.cleaned_data["demonstration"],
            active_seconds=self.cleaned_data["active_seconds"],
        )

    def add_refusal(self, refusal: Refusal) -> None:
        """Show what a service refused, at the part of the page that it is about."""
        self.add_error(_SHOWN_AT.get(refusal.field or ""), refusal.message)

    def clean_choice(self) -> tuple[str, dict[str, int], int | None]:
        """Verdict, ranks by completion id, strength."""
        choice: str = self.cleaned_data["choice"]
        ranks = {token: rank for token, rank in self.entered.ranks.items() if rank}
        if not self._project.ask_verdict and choice in ("", Verdict.NOT_ASKED, Verdict.CANNOT_JUDGE):
            return self._without_verdict(choice), {}, None
        if choice.startswith("win:"):
            return self._winner(choice)
        if choice not in ("", *Verdict.values):
            raise ValidationError(_STALE)
        if choice not in ("", Verdict.RANKED):
            if ranks:
                raise ValidationError(
                    _("You ranked responses and chose a no-preference option. Remove one of the two.")
                )
            return choice, {}, None
        return self._ranking(choice, ranks)

    def clean_span_flags(self) -> tuple[SpanPart, ...]:
        """The marks, as the script wrote them."""
        spans = self.cleaned_data["span_flags"] or []
        try:
            return tuple(self._span(span) for span in spans)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValidationError(_STALE) from error

    def clean_missing_info(self) -> tuple[MissingPart, ...]:
        """The rows in which something was said."""
        try:
            return tuple(self._missing(row) for row in self.entered.missing)
        except (KeyError, ValueError) as error:
            raise ValidationError(_STALE) from error

    def clean_step_labels(self) -> tuple[StepLabelPart, ...]:
        """The steps that got a label."""
        try:
            steps = [(*step_of_field(name), label) for name, label in self.entered.step_labels.items()]
            return tuple(
                StepLabelPart(completion=self._completions[token], step=step, label=label)
                for token, step, label in steps
            )
        except (KeyError, ValueError) as error:
            raise ValidationError(_STALE) from error

    def clean_ratings(self) -> tuple[RatingPart, ...]:
        """Every answer by every criterion, or nothing; else who is left out."""
        ratings = []
        left_out = []
        for criterion in self._criteria:
            lacking = []
            for token, completion_id in self._completions.items():
                value = self.entered.ratings.get(rating_field(token, criterion.key), "")
                if not value:
                    lacking.append(self._letters[token])
                elif value.isascii() and value.isdigit():
                    ratings.append(
                        RatingPart(
                            completion=completion_id,
                            criterion=criterion.key,
                            scale=criterion.scale,
                            value=int(value),
                        )
                    )
                else:
                    raise ValidationError(_STALE)
            if lacking:
                left_out.append(f"{criterion.label} ({_listed(lacking)})")
        if ratings and left_out:
            raise ValidationError(_("Still to be rated: %(parts)s.") % {"parts": "; ".join(left_out)})
        return tuple(ratings)

    def clean_corrections(self) -> tuple[CorrectionPart, ...]:
        """The answers whose text was changed; what the browser alone changed is undone."""
        if not self._project.ask_correction or not self.entered.corrections:
            return ()
        found = Completion.objects.in_bulk(list(map(int, self._completions.values())))
        texts = {str(pk): completion for pk, completion in found.items()}
        try:
            rewrites = rewrites_sent(self.entered.rewrites)
            corrections = {
                self._completions[token]: corrected(
                    texts[self._completions[token]].text, sent, rewrites.get(token, ()), self._categories
                )
                for token, sent in self.entered.corrections.items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValidationError(_STALE) from error
        return tuple(
            CorrectionPart(completion=pk, text=text, edits=edits)
            for pk, (text, edits) in corrections.items()
            if text != texts[pk].text
        )

    def clean_critiques(self) -> tuple[CritiquePart, ...]:
        """Return the critiques of single completions."""
        return tuple(
            CritiquePart(completion=self._completions[token], text=_plain(text).strip())
            for token, text in self.entered.critiques.items()
            if text.strip()
        )

    def clean_demonstration(self) -> str:
        """The annotator's own answer; blank is none."""
        text = _plain(self.cleaned_data["demonstration"])
        return text if text.strip() else ""

    def _without_verdict(self, choice: str) -> str:
        # Where nothing else has to be filled in, one says that one has looked: nothing is sent untouched.
        if not choice and not self._criteria and not self._project.ask_demonstration:
            raise ValidationError(str(Incomplete.SEEN))
        return choice or Verdict.NOT_ASKED

    def _winner(self, choice: str) -> tuple[str, dict[str, int], int | None]:
        _win, token, *strength = choice.split(":")
        if token not in self._completions or len(self._completions) != 2:
            raise ValidationError(_STALE)
        if self._project.ask_strength != bool(strength) or (
            strength and strength[0] not in map(str, STRENGTHS)
        ):
            raise ValidationError(_("Choose how much better it is, in four steps."))
        ranks = {pk: 1 if name == token else 2 for name, pk in self._completions.items()}
        return Verdict.RANKED, ranks, int(strength[0]) if strength else None

    def _ranking(self, choice: str, ranks: Mapping[str, str]) -> tuple[str, dict[str, int], None]:
        if len(self._completions) == 1 and choice:
            return Verdict.RANKED, dict.fromkeys(self._completions.values(), 1), None
        if len(self._completions) == 2 and not ranks:
            raise ValidationError(str(Incomplete.PAIR))
        if not choice and not ranks:
            raise ValidationError(str(Incomplete.RANKING))
        unranked = [self._letters[token] for token in self._completions if token not in ranks]
        may_leave_rest = bool(ranks) and len(self._completions) > 2
        if unranked and not (may_leave_rest and self.entered.partial):
            raise ValidationError(_unranked_too(unranked))
        if not all(rank.isascii() and rank.isdigit() for rank in ranks.values()):
            raise ValidationError(_("Ranks are whole numbers from 1, the best."))
        return Verdict.RANKED, {self._completions[token]: int(rank) for token, rank in ranks.items()}, None

    def _span(self, span: Mapping[str, Any]) -> SpanPart:
        return SpanPart(
            completion=self._completions[span["candidate"]],
            category=self._category(span["category"]),
            start=span["start"],
            end=span["end"],
            quote=str(span["quote"]),
            text_hash=str(span["text_hash"]),
            severity=span.get("severity"),
            note=_plain(str(span.get("note") or "")).strip(),
        )

    def _missing(self, row: MissingRow) -> MissingPart:
        pointers = [_pointer(text) for text in (row.evidence, *row.further.split()) if text]
        return MissingPart(
            completion=self._completions[row.candidate],
            category=self._category(row.category),
            text=_plain(row.text).strip(),
            insert_at=int(row.insert_at) if row.insert_at else None,
            evidence=tuple(pointers),
        )

    def _category(self, key: str) -> str:
        if key not in self._categories:
            raise KeyError(key)
        return key


def _unranked_too(letters: Sequence[str]) -> str:
    # One that is left is the last: there is nothing to leave unordered.
    asked = (
        _("Rank %(letters)s too.") if len(letters) == 1 else _("Rank %(letters)s, or leave them unordered.")
    )
    return asked % {"letters": _listed(letters)}


def _pointer(text: str) -> EvidencePointer:
    passage, _colon, sentence = text.partition(":")
    return EvidencePointer(passage=int(passage), sentence=int(sentence) if sentence else None)


def _plain(text: str) -> str:
    """A field's text with line feeds alone: browsers send CRLF."""
    return text.replace("\r\n", "\n")


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return _("%(first)s and %(second)s") % {"first": ", ".join(names[:-1]), "second": names[-1]}
