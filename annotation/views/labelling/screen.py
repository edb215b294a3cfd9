"""The content of the labelling screen, for its template.

Nothing here names a completion, its source or its position: a candidate has a token that holds on this
assignment's page only.
"""

import string
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from html import unescape
from itertools import groupby
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html, format_html_join, json_script, strip_tags
from django.utils.safestring import SafeString, mark_safe
from django.utils.text import Truncator
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from annotation.choices import (
    SCALE_VALUES,
    SIGNS,
    STRENGTHS,
    AssignmentState,
    CategoryScope,
    ContextDisplay,
    FinishReason,
    Polarity,
    RatingScale,
    ReturnState,
    SuggestionDecision,
    SuggestionKind,
    Verdict,
)
from annotation.forms.judgment import Entered, JudgmentForm, MissingRow, decided_in, rating_field, step_field
from annotation.models import (
    Assignment,
    Category,
    Completion,
    Criterion,
    Draft,
    Guideline,
    HelpReveal,
    Project,
    ReviewReturn,
    RubricVersion,
    Suggestion,
    TraceStep,
    User,
)
from annotation.selectors import access
from annotation.selectors.annotator_work import progress_and_pace
from annotation.selectors.comparison import step_address
from annotation.selectors.configuration import configuration_of, in_groups
from annotation.selectors.reviews import ReviewPage, returns_of
from annotation.selectors.suggestions import suggestions_for
from annotation.selectors.traces import Row, rows_of, shown_steps, steps_by_completion
from annotation.services.assignments.display_order import tokens_of
from annotation.services.judgments.submission import Doubt
from annotation.services.people.shortcuts import keys_of, own_keys, shown_key
from annotation.services.suggestions import SUGGESTED_STRENGTH, ranks_of
from annotation.text.edits import DiffPiece, pieces, with_own_line_breaks
from annotation.text.identity import with_rest
from annotation.text.rendering import (
    attributes,
    escaped,
    refers_to_context,
    render_answer,
    render_markdown,
    render_turns,
)
from annotation.text.step_markup import ShownStep
from annotation.views.labelling.places import LabellingPlace
from annotation.views.labelling.questions import (
    QuestionOnScreen,
    questions_about_spans,
    questions_on_screen,
    rendered_of_step,
)

# ── Parts ───────────────────────────────────────────────────────────────────────────────


