"""What stands on the labelling screen, gathered for its template.

Nothing here names a completion, its source or its place: a candidate is known by a token
that holds on this assignment's page alone.
"""

import string
import uuid
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import json_script
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation import selectors
from annotation.choices import AssignmentState, CategoryScope, Verdict
from annotation.configuration import configuration_of
from annotation.forms import STRENGTHS, Entered, JudgmentForm
from annotation.models import (
    Assignment,
    Category,
    Completion,
    Draft,
    Guideline,
    Project,
    User,
)
from annotation.own_work import progress_and_pace
from annotation.rendering import render_markdown
from annotation.services.assignments import tokens_of
from annotation.services.doubts import Doubt
from annotation.services.keys import keys_of, own_keys, shown_key
from annotation.views.screen_parts import CandidateOnScreen, Choice, CriterionOnScreen, Passage


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
    ) -> None:
        self.project = project
        self.assignment = assignment
        self.annotator = annotator
        self.entered = entered
        self.form = form
        self.doubts = doubts
        self.guideline = guideline or selectors.current_guideline(project)
        self.round_number = selectors.round_shown(assignment)
        self.after = after
        self.progress, self.pace = progress_and_pace(project, annotator, self.round_number)
        if after is not None and after.state == AssignmentState.LEASED:
            # It is met once the one before is submitted.
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
        categories = selectors.categories_of(project)
        self.keys = keys_of(annotator)
        marking = _of_scope(categories, CategoryScope.SPAN) if project.ask_span_flags else []
        self.span_categories, self.categories_without_key = _less_taken(marking, own_keys(annotator))
        self.missing_categories = (
            _of_scope(categories, CategoryScope.MISSING) if project.ask_missing_info else []
        )

    @cached_property
    def criteria(self) -> list[CriterionOnScreen]:
        """What every answer is rated on."""
        return [
            CriterionOnScreen(criterion, self.candidates, self.entered)
            for criterion in configuration_of(self.project).criteria
        ]

    @property
    def confirmed(self) -> str:
        """The doubts that were asked up to now, by key: what is sent again with them is meant so."""
        return " ".join(
            dict.fromkeys([*self.entered.confirmed.split(), *(doubt.key for doubt in self.doubts)])
        )

    @property
    def must_fill_in(self) -> bool:
        """Whether a page without a verdict has a part that cannot be left out: none is sent untouched."""
        return bool(self.criteria) or self.project.ask_demonstration

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was entered, refused or asked yet: the screen as it comes."""
        return (
            self.entered == Entered()
            and self.draft is None
            and self.form is None
            and not self.doubts
            and not self.is_revision
            and self.guideline == configuration_of(self.project).guideline
        )

    @cached_property
    def position(self) -> int:
        """Which of the round's comparisons this is for the annotator: 1 is the first."""
        return self.progress.shown_done + (0 if self.is_revision else 1)

    @cached_property
    def turns(self) -> list[tuple[str, SafeString]]:
        """The chat that the candidates answer: role and rendered content of every turn."""
        messages = self.assignment.comparison.prompt.messages
        return [(message["role"], render_markdown(message["content"])) for message in messages]

    @cached_property
    def evidence(self) -> list[Passage]:
        """The context passages."""
        passages: list[dict[str, Any]] = self.assignment.comparison.prompt.context
        return [
            Passage(
                passage["title"],
                f"{i}:",
                [(f"{i}:{j}", text) for j, text in enumerate(passage["sentences"])],
            )
            for i, passage in enumerate(passages)
        ]

    @cached_property
    def question(self) -> SafeString:
        """What the answers answer, rendered."""
        return render_to_string("annotation/question.html", {"screen": self})

    @cached_property
    def evidence_options(self) -> SafeString:
        """The context passages as options of a field in which none is chosen yet."""
        return render_to_string("annotation/evidence_options.html", {"evidence": self.evidence, "chosen": ""})

    @cached_property
    def guideline_markup(self) -> SafeString:
        """The rules, rendered."""
        configured = configuration_of(self.project)
        if self.guideline == configured.guideline:
            return configured.guideline_markup
        return render_markdown(self.guideline.text if self.guideline else "")

    @cached_property
    def previous(self) -> Assignment | None:
        """What was submitted last, to be opened again; not on its own page."""
        last = self.after or selectors.last_submitted(self.annotator, self.project)
        return None if last is None or last.pk == self.assignment.pk else last

    @cached_property
    def wins(self) -> list[list[Choice]]:
        """Of a pair: the choices that name each of both as the winner, in the order of the screen."""
        left, right = self.candidates
        if not self.project.ask_strength:
            return [
                [
                    Choice(
                        f"win:{left.token}",
                        _("%(letter)s is better") % {"letter": left.letter},
                        "1",
                        left.letter,
                    )
                ],
                [
                    Choice(
                        f"win:{right.token}",
                        _("%(letter)s is better") % {"letter": right.letter},
                        "2",
                        right.letter,
                    )
                ],
            ]
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
        """The verdicts that name no winner."""
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
        judgment = selectors.current_judgment(self.assignment) if self.is_revision else None
        return judgment.pk if judgment else 0

    @cached_property
    def signs(self) -> dict[str, list[str]]:
        """The key of every action as it stands on keyboards."""
        return {action: shown_key(key) for action, key in self.keys.items()}

    @cached_property
    def script_data(self) -> SafeString:
        """What label.js needs: the texts on which spans are counted, keys and categories."""
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
    """What was saved of it; nothing can be of a lease that was just written."""
    if assignment.fresh_completions is not None:
        return None
    draft = Draft.objects.filter(assignment=assignment).first()
    if draft is not None:
        # What is known of the assignment is not looked up again.
        draft.assignment = assignment
    return draft


def _of_scope(categories: list[Category], scope: CategoryScope) -> list[Category]:
    return [category for category in categories if category.scope == scope]


def _less_taken(
    categories: list[Category], own: Mapping[str, str]
) -> tuple[list[Category], list[tuple[Category, str]]]:
    """The categories without the keys that the person gave to something else; those, with their key."""
    taken = [(c, c.shortcut) for c in categories if c.shortcut and c.shortcut.lower() in own.values()]
    without = {category.pk for category, _key in taken}
    left: list[Category] = []
    for category in categories:
        # The project's categories are shared between pages: what is changed is a copy.
        mine = copy(category)
        mine.shortcut = "" if category.pk in without else category.shortcut
        left.append(mine)
    return left, taken
