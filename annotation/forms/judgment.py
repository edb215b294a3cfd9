"""A labelling page, read into the judgment that the service takes.

A page knows candidates by token, categories and criteria by key. `Entered` is what stands in the
form's fields, right or wrong, so that a refused form comes back as it was sent.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.db.models import BigIntegerField
from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import STRENGTHS, Verdict
from annotation.errors import Refusal
from annotation.models import Assignment, Completion, Draft, Judgment
from annotation.record.judgment import (
    MOST_SECONDS,
    AnswerPart,
    CorrectionPart,
    CritiquePart,
    Edit,
    EvidencePointer,
    JudgmentRecord,
    MissingPart,
    Origin,
    RatingPart,
    SpanLink,
    SpanPart,
    StepLabelPart,
    Target,
    named_place,
)
from annotation.record.questions import Question, value_from_text
from annotation.selectors.configuration import configuration_of
from annotation.selectors.records import records_of
from annotation.services.assignments.display_order import candidate_token, tokens_of
from annotation.services.judgments.checks import Incomplete
from annotation.services.suggestions import DecisionInput
from annotation.text.edits import applied, is_faithful, retyped, usual_line_break, with_own_line_breaks

# Rewrites as the script of the labelling page writes them, and as the page gives them back.


def rewrite_shown(edit: Edit) -> dict[str, Any]:
    """Return a stored edit as the page holds it."""
    span = edit.origin.span
    return {
        "start": edit.start,
        "end": edit.end,
        "text": edit.replacement,
        "continuation": edit.origin.continuation,
        "span": span and named_place(span),
    }


def rewrites_sent(sent: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Read the page's field. Raises `ValueError` for anything that is not of its form."""
    rewrites = json.loads(sent)
    if not isinstance(rewrites, dict) or not all(isinstance(edits, list) for edits in rewrites.values()):
        raise ValueError("rewrites are lists of edits by response")
    return rewrites


def corrected(
    original: str,
    sent: str,
    rewrites: Sequence[Mapping[str, Any]],
    categories: Collection[str],
) -> tuple[str, tuple[Edit, ...]]:
    """Return the corrected text and its edits: rewrites first, then what was typed into the text field.

    Raises `ValueError`, `KeyError` or `TypeError` for rewrites that are not those of this original.
    """
    changes = [_edit(original, rewrite, categories) for rewrite in rewrites]
    if not changes:
        return with_own_line_breaks(original, sent), ()
    if not is_faithful(original, changes):
        raise ValueError("the rewrites are of another text")
    rewritten = applied(original, changes)
    text = with_own_line_breaks(rewritten, sent)
    return text, tuple(changes) if text == rewritten else retyped(original, changes, text)


def _edit(original: str, rewrite: Mapping[str, Any], categories: Collection[str]) -> Edit:
    start, end = int(rewrite["start"]), int(rewrite["end"])
    continuation, span = rewrite.get("continuation"), rewrite.get("span")
    if continuation is not None and not 0 < int(continuation) <= BigIntegerField.MAX_BIGINT:
        raise ValueError("a continuation has another number")
    text = str(rewrite["text"])
    if continuation is None:
        # A text field knows line feeds alone.
        text = text.replace("\r\n", "\n").replace("\n", usual_line_break(original))
    return Edit(
        start=start,
        end=end,
        quote=original[start:end],
        replacement=text,
        origin=Origin(
            continuation=None if continuation is None else int(continuation),
            span=span and _rewrite_span(span, categories),
        ),
    )


def _rewrite_span(span: Mapping[str, Any], categories: Collection[str]) -> tuple[str, int, int]:
    if span["category"] not in categories:
        raise KeyError(span["category"])
    return str(span["category"]), int(span["start"]), int(span["end"])


# Contents of the fields of a labelling page, as they were typed.

_ROW = {
    "candidate": "missing-candidate",
    "category": "missing-category",
    "text": "missing-text",
    "evidence": "missing-evidence",
    "further": "missing-further",
    "insert_at": "missing-insert",
}