class CompactJson(DjangoJSONEncoder):
    """JSON without white space and escapes that nobody needs: the screen is sent as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "separators": (",", ":"), "ensure_ascii": False})


@dataclass(frozen=True, slots=True)
class VerdictChoice:
    """A verdict to choose."""

    value: str
    label: str
    key: str
    short: str = ""
    strength: int = 0
    letter_key: str = ""
    """A second key: the letter of the response, where no category has it."""

    @property
    def title(self) -> str:
        """The label with its keys."""
        keys = f"{self.key}, {self.letter_key}" if self.letter_key else self.key
        return f"{self.label} ({keys})"

    @property
    def attributes(self) -> SafeString:
        """Attributes of the radio button."""
        return attributes(
            value=self.value, data_key=self.key, data_letter=self.letter_key or None, data_label=self.label
        )

    def option(self, *, side: str = "", is_chosen: bool) -> str:
        """The radio button with its label as HTML; with a `side` a step of the scale."""
        kind = f"step option--{side}" if side else "plain"
        label = escaped(self.label)
        face = (
            f'<span class="visually-hidden">{label}</span>'
            f'<span aria-hidden="true">{escaped(self.sign)}</span>'
            if side
            else f'{label} <kbd class="only-with-script">{escaped(self.key)}</kbd>'
        )
        return (
            f'<label class="option option--{kind}" '
            f"{attributes(title=self.title, data_strength=self.strength or None)}>"
            f'<input type="radio" name="choice" {self.attributes}{" checked" if is_chosen else ""}> '
            f'<span class="option__face">{face}</span></label>'
        )

    @property
    def sign(self) -> str:
        """The sign on its step of the scale."""
        return "=" if self.value == Verdict.EQUAL else self.key if self.strength else self.short


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseLabels:
    """Words about the response that has a letter, in the language of the page."""

    better: str
    """Beside the scale of a pair."""
    wins: tuple[str, ...]
    """Without a strength, then by strength."""
    response: str
    rank: str
    steps: str
    spans: str
    critique: str
    critique_hint: str
    rewritten: str
    edit: str
    missing: str


@lru_cache(maxsize=256)
def _labels(letter: str, _language: str | None) -> ResponseLabels:
    name = {"letter": letter}
    return ResponseLabels(
        better=_("%(letter)s better") % name,
        wins=(
            _("%(letter)s is better") % name,
            *(
                _("%(letter)s is %(strength)s") % {**name, "strength": STRENGTHS[strength]}
                for strength in sorted(STRENGTHS)
            ),
        ),
        response=_("response %(letter)s") % name,
        rank=_("Rank of response %(letter)s") % name,
        steps=_("Steps of %(letter)s") % name,
        spans=_("Spans in response %(letter)s") % name,
        critique=_("Critique of response %(letter)s") % name,
        critique_hint=_("What is good, what is wrong with %(letter)s?") % name,
        rewritten=_("%(letter)s, rewritten") % name,
        edit=_("Text of response %(letter)s, to edit") % name,
        missing=_("Missing information in response %(letter)s") % name,
    )


class CandidateOnScreen:
    """A completion as shown to the annotator: a letter, a text, and the values entered about it."""

    def __init__(
        self,
        letter: str,
        token: str,
        completion: Completion,
        entered: Entered,
        size: int,
        steps: Sequence[ShownStep] = (),
    ) -> None:
        self.letter = letter
        self.token = token
        self.source = completion.text
        self.steps = steps
        self.text_hash = completion.text_hash
        self.is_truncated = completion.finish_reason == FinishReason.LENGTH
        self.rank = entered.ranks.get(token, "")
        self.ranks = [str(rank) for rank in range(1, size + 1)]
        rows = [row for row in entered.missing if row.candidate == token]
        # An empty row, because without JavaScript there is no button that adds one.
        self.missing = rows or [MissingRow(candidate=token)]
        self.missing_count = len(rows)
        self.edited = entered.corrections.get(token, self.source)
        self.critique = entered.critiques.get(token, "")

    @cached_property
    def labels(self) -> ResponseLabels:
        """Words about this response."""
        return _labels(self.letter, get_language())

    @property
    def attributes(self) -> SafeString:
        """Attributes of the response that its scripts read."""
        return attributes(
            data_candidate=self.token, data_letter=self.letter, aria_labelledby=f"heading-{self.token}"
        )

    @property
    def text_attributes(self) -> SafeString:
        """Attributes of the element that holds the text."""
        return attributes(role="group", aria_labelledby=f"heading-{self.token}", data_answer=self.token)

    @cached_property
    def markup(self) -> SafeString:
        """The rendered answer, with source positions."""
        return render_answer(self.source)

    @cached_property
    def truncated_badge(self) -> SafeString:
        """A badge if generation reached the token limit, else empty."""
        return render_to_string("annotation/truncated.html") if self.is_truncated else SafeString()

    @cached_property
    def changes(self) -> tuple[DiffPiece, ...]:
        """The differences between text and edit field; empty if they are equal."""
        if self.edited == self.source:
            return ()
        parts = pieces(self.source, with_own_line_breaks(self.source, self.edited))
        return parts if any(piece.kind != "same" for piece in parts) else ()


@dataclass(frozen=True, slots=True)
class ScaleStep:
    """A step of a rating scale."""

    value: int
    label: str
    icon: str = ""


@dataclass(frozen=True, slots=True)
class RatingField:
    """The field of one answer's rating on one criterion, and the chosen value."""

    candidate: CandidateOnScreen
    field: str
    chosen: int | None


class CriterionOnScreen:
    """A criterion with its scale and the answers to rate."""

    def __init__(
        self, criterion: Criterion, candidates: Sequence[CandidateOnScreen], entered: Entered
    ) -> None:
        self.key = criterion.key
        self.label = criterion.label
        self.description = criterion.description
        self.scale = criterion.scale
        self.steps = _steps(RatingScale(criterion.scale))
        names = [(candidate, rating_field(candidate.token, criterion.key)) for candidate in candidates]
        self.rated = [
            RatingField(candidate, name, _number(entered.ratings.get(name, ""))) for candidate, name in names
        ]


