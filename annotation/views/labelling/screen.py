"""The content of the labelling screen, for its template.

Nothing here names a completion, its source or its position: a candidate has a token that holds on this
assignment's page only.
"""

import string
import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from html import unescape
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import json_script, strip_tags
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from annotation.choices import STRENGTHS, AssignmentState, CategoryScope, ContextDisplay, Verdict
from annotation.forms import Entered, JudgmentForm
from annotation.models import (
    Assignment,
    Category,
    Completion,
    Draft,
    Guideline,
    Project,
    User,
)
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.selectors.own_work import progress_and_pace
from annotation.services.assignments import tokens_of
from annotation.services.judgments.confirmations import Doubt
from annotation.services.people.shortcuts import keys_of, own_keys, shown_key
from annotation.text.references import refers_to_context
from annotation.text.rendering import render_markdown
from annotation.views.labelling.screen_parts import CandidateOnScreen, Choice, CriterionOnScreen, Passage

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
    ) -> None:
        self.project = project
        self.assignment = assignment
        self.annotator = annotator
        self.entered = entered
        self.form = form
        self.doubts = doubts
        self.is_preview = is_preview
        self.guideline = guideline or access.current_guideline(project)
        self.round_number = access.round_shown(assignment)
        self.after = after
        self.progress, self.pace = progress_and_pace(project, annotator, self.round_number)
        if after is not None and after.state == AssignmentState.LEASED:
            # The page is shown only after the previous comparison is submitted.
            self.progress = replace(self.progress, done=self.progress.done + 1)
        self.is_revision = assignment.state == AssignmentState.SUBMITTED
        self.draft = entered.draft or draft_of(assignment)
        self.idempotency_key = entered.idempotency_key or str(uuid.uuid4())
        tokens = tokens_of(assignment)
        completions = (
            {completion.pk: completion for completion in assignment.fresh_completions}
            if assignment.fresh_completions is not None
            else Completion.objects.in_bulk(tokens.values())
        )
        self.candidates = [
            CandidateOnScreen(letter, token, completions[pk], entered, len(tokens))
            for letter, (token, pk) in zip(string.ascii_uppercase, tokens.items(), strict=False)
        ]
        self.size = len(self.candidates)
        # A row that names an archived category keeps it.
        used = {row.category for row in entered.missing}
        categories = [c for c in access.categories_of(project) if not c.is_archived or c.key in used]
        self.keys = keys_of(annotator)
        marking = _of_scope(categories, CategoryScope.SPAN) if project.ask_span_flags else []
        self.span_categories, self.categories_without_key = _less_taken(marking, own_keys(annotator))
        self.missing_categories = (
            _of_scope(categories, CategoryScope.MISSING) if project.ask_missing_info else []
        )

    @cached_property
    def criteria(self) -> list[CriterionOnScreen]:
        return [
            CriterionOnScreen(criterion, self.candidates, self.entered)
            for criterion in configuration_of(self.project).asked_criteria
        ]

    @property
    def confirmed(self) -> str:
        """The keys of the doubts shown so far: a repeated submission confirms them."""
        return " ".join(
            dict.fromkeys([*self.entered.confirmed.split(), *(doubt.key for doubt in self.doubts)])
        )

    @property
    def must_fill_in(self) -> bool:
        """True if a page without a verdict has a required part."""
        return bool(self.criteria) or self.project.ask_demonstration

    @cached_property
    def position(self) -> int:
        """The number of this comparison in the annotator's round, from 1."""
        return self.progress.shown_done + (0 if self.is_revision else 1)

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """The prompt's messages: role and rendered content."""
        messages = self.assignment.comparison.prompt.messages
        return [(message["role"], render_markdown(message["content"])) for message in messages]

    @cached_property
    def question_in_short(self) -> str:
        """The last turn as plain text, for the strip that stays in sight."""
        _role, markup = self.turns[-1]
        return Truncator(" ".join(unescape(strip_tags(markup)).split())).chars(_SHORT)

    @cached_property
    def evidence(self) -> list[Passage]:
        passages: list[dict[str, Any]] = self.assignment.comparison.prompt.context
        return [
            Passage(
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
        last = self.after or access.last_submitted(self.annotator, self.project)
        return None if last is None or last.pk == self.assignment.pk else last

    @cached_property
    def wins(self) -> list[list[Choice]]:
        """For each candidate of a pair, the choices in which it wins, in screen order."""
        if not self.project.ask_strength:
            better = _("%(letter)s is better")
            return [
                [Choice(f"win:{c.token}", better % {"letter": c.letter}, str(key), c.letter)]
                for key, c in enumerate(self.candidates, start=1)
            ]
        left, right = self.candidates
        return [
            [self._win(left, strength, 5 - strength) for strength in (4, 3, 2, 1)],
            [self._win(right, strength, 5 + strength) for strength in (1, 2, 3, 4)],
        ]

    @staticmethod
    def _win(candidate: CandidateOnScreen, strength: int, key: int) -> Choice:
        words = _("%(letter)s is %(strength)s") % {
            "letter": candidate.letter,
            "strength": STRENGTHS[strength],
        }
        return Choice(f"win:{candidate.token}:{strength}", words, str(key), candidate.letter, strength)

    @cached_property
    def no_wins(self) -> list[Choice]:
        """The choices without a winner."""
        if not self.project.ask_verdict:
            cannot = Choice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"])
            looked = Choice(Verdict.NOT_ASKED, _("Looked through and marked"), "1")
            return [cannot] if self.must_fill_in else [looked, cannot]
        if self.size == 1:
            return [
                Choice(Verdict.RANKED, _("Looked through and marked"), "1"),
                Choice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"]),
            ]
        is_pair = self.size == 2
        return [
            Choice(Verdict.EQUAL, _("Equal") if is_pair else _("All equal"), self.keys["equal"]),
            Choice(Verdict.BOTH_GOOD, _("Both good") if is_pair else _("All good"), self.keys["both_good"]),
            Choice(Verdict.BOTH_BAD, _("Both bad") if is_pair else _("All bad"), self.keys["both_bad"]),
            Choice(Verdict.CANNOT_JUDGE, _("Cannot judge"), self.keys["cannot_judge"]),
        ]

    @cached_property
    def stands_on(self) -> int:
        """The judgment that this page would supersede; 0 for none."""
        judgment = access.current_judgment(self.assignment) if self.is_revision else None
        return judgment.pk if judgment else 0

    @cached_property
    def signs(self) -> dict[str, list[str]]:
        """The key of every action as printed on keyboards."""
        return {action: shown_key(key) for action, key in self.keys.items()}

    @cached_property
    def script_data(self) -> SafeString:
        """Data for label.js: the texts in which spans are counted, keys and categories."""
        data = {
            "candidates": [
                {"token": c.token, "letter": c.letter, "source": c.source, "textHash": c.text_hash}
                for c in self.candidates
            ],
            "keys": self.keys,
            "categories": [
                {
                    "key": c.key,
                    "label": c.label,
                    "shortcut": c.shortcut.lower(),
                    "severitySteps": c.severity_steps,
                    "polarity": c.polarity,
                }
                for c in self.span_categories
            ],
        }
        return json_script(data, "screen-data")


def draft_of(assignment: Assignment) -> Draft | None:
    """Return the saved draft; None without a query for a new lease."""
    if assignment.fresh_completions is not None:
        return None
    draft = Draft.objects.filter(assignment=assignment).first()
    if draft is not None:
        draft.assignment = assignment
    return draft


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