_STEP = "step-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRow:
    """One row of the missing-info part.

    Evidence is "passage:sentence", counted from 0; "passage:" is the passage's title. `further` holds
    more of the same, apart by spaces.
    """

    candidate: str
    category: str = ""
    text: str = ""
    evidence: str = ""
    further: str = ""
    insert_at: str = ""

    @property
    def is_empty(self) -> bool:
        """Return True where nothing was entered."""
        return not (self.text.strip() or self.evidence or self.further or self.insert_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """Contents of the fields of a labelling page."""

    choice: str = ""
    ranks: Mapping[str, str] = field(default_factory=dict)
    partial: str = ""
    """Not empty where the annotator leaves the responses without a rank unordered, below the ranked ones."""
    span_flags: str = "[]"
    missing: Sequence[MissingRow] = ()
    ratings: Mapping[str, str] = field(default_factory=dict)
    """Name of a rating's field → value; only those that were chosen."""
    corrections: Mapping[str, str] = field(default_factory=dict)
    """Token → the text in the answer's edit field, whether it was changed or not."""
    rewrites: str = "{}"
    """Token → the edits with their origins, as the script writes them; JSON."""
    critiques: Mapping[str, str] = field(default_factory=dict)
    step_labels: Mapping[str, str] = field(default_factory=dict)
    """Name of a step's field → its label; only of steps that have one."""
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Name of a question's field → its values; only those that were filled in."""
    demonstration: str = ""
    comment: str = ""
    confirmed: str = ""
    """The doubts that were asked already, by key, apart by spaces."""
    active_seconds: str = "0"
    idempotency_key: str = ""
    draft: Draft | None = None
    """The saved draft that these fields come from."""

    @classmethod
    def from_post(cls, data: QueryDict, assignment: Assignment) -> "Entered":
        """Return the contents of a submitted form, unchanged."""
        tokens = list(tokens_of(assignment))
        criteria = configuration_of(assignment.comparison.project).asked_criteria
        ratings = [rating_field(token, criterion.key) for token in tokens for criterion in criteria]
        questions = configuration_of(assignment.comparison.project).asked_questions
        asked = [
            *(question_field(question) for question in questions if question.subject == "comparison"),
            *(
                question_field(question, token)
                for question in questions
                if question.subject == "completion"
                for token in tokens
            ),
            *(name for name in data if any(_is_of_step(name, question) for question in questions)),
        ]
        edited = {token: data.get(f"correction-{token}") for token in tokens}
        return cls(
            choice=data.get("choice", ""),
            ranks={token: data.get(f"rank-{token}", "") for token in tokens},
            partial=data.get("partial", ""),
            span_flags=data.get("span_flags", "") or "[]",
            missing=_rows(data),
            ratings={name: value for name in ratings if (value := data.get(name, ""))},
            corrections={token: text for token, text in edited.items() if text is not None},
            rewrites=data.get("rewrites", "") or "{}",
            critiques={token: data.get(f"critique-{token}", "") for token in tokens},
            step_labels={
                name: value for name in data if name.startswith(_STEP) and (value := data.get(name, ""))
            },
            answers={name: values for name in asked if (values := list(filter(None, data.getlist(name))))},
            demonstration=data.get("demonstration", ""),
            comment=data.get("comment", ""),
            confirmed=data.get("confirmed", ""),
            active_seconds=data.get("active_seconds", "0"),
            idempotency_key=data.get("idempotency_key", ""),
        )

    @classmethod
    def from_draft(cls, draft: Draft) -> "Entered":
        """Return the contents of a draft, under a new key of the page."""
        data = QueryDict(mutable=True)
        for name, values in draft.fields.items():
            data.setlist(name, values)
        data["idempotency_key"] = ""
        return replace(cls.from_post(data, draft.assignment), draft=draft)

    @classmethod
    def from_judgment(cls, judgment: Judgment) -> "Entered":
        """Return the contents of a submitted judgment, for a revision."""
        return cls.from_record(records_of([judgment.pk])[judgment.pk], judgment.assignment)

    @classmethod
    def from_record(cls, record: JudgmentRecord, assignment: Assignment) -> "Entered":
        """Return the contents of a record on the page of an assignment. "Not asked" chooses nothing where the
        project asks for a preference."""
        is_chosen = record.verdict != Verdict.NOT_ASKED or not assignment.comparison.project.ask_verdict

        def token(completion: str) -> str:
            return candidate_token(assignment, int(completion))

        ranks = {token(pk): str(rank) for pk, rank in record.ranks.items()}
        questions = {
            question.key: question
            for question in configuration_of(assignment.comparison.project).asked_questions
        }
        return cls(
            choice=_choice_of(record, ranks, assignment) if is_chosen else "",
            ranks=ranks if record.verdict == Verdict.RANKED else {},
            partial="yes" if 0 < len(ranks) < len(assignment.display_order) else "",
            span_flags=json.dumps(
                [
                    _span(part, token(part.completion), _answers_about(part, record.answers, questions))
                    for part in record.spans
                ]
            ),
            missing=[_row(part, token(part.completion)) for part in record.missing],
            ratings={
                rating_field(token(part.completion), part.criterion): str(part.value)
                for part in record.ratings
            },
            corrections={token(part.completion): part.text for part in record.corrections},
            rewrites=json.dumps(
                {token(part.completion): list(map(rewrite_shown, part.edits)) for part in record.corrections}
            ),
            critiques={token(part.completion): part.text for part in record.critiques},
            step_labels={
                step_field(token(part.completion), part.step): part.label for part in record.step_labels
            },
            answers={
                question_field(question, token(part.completion) if part.completion else "", part.step): values
                for part in record.answers
                if part.span is None
                for question, values in _asked_still(part, questions)
            },
            demonstration=record.demonstration,
            comment=record.comment,
        )

    def with_part(self, part: JudgmentRecord, assignment: Assignment) -> "Entered":
        """Return these contents with a part of a vote: in the place of what stands there, or besides."""
        taken = Entered.from_record(part, assignment)
        merged = replace(
            self,
            span_flags=json.dumps(_joined(self.span_flags, json.loads(taken.span_flags))),
            missing=[
                *(row for row in self.missing if not row.is_empty and row not in taken.missing),
                *taken.missing,
            ],
            ratings={**self.ratings, **taken.ratings},
            corrections={**self.corrections, **taken.corrections},
            rewrites=json.dumps({**_loaded(self.rewrites, dict), **json.loads(taken.rewrites)}),
            critiques={**self.critiques, **taken.critiques},
            step_labels={**self.step_labels, **taken.step_labels},
            answers={**self.answers, **taken.answers},
            demonstration=taken.demonstration or self.demonstration,
        )
        if part.verdict == Verdict.NOT_ASKED:
            return merged
        return replace(merged, choice=taken.choice, ranks=taken.ranks, partial=taken.partial)


def _joined(before: str, spans: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the spans of a form's field and others, none twice."""
    where = ("candidate", "category", "start", "end")
    names = [tuple(span[name] for name in where) for span in spans]
    kept: list[Any] = []
    answers: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for span in _loaded(before, list):
        name = tuple(span.get(part) for part in where) if isinstance(span, dict) else ()
        if name not in names:
            kept.append(span)
        elif isinstance(span.get("answers"), dict):
            answers[name] = span["answers"]
    return [
        *kept,
        *(
            {**span, "answers": {**answers.get(name, {}), **span.get("answers", {})}}
            for name, span in zip(names, spans, strict=True)
        ),
    ]


def _loaded(written: str, kind: Callable[[], Any]) -> Any:
    """Return what a field of the script holds; an empty value where it is not of this kind."""
    empty = kind()
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return empty
    return value if isinstance(value, type(empty)) else empty


def rating_field(token: str, criterion_key: str) -> str:
    """The name of the field in which one answer is rated on one criterion."""
    return f"rating-{token}-{criterion_key}"


QUESTION = "question."


OF_SPAN = "span"
"""Stands in the place of a token in the name of a field of a question about spans."""


def question_field(question: Question, token: str = "", step: int | None = None) -> str:
    """The name of the field in which a question is answered, of one answer or of a step of it.

    It names the version: a page that was open while the question was changed sends no answer to another.
    """
    parts = (f"{QUESTION}{question.key}", question.version, token, "" if step is None else step)
    return ".".join(str(part) for part in parts if part != "")


def _is_of_step(name: str, question: Question) -> bool:
    """Return whether a field's name is of a question about steps."""
    return question.subject == "step" and name.startswith(f"{question_field(question)}.")


def _asked_still(
    part: AnswerPart, questions: Mapping[str, Question]
) -> Iterator[tuple[Question, Sequence[str]]]:
    """Yield the question with the answer's texts; nothing where an earlier version was answered: that is no
    answer to what is asked now."""
    question = questions.get(part.question)
    if question is not None and question.version == part.version:
        yield question, part.value if isinstance(part.value, tuple) else (str(part.value),)


def _answers_about(
    span: SpanPart, answers: Sequence[AnswerPart], questions: Mapping[str, Question]
) -> dict[str, list[str]]:
    """Return the answers about a span as its entry in the field of spans has them."""
    return {
        question_field(question, OF_SPAN): list(values)
        for part in answers
        if (part.completion, part.span) == (span.completion, span.place)
        for question, values in _asked_still(part, questions)
    }


def step_field(token: str, index: int) -> str:
    """The name of the field with the label of one step of an answer."""
    return f"{_STEP}{token}-{index}"


def step_of_field(name: str) -> tuple[str, int]:
    """The answer's token and the step's index of a field's name. Raises `ValueError` for another name."""
    token, _dash, index = name.removeprefix(_STEP).rpartition("-")
    if not (index.isascii() and index.isdigit() and len(index) < 10):
        raise ValueError(name)
    return token, int(index)


def _rows(data: QueryDict) -> list[MissingRow]:
    columns = {part: data.getlist(name) for part, name in _ROW.items()}
    height = max(map(len, columns.values()))
    rows = (
        MissingRow(
            **{part: values[number] if number < len(values) else "" for part, values in columns.items()}
        )
        for number in range(height)
    )
    return [row for row in rows if not row.is_empty]


def _row(part: MissingPart, token: str) -> MissingRow:
    first, *further = [f"{place.passage}:{_shown(place.sentence)}" for place in part.evidence] or [""]
    return MissingRow(
        candidate=token,
        category=part.category,
        text=part.text,
        evidence=first,
        further=" ".join(further),
        insert_at=_shown(part.insert_at),
    )


def _span(part: SpanPart, token: str, answers: Mapping[str, Sequence[str]]) -> dict[str, object]:
    values = asdict(part)
    for name in ("completion", "parent", "is_liked"):
        del values[name]
    return {"candidate": token, **values, **({"answers": answers} if answers else {})}


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def _choice_of(record: JudgmentRecord, ranks: Mapping[str, str], assignment: Assignment) -> str:
    if record.verdict != Verdict.RANKED or len(assignment.display_order) != 2:
        return record.verdict
    winner = min(ranks, key=lambda token: int(ranks[token]))
    return f"win:{winner}:{record.strength}" if record.strength else f"win:{winner}"


_STALE = gettext_lazy("This page no longer fits what is stored. Reload it; what you entered is listed below.")
_PARTS: dict[str, tuple[str | Promise, str]] = {
    "choice": (gettext_lazy("Preference"), "#verdict"),
    "span_flags": (gettext_lazy("Spans"), ""),
    "missing_info": (gettext_lazy("Missing info"), ""),
    "suggestions": (gettext_lazy("Suggestions"), "#help"),
    "step_labels": (gettext_lazy("Step labels"), ""),
    "ratings": (gettext_lazy("Ratings"), ""),
    "corrections": (gettext_lazy("Edited text"), ""),
    "critiques": (gettext_lazy("Critique"), ""),
    "answers": (gettext_lazy("Questions"), "#questions"),
    "demonstration": (gettext_lazy("Your own response"), "#demonstration"),
    "comment": (gettext_lazy("Comment"), "#comment"),
    "active_seconds": (gettext_lazy("Active time"), ""),
    "guideline": (gettext_lazy("Guidelines"), ""),
}
"""Title of each part of the page, and its place, for refusals."""
# Where a service's refusal is shown on the page, if not at its own field.
_SHOWN_AT = {"verdict": "choice", "ranks": "choice", "strength": "choice"}


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
    answers = forms.CharField(required=False)
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
        self._questions = configured.asked_questions
        self._must_answer = configured.must_answer
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
            answers=self.cleaned_data["answers"],
            demonstration=self.cleaned_data["demonstration"],
            active_seconds=self.cleaned_data["active_seconds"],
        )

    def add_refusal(self, refusal: Refusal) -> None:
        """Show what a service refused, at the part of the page that it is about."""
        field = _SHOWN_AT.get(refusal.field or "", refusal.field or "")
        self.add_error(field if field in _PARTS else None, refusal.message)

    @property
    def refused_parts(self) -> Iterator[tuple[str | Promise, str, str]]:
        """Yield title, place and error of each refused part, in the order of the page."""
        for name, (title, place) in _PARTS.items():
            for error in self.errors.get(name, ()):
                yield title, place, str(error)

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

    def clean_answers(self) -> tuple[AnswerPart, ...]:
        """Return the answers to the questions of the project. Refuse fields of another version."""
        answers: list[AnswerPart] = []
        names = set()
        for question in self._questions:
            for name, target in self._fields_of(question):
                names.add(name)
                answers += _answer(question, target, self.entered.answers.get(name, ()))
        unknown = (name for name in self.data if name.startswith(QUESTION) and name not in names)
        if any(self.data.get(name) for name in unknown):
            raise ValidationError(_CHANGED)
        return (*answers, *self._answers_about_spans())

    def _fields_of(self, question: Question) -> Iterator[tuple[str, Target]]:
        """Yield the fields of a question on this page; those of spans stand with their spans."""
        if question.subject == "comparison":
            yield question_field(question), Target()
        elif question.subject == "completion":
            for token, completion in self._completions.items():
                yield question_field(question, token), Target(completion)
        elif question.subject == "step":
            for name in filter(lambda name: _is_of_step(name, question), self.entered.answers):
                token, _dot, step = name.removeprefix(f"{question_field(question)}.").partition(".")
                if token in self._completions and step.isascii() and step.isdigit() and len(step) < 10:
                    yield name, Target(self._completions[token], int(step))

    def _answers_about_spans(self) -> Iterator[AnswerPart]:
        names = {question_field(q, OF_SPAN): q for q in self._questions if q.subject == "span"}
        sent = self.cleaned_data.get("span_flags") or ()
        for part, span in zip(sent, _loaded(self.entered.span_flags, list), strict=False):
            answers = span.get("answers") or {}
            if not isinstance(answers, dict) or any(name not in names and answers[name] for name in answers):
                raise ValidationError(_CHANGED)
            for name, texts in answers.items():
                if name in names and isinstance(texts, list):
                    target = Target(part.completion, None, part.place)
                    yield from _answer(names[name], target, list(map(str, texts)))

    def clean_demonstration(self) -> str:
        """The annotator's own answer; blank is none."""
        text = _plain(self.cleaned_data["demonstration"])
        return text if text.strip() else ""

    def _without_verdict(self, choice: str) -> str:
        # Where nothing else has to be filled in, one says that one has looked: nothing is sent untouched.
        must_fill_in = self._criteria or self._must_answer or self._project.ask_demonstration
        if not choice and not must_fill_in:
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
            relations=tuple(
                SpanLink(kind=str(link["kind"]), to=link["to"]) for link in span.get("relations") or ()
            ),
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


_CHANGED = gettext_lazy("A question was changed since this page was opened. Answer it as it stands now.")


def _answer(question: Question, target: Target, texts: Sequence[str]) -> list[AnswerPart]:
    """Return the answer that the texts of a field give; none where they are empty."""
    value = value_from_text(question, list(map(_plain, texts)))
    if value is None:
        return []
    return [AnswerPart(question=question.key, version=question.version, value=value, **target._asdict())]


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


# Reasons for a skip or a flag.


class SkipForm(forms.Form):
    """Reasons for a skip."""

    reason = forms.CharField(max_length=200, error_messages={"required": gettext_lazy("Choose a reason.")})
    details = forms.CharField(required=False, max_length=2000)

    @property
    def text(self) -> str:
        """The reason with its details. Only after `is_valid()`."""
        reason, details = self.cleaned_data["reason"], self.cleaned_data["details"]
        return f"{reason}: {details}" if details else str(reason)


class FlagForm(forms.Form):
    """Reasons for a flag."""

    reason = forms.CharField(max_length=200, error_messages={"required": gettext_lazy("Choose a reason.")})
    details = forms.CharField(required=False, max_length=2000)


# Decisions on suggestions, as a final pass sends them.

PREFIX = "suggestion-"
TIMES = "suggestion_times"
"""Field in which the script writes: suggestion → [seconds, time of the decision in milliseconds]."""


def decisions_in(sent: QueryDict) -> list[DecisionInput]:
    """Return the decisions of a page. Their times are missing without JavaScript."""
    times = _times(sent.get(TIMES, ""))
    decisions = []
    for name, value in sent.items():
        pk = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pk.isdecimal() and len(pk) < 19:
            seconds, at = times.get(pk, (None, None))
            decisions.append(
                DecisionInput(suggestion_id=int(pk), decision=str(value), seconds=seconds, decided_at=at)
            )
    return decisions


def decided_in(fields: Mapping[str, Any]) -> dict[int, str]:
    """Return the decisions of a draft or a form that was refused, by suggestion."""
    decisions = {}
    for name, value in fields.items():
        pk = name.removeprefix(PREFIX)
        if name.startswith(PREFIX) and pk.isdecimal():
            decisions[int(pk)] = value[-1] if isinstance(value, list) and value else str(value)
    return decisions


def _times(text: str) -> dict[str, tuple[float, datetime]]:
    """Read the times of a script. What is none is left out: it must not cost an annotation."""
    try:
        times = json.loads(text or "{}")
        return {
            str(pk): (float(seconds), datetime.fromtimestamp(float(at) / 1000, tz=UTC))
            for pk, (seconds, at) in times.items()
        }
    except (ValueError, TypeError, AttributeError, OverflowError, OSError):
        return {}