@dataclass(frozen=True, slots=True)
class PassageField:
    """A context passage, with the form values of its title and sentences."""

    title: str
    value: str
    sentences: list[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysOnScreen:
    """All that the list of keys hangs on: the same for nearly every comparison of a person in a project."""

    keys: tuple[tuple[str, str], ...]
    """The key of every action."""
    size: int
    ask_verdict: bool
    wins: tuple[tuple[str, str, str], ...] = ()
    """Key, letter and second key of a win, where no strength is asked for."""
    no_wins: tuple[VerdictChoice, ...] = ()
    spans: tuple[tuple[str, str], ...] = ()
    """Key and label of the categories that can be marked."""
    spans_without_key: tuple[tuple[str, str], ...] = ()
    has_spans: bool = False
    has_help: bool = False
    has_missing: bool = False
    has_evidence: bool = False
    has_criteria: bool = False
    has_questions: bool = False
    shortcuts: tuple[tuple[str, str], ...] = ()
    """Key and label of choices that have a key of their own."""
    has_steps: bool = False
    has_previous: bool = False
    ask_step_labels: bool = False
    ask_critique: bool = False
    ask_correction: bool = False
    ask_demonstration: bool = False
    ask_comment: bool = False
    votes: int = 0
    """Of a review."""
    is_revision: bool = False
    is_preview: bool = False

    @property
    def signs(self) -> Mapping[str, list[str]]:
        """The key of every action as printed on keyboards."""
        return {action: shown_key(key) for action, key in self.keys}

    @property
    def markup(self) -> SafeString:
        """The dialog. Rendering it takes as long as a response, so the last ones are remembered."""
        return _keys_markup(self, get_language())


@lru_cache(maxsize=128)
def _keys_markup(shown: KeysOnScreen, _language: str | None) -> SafeString:
    return render_to_string("annotation/keys.html", {"shown": shown})


def _steps(scale: RatingScale) -> list[ScaleStep]:
    if scale == RatingScale.THUMBS:
        return [ScaleStep(0, _("thumb down"), "thumbs-down"), ScaleStep(1, _("thumb up"), "thumbs-up")]
    return [ScaleStep(value, str(value)) for value in SCALE_VALUES[scale]]


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


# ── The screen ──────────────────────────────────────────────────────────────────────────


_SHORT = 400


class Screen:
    """One assignment on the labelling screen."""

    def __init__(
        self,
        *,
        project: Project,
        assignment: Assignment,
        annotator: User,
        entered: Entered,
        form: JudgmentForm | None = None,
        guideline: Guideline | None = None,
        after: Assignment | None = None,
        doubts: Sequence[Doubt] = (),
        is_preview: bool = False,
        place: LabellingPlace | None = None,
        reveal: HelpReveal | None = None,
        sent: Mapping[str, Any] | None = None,
        repeated: Collection[str] = (),
        repeated_categories: Sequence[Category] = (),
    ) -> None:
        self.project = project
        self.repeated = repeated
        self.repeated_categories = repeated_categories
        self.assignment = assignment
        self.annotator = annotator
        self.entered = entered
        self.form = form
        self.doubts = doubts
        self.is_preview = is_preview
        self.place = place
        self.guideline = guideline or access.current_guideline(project)
        self.round_number = access.round_shown(assignment)
        self.after = after
        if place is None:
            self.progress, self.pace = progress_and_pace(
                project, annotator, self.round_number, assignment.round_tally
            )
        if after is not None and after.state == AssignmentState.LEASED:
            # The page is shown only after the previous comparison is submitted.
            self.progress = replace(self.progress, done=self.progress.done + 1)
            if place is None:
                self.pace = replace(self.pace, today=self.pace.today + 1)
        self.is_revision = assignment.state == AssignmentState.SUBMITTED
        self.draft = entered.draft or draft_of(assignment)
        self.idempotency_key = entered.idempotency_key or str(uuid.uuid4())
        tokens = tokens_of(assignment)
        completions = (
            {completion.pk: completion for completion in assignment.fresh_completions}
            if assignment.fresh_completions is not None
            else Completion.objects.in_bulk(tokens.values())
        )
        traces = steps_by_completion(list(completions.values()))
        self.agent_steps = {
            token: [step.index for step in traces.get(pk, ()) if step.is_agents]
            for token, pk in tokens.items()
        }
        self.candidates = [
            CandidateOnScreen(
                *(letter, token, completions[pk], entered, len(tokens)),
                steps=self._steps(token, completions[pk], traces.get(pk, ())),
            )
            for letter, (token, pk) in zip(string.ascii_uppercase, tokens.items(), strict=False)
        ]
        self.size = len(self.candidates)
        self.help = None
        if reveal is not None:
            fields = sent if sent is not None else self.draft.fields if self.draft else {}
            self.help = HelpOnScreen(reveal, self.candidates, tokens, fields)
        # A row that names an archived category keeps it.
        used = {row.category for row in entered.missing}
        categories = [
            c
            for c in in_groups(access.categories_of(project))
            if not c.is_archived or c.key in used or c.pk in self.split_categories
        ]
        self.keys = keys_of(annotator)
        # The steps of a trace are labelled, not marked: they are not there whole.
        is_marked = project.ask_span_flags and not all(candidate.steps for candidate in self.candidates)
        marking = _of_scope(categories, CategoryScope.SPAN) if is_marked else []
        self.span_categories, self.categories_without_key = _less_taken(marking, own_keys(annotator))
        self.missing_categories = (
            _of_scope(categories, CategoryScope.MISSING) if project.ask_missing_info else []
        )

    def _steps(self, token: str, completion: Completion, steps: Sequence[TraceStep]) -> list[ShownStep]:
        """The steps of a trace with their fields; none of a plain response."""
        if not steps:
            return []
        address = (
            step_address(self.assignment.comparison, completion.pk)
            if self.review
            else reverse("label-step", args=[self.project.slug, self.assignment.pk, token, 0])
        )
        return shown_steps(
            completion,
            steps,
            column=token,
            address=address,
            field_of=lambda index: step_field(token, index) if self.project.ask_step_labels else "",
            chosen=self.entered.step_labels,
            questions=self._questions_by_step.get(token, {}),
        )

    @cached_property
    def attributes(self) -> SafeString:
        """Attributes of the screen that its scripts read: what it shows and where it sends."""
        shown = attributes(
            data_size=self.size,
            data_round=self.round_number,
            data_assignment="None" if self.assignment.pk is None else self.assignment.pk,
        )
        if self.is_preview:
            return format_html("{} data-preview", shown)
        sent: dict[str, object] = {}
        if self.is_kept:
            sent = {
                "data_renew": self._address_of("renew"),
                "data_draft": self._address_of("draft"),
                "data_continues": self.project.ask_correction and self._address_of("continuation"),
                "data_pastes": self.project.records_pastes and self._address_of("paste"),
                "data_draft_version": self.draft.version if self.draft else 0,
                "data_revision": self.is_revision,
                "data_revise": self._address_of("final-pass" if self.help else "revise"),
            }
        ahead = None
        if self.place is None and not self.project.has_help:
            ahead = f"{reverse('label-ahead', args=[self.project.slug])}?after={self.assignment.pk}"
        return format_html(
            "{} {}",
            shown,
            attributes(
                data_conversation=self.place is not None and self.place.turn is not None,
                data_plain=self.review is not None,
                data_unkept=not self.is_kept,
                **sent,
                data_label=self.address,
                data_next=ahead,
            ),
        )

    def _address_of(self, name: str) -> str:
        """The address of this assignment on a page."""
        return reverse(name, args=[self.project.slug, self.assignment.pk])

    @property
    def is_kept(self) -> bool:
        """True if there are drafts and a lease to renew."""
        return self.place is None or self.place.kept

    @cached_property
    def address(self) -> str:
        """The page that the screen belongs to."""
        return self.place.address if self.place else reverse("label", args=[self.project.slug])

    @property
    def submit_address(self) -> str:
        """Where the judgment is sent."""
        if self.place is not None:
            return self.place.submit
        return self._address_of("final-pass-submit" if self.help else "submit")

    @property
    def guidelines_address(self) -> str:
        """The guidelines: a page for members, a dialog for others."""
        return reverse("guidelines", args=[self.project.slug]) if self.is_kept else "#guidelines"

    @property
    def review(self) -> ReviewPage | None:
        """The review that is decided on this screen; None outside of one."""
        return self.place.review if self.place else None

    @cached_property
    def returns(self) -> list[ReviewReturn]:
        """The returns of this annotation, the oldest first."""
        return returns_of(self.assignment) if self.is_revision and self.is_kept else []

    @property
    def open_return(self) -> ReviewReturn | None:
        """The return that waits for this annotator; None where there is none."""
        return next((returned for returned in self.returns if returned.state == ReturnState.OPEN), None)

    @property
    def kind(self) -> str:
        """The name of a screen that is not the next comparison; empty for that."""
        if self.is_preview:
            return _("preview")
        if self.review is not None:
            return _("review")
        if self.help is not None:
            return _("final pass")
        if self.open_return is not None:
            return _("returned annotation")
        return _("changing an annotation") if self.is_revision else ""

    @property
    def submit_label(self) -> str:
        """The label of the button that submits."""
        if self.review is not None:
            return _("Decide")
        if self.help is not None:
            return _("Submit the final pass")
        if self.open_return is not None:
            return _("Submit the correction")
        return _("Submit the change") if self.is_revision else _("Submit")

    @property
    def is_ranking(self) -> bool:
        """True if more than two responses are put in order."""
        return self.size > 2 and self.project.ask_verdict

    @property
    def legend(self) -> SafeString:
        """The span categories above the responses."""
        return format_html_join(
            "",
            '<span {}><span class="dot"></span>{}{}{}</span>',
            (
                (
                    attributes(**{"class": "chip"}, data_category=c.key, title=c.description or None),
                    self._sign(c),
                    c.full_label,
                    _key_cap(c),
                )
                for c in self.span_categories
                if c.pk not in self.split_categories
            ),
        )

    @property
    def category_buttons(self) -> SafeString:
        """The buttons that give a selection its span category."""
        return format_html_join("", "{}", ((self._button(c),) for c in self.span_categories))

    def _button(self, category: Category) -> SafeString:
        """The button of a category; of one that is split its name, before its sub-categories."""
        if category.pk in self.split_categories:
            return format_html('<span class="marker__group muted small">{}</span>', category.label)
        return format_html(
            '<button type="button" class="chip chip--button" data-category="{0}" data-marks="{0}">'
            '<span class="dot"></span>{1}{2}{3}</button>',
            *(category.key, self._sign(category), category.label, _key_cap(category)),
        )

    @cached_property
    def split_categories(self) -> frozenset[int]:
        """Ids of the categories of which a sub-category is chosen."""
        return configuration_of(self.project).split_categories

    @cached_property
    def shows_signs(self) -> bool:
        """True where spans are not all errors: signs tell them apart then, beside the colour."""
        return any(c.polarity != Polarity.ERROR for c in self.span_categories)

    def _sign(self, category: Category) -> SafeString:
        """The sign of a category with its meaning for who hears it, where the project has several."""
        if not self.shows_signs:
            return SafeString()
        return format_html(
            '<span class="sign" aria-hidden="true">{}</span><span class="visually-hidden">{}: </span>',
            SIGNS[Polarity(category.polarity)],
            Polarity(category.polarity).label,
        )

    @property
    def letters(self) -> list[str]:
        """The letters of the responses, in screen order."""
        return [candidate.letter for candidate in self.candidates]

    @property
    def has_steps(self) -> bool:
        """True if a trace is on the screen."""
        return any(candidate.steps for candidate in self.candidates)

    @cached_property
    def step_rows(self) -> list[Row]:
        """Two traces in rows; none where there are not two."""
        if self.size != 2 or not all(candidate.steps for candidate in self.candidates):
            return []
        return rows_of([candidate.steps for candidate in self.candidates])

    @cached_property
    def criteria(self) -> list[CriterionOnScreen]:
        return [
            CriterionOnScreen(criterion, self.candidates, self.entered)
            for criterion in configuration_of(self.project).asked_criteria
        ]

    @cached_property
    def questions(self) -> list[QuestionOnScreen]:
        """The questions of the project, about the comparison, each response and each step."""
        asked = configuration_of(self.project).asked_questions
        if not asked:
            return []
        language = get_language()
        names = zip(string.ascii_uppercase, self.agent_steps, strict=False)
        return questions_on_screen(
            asked,
            self.entered.answers,
            {token: _labels(letter, language).response for letter, token in names},
            self.agent_steps,
            is_invalid=self.form is not None and "answers" in self.form.errors,
            repeated=self.repeated,
        )

    @cached_property
    def questions_about_spans(self) -> list[QuestionOnScreen]:
        """The questions of the project about spans, for the editor of a span."""
        asked = configuration_of(self.project).asked_questions
        return questions_about_spans(asked, self.repeated) if self.span_categories else []

    @property
    def has_questions(self) -> bool:
        """True if the project asks something here."""
        return bool(self.questions or self.questions_about_spans)

    @cached_property
    def questions_of_comparison(self) -> list[QuestionOnScreen]:
        """The questions about the comparison."""
        return [place for place in self.questions if place.question.subject == "comparison"]

    @cached_property
    def _questions_by_step(self) -> dict[str, dict[int, SafeString]]:
        """Token of a response → its steps → the questions about each, rendered."""
        steps: dict[str, dict[int, list[QuestionOnScreen]]] = {}
        for place in self.questions:
            if place.target.step is not None:
                of_response = steps.setdefault(place.target.completion or "", {})
                of_response.setdefault(place.target.step, []).append(place)
        known: dict[Any, str] = {}
        return {
            token: {step: rendered_of_step(places, known) for step, places in of_response.items()}
            for token, of_response in steps.items()
        }

    @cached_property
    def questions_by_candidate(self) -> list[tuple[CandidateOnScreen, list[QuestionOnScreen]]]:
        """The questions about each response, with it; none where no question is about responses."""
        about = [place for place in self.questions if place.question.subject == "completion"]
        if not about:
            return []
        return [
            (candidate, [place for place in about if place.target.completion == candidate.token])
            for candidate in self.candidates
        ]

    @property
    def rating_count(self) -> int:
        """The number of ratings that are asked for on this screen."""
        return sum(len(criterion.rated) for criterion in self.criteria)

    @cached_property
    def rubric(self) -> RubricVersion | None:
        """The rubric version whose criteria are on screen."""
        return configuration_of(self.project).rubric

    @property
    def confirmed(self) -> str:
        """The keys of the doubts shown so far: a repeated submission confirms them."""
        return " ".join(
            dict.fromkeys([*self.entered.confirmed.split(), *(doubt.key for doubt in self.doubts)])
        )

    @property
    def must_fill_in(self) -> bool:
        """True if a page without a verdict has a required part."""
        must_answer = configuration_of(self.project).must_answer
        return bool(self.criteria) or must_answer or self.project.ask_demonstration

    @cached_property
    def position(self) -> int:
        """The number of this comparison in the annotator's round, from 1."""
        return self.progress.shown_done + (0 if self.is_revision else 1)

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """The prompt's messages: role and rendered content."""
        return render_turns(self.assignment.comparison.prompt.messages)

    @cached_property
    def question_in_short(self) -> str:
        """The last turn as plain text, for the strip that stays in sight."""
        _role, markup = self.turns[-1]
        return Truncator(" ".join(unescape(strip_tags(markup)).split())).chars(_SHORT)

    @cached_property
    def evidence(self) -> list[PassageField]:
        passages: list[dict[str, Any]] = self.assignment.comparison.prompt.context
        return [
            PassageField(
                passage["title"], f"{i}:", [(f"{i}:{j}", text) for j, text in enumerate(passage["sentences"])]
            )
            for i, passage in enumerate(passages)
        ]

    @property
    def context_is_open(self) -> bool:
        """True if the context passages are open when the comparison is shown."""
        if self.project.show_context == ContextDisplay.AUTO:
            return refers_to_context(self.assignment.comparison.prompt.last_question)
        return self.project.show_context == ContextDisplay.OPEN

    @cached_property
    def question(self) -> SafeString:
        return render_to_string("annotation/question.html", {"screen": self})

    @cached_property
    def evidence_options(self) -> SafeString:
        """The context passages as options, none of them selected."""
        return render_to_string("annotation/evidence_options.html", {"evidence": self.evidence, "chosen": ""})

    @cached_property
    def guideline_markup(self) -> SafeString:
        configured = configuration_of(self.project)
        if self.guideline == configured.guideline:
            return configured.guideline_markup
        return render_markdown(self.guideline.text if self.guideline else "")

    @cached_property
    def previous(self) -> Assignment | None:
        """The last submitted assignment, to be revised; None on its own page."""
        if self.place is not None:
            return None
        last = self.after or access.last_submitted(self.annotator, self.project)
        return None if last is None or last.pk == self.assignment.pk else last

    @cached_property
    def wins(self) -> list[list[VerdictChoice]]:
        """For each candidate of a pair, the choices in which it wins, in screen order."""
        if not self.project.ask_strength:
            taken = {category.shortcut.lower() for category in self.span_categories}
            letters = [letter.lower() if letter.lower() not in taken else "" for letter in self.letters]
            return [
                [
                    VerdictChoice(
                        f"win:{c.token}",
                        c.labels.wins[0],
                        str(key),
                        c.letter,
                        letter_key=letters[key - 1],
                    )
                ]
                for key, c in enumerate(self.candidates, start=1)
            ]
        left, right = self.candidates
        return [
            [self._win(left, strength, 5 - strength) for strength in (4, 3, 2, 1)],
            [self._win(right, strength, 5 + strength) for strength in (1, 2, 3, 4)],
        ]

    @staticmethod
    def _win(candidate: CandidateOnScreen, strength: int, key: int) -> VerdictChoice:
        label = candidate.labels.wins[strength]
        return VerdictChoice(f"win:{candidate.token}:{strength}", label, str(key), candidate.letter, strength)

    @cached_property
    def no_wins(self) -> list[VerdictChoice]:
        """The choices without a winner."""
        if not self.project.ask_verdict:
            cannot = VerdictChoice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"])
            looked = VerdictChoice(Verdict.NOT_ASKED, _("Looked through and marked"), "1")
            return [cannot] if self.must_fill_in else [looked, cannot]
        if self.size == 1:
            return [
                VerdictChoice(Verdict.RANKED, _("Looked through and marked"), "1"),
                VerdictChoice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"]),
            ]
        is_pair = self.size == 2
        return [
            VerdictChoice(Verdict.EQUAL, _("Equal") if is_pair else _("All equal"), self.keys["equal"]),
            VerdictChoice(
                Verdict.BOTH_GOOD, _("Both good") if is_pair else _("All good"), self.keys["both_good"]
            ),
            VerdictChoice(
                Verdict.BOTH_BAD, _("Both bad") if is_pair else _("All bad"), self.keys["both_bad"]
            ),
            VerdictChoice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"]),
        ]

    @property
    def scale(self) -> SafeString:
        """The scale of a pair: from the left response over a tie to the right one."""
        left, right = self.wins
        sides = (("left", left), ("middle", self.no_wins[:1]), ("right", right))
        return self._options((choice, side) for side, choices in sides for choice in choices)

    @property
    def plain_choices(self) -> SafeString:
        """The choices without a winner, less the tie of a pair, which is on its scale."""
        is_on_scale = self.project.ask_verdict and self.size == 2
        return self._options((choice, "") for choice in self.no_wins[1 if is_on_scale else 0 :])

    def _options(self, choices: Iterable[tuple[VerdictChoice, str]]) -> SafeString:
        chosen = self.entered.choice
        options = (choice.option(side=side, is_chosen=choice.value == chosen) for choice, side in choices)
        return mark_safe("\n".join(options))  # noqa: S308 - their parts are escaped

    @cached_property
    def stands_on(self) -> int:
        """The judgment that this page would supersede; 0 for none."""
        judgment = access.current_judgment(self.assignment) if self.is_revision else None
        return judgment.pk if judgment else 0

    @cached_property
    def shown_keys(self) -> KeysOnScreen:
        """All that the list of keys hangs on."""
        asked = self.project
        has_wins = asked.ask_verdict and self.size == 2 and not asked.ask_strength
        return KeysOnScreen(
            keys=tuple(self.keys.items()),
            size=self.size,
            ask_verdict=asked.ask_verdict,
            wins=tuple((win.key, win.short, win.letter_key) for (win,) in self.wins) if has_wins else (),
            no_wins=tuple(self.no_wins) if asked.ask_verdict else (),
            spans=tuple(
                (c.shortcut, c.full_label)
                for c in self.span_categories
                if c.shortcut and c.pk not in self.split_categories
            ),
            spans_without_key=tuple((key, c.label) for c, key in self.categories_without_key),
            has_spans=bool(self.span_categories),
            has_help=self.help is not None,
            has_missing=bool(self.missing_categories),
            has_evidence=bool(self.evidence),
            has_criteria=bool(self.criteria),
            has_questions=self.has_questions,
            shortcuts=tuple(
                (choice.shortcut, f"{question.text}: {choice.label or choice.key}")
                for question in configuration_of(asked).asked_questions
                for choice in question.choices
                if choice.shortcut
            ),
            has_steps=self.has_steps,
            has_previous=self.previous is not None,
            ask_step_labels=asked.ask_step_labels,
            ask_critique=asked.ask_critique,
            ask_correction=asked.ask_correction,
            ask_demonstration=asked.ask_demonstration,
            ask_comment=asked.ask_comment or self.review is not None,
            votes=len(self.review.votes) if self.review else 0,
            is_revision=self.is_revision,
            is_preview=self.is_preview,
        )

    @cached_property
    def signs(self) -> Mapping[str, list[str]]:
        """The key of every action as printed on keyboards."""
        return self.shown_keys.signs

    @cached_property
    def script_data(self) -> SafeString:
        """Data for label.js: the texts in which spans are counted, keys and categories."""
        data = {
            "candidates": [
                {
                    "token": c.token,
                    "letter": c.letter,
                    # A trace comes in parts, as text.
                    "source": "" if c.steps else c.source,
                    "textHash": c.text_hash,
                }
                for c in self.candidates
            ],
            "keys": self.keys,
            "rewrites": self.project.ask_correction,
            "categories": [
                {
                    "key": c.key,
                    "label": c.full_label,
                    "shortcut": "" if c.pk in self.split_categories else c.shortcut.lower(),
                    "severitySteps": c.severity_steps,
                    "polarity": c.polarity,
                    **({"sign": SIGNS[Polarity(c.polarity)]} if self.shows_signs else {}),
                    **({"needsNote": True} if c.needs_note else {}),
                    **({"isSplit": True} if c.pk in self.split_categories else {}),
                }
                for c in self.span_categories
            ],
            "relates": self.project.ask_span_relations,
            "suggestions": [suggestion.as_json() for suggestion in self.help.suggestions]
            if self.help
            else [],
        }
        return json_script(data, "screen-data", encoder=CompactJson)


def draft_of(assignment: Assignment) -> Draft | None:
    """Return the saved draft; None without a query for a new lease."""
    if assignment.fresh_completions is not None:
        return None
    draft = Draft.objects.filter(assignment=assignment).first()
    if draft is not None:
        draft.assignment = assignment
    return draft


def _key_cap(category: Category) -> SafeString:
    """The key of a category, if it has one."""
    return format_html(" <kbd>{}</kbd>", category.shortcut) if category.shortcut else SafeString()


def _of_scope(categories: list[Category], scope: CategoryScope) -> list[Category]:
    return [category for category in categories if category.scope == scope]


def _less_taken(
    categories: list[Category], user_keys: Mapping[str, str]
) -> tuple[list[Category], list[tuple[Category, str]]]:
    """Return copies of the categories without keys the user has reassigned, and the changed ones."""
    reassigned = set(user_keys.values())
    conflicts = [(c, c.shortcut) for c in categories if c.shortcut and c.shortcut.lower() in reassigned]
    # Pages share the project's categories, so change copies.
    copies = [copy(category) for category in categories]
    for category in copies:
        if category.shortcut.lower() in reassigned:
            category.shortcut = ""
    return copies, conflicts


class SuggestionOnScreen:
    """One suggestion: what it says, in the letters of the page, and the decision so far."""

    def __init__(
        self, row: Suggestion, candidates: Mapping[int, CandidateOnScreen], decision: str, asks_strength: bool
    ) -> None:
        self.pk = row.pk
        self.kind = row.kind
        self.kind_label = row.get_kind_display()
        self.candidate = candidates.get(row.completion_id or 0)
        self.category = row.category
        self.quote = row.quote
        self.text = row.text
        self.severity = row.severity
        self.percent = None if row.confidence is None else round(100 * row.confidence)
        self.decision = decision if decision in SuggestionDecision.values else ""
        self.start, self.end = row.start, row.end
        self.ranks: dict[str, int] = {}
        self.preference = self.choice = ""
        if row.kind == SuggestionKind.PREFERENCE:
            ranked = {pk: rank for pk, rank in ranks_of(row).items() if pk in candidates}
            self.ranks = {candidates[pk].letter: rank for pk, rank in ranked.items()}
            letters = [candidate.letter for candidate in candidates.values()]
            rest = [letter for letter in letters if letter not in self.ranks] if self.ranks else []
            self.preference = with_rest(_order(self.ranks), rest)
            self.choice = _choice(row, ranked, candidates, asks_strength)

    def as_json(self) -> dict[str, Any]:
        """Return what label-help.js takes."""
        return {
            "id": self.pk,
            "kind": self.kind,
            "candidate": self.candidate.token if self.candidate else "",
            "category": self.category.key if self.category else "",
            "start": self.start,
            "end": self.end,
            "severity": self.severity,
            "text": self.text,
            "choice": self.choice,
            "ranks": self.ranks,
        }


class HelpOnScreen:
    """The suggestions of a final pass."""

    def __init__(
        self,
        reveal: HelpReveal,
        candidates: Sequence[CandidateOnScreen],
        tokens: Mapping[str, int],
        fields: Mapping[str, Any],
    ) -> None:
        comparison = reveal.assignment.comparison
        by_completion = {tokens[candidate.token]: candidate for candidate in candidates}
        decided = decided_in(fields)
        self.times = _last(fields.get("suggestion_times", ""))
        self.suggestions = [
            SuggestionOnScreen(row, by_completion, decided.get(row.pk, ""), comparison.project.ask_strength)
            for row in suggestions_for(comparison)
        ]

    @property
    def left(self) -> int:
        """The number of suggestions without a decision."""
        return sum(not suggestion.decision for suggestion in self.suggestions)


def _order(ranks: Mapping[str, int]) -> str:
    """The ranking in letters: "B > A = C"."""
    best_first = sorted(ranks, key=lambda letter: (ranks[letter], letter))
    return " > ".join(
        " = ".join(tier) for _rank, tier in groupby(best_first, key=lambda letter: ranks[letter])
    )


def _choice(
    row: Suggestion,
    ranks: Mapping[int, int],
    candidates: Mapping[int, CandidateOnScreen],
    asks_strength: bool,
) -> str:
    """The value of the preference as the form of a pair sends it; empty for a ranking of more."""
    if row.verdict != Verdict.RANKED:
        return row.verdict
    if len(candidates) != 2:
        return ""
    winner = candidates[min(ranks, key=lambda pk: ranks[pk])].token
    return f"win:{winner}:{SUGGESTED_STRENGTH}" if asks_strength else f"win:{winner}"


def _last(value: Any) -> str:
    return str(value[-1]) if isinstance(value, list) and value else str(value or "")
