"""Reviews, blind until the decision: no names of annotators or models."""

from collections.abc import Mapping
from dataclasses import dataclass

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role, Verdict
from annotation.errors import NotAllowed, Refusal
from annotation.models import Project, Review
from annotation.selectors.comparison import completion_ids_by_name
from annotation.selectors.reviews import ReviewPage, decided_reviews_of, open_reviews_for
from annotation.services.quality import AlreadyDecided, decide_review, may_review
from annotation.views.access import Request, project_page

# Form of a review: a verdict on all completions, by their names on the page.

_SHOWN_AT = {"verdict": "choice", "ranks": "choice", "comment": "comment"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewChoice:
    """One verdict that a reviewer can choose."""

    value: str
    label: str
    is_chosen: bool


class ReviewForm(forms.Form):
    """Reads a review's page; `verdict` and `ranks` are what the service takes."""

    # Cleaned in this order: a ranking is read with what `partial` says of the rest.
    partial = forms.BooleanField(required=False)
    choice = forms.CharField(required=False)
    comment = forms.CharField(required=False, max_length=20_000)

    def __init__(self, data: Mapping[str, str] | None, *, review: Review) -> None:
        super().__init__(data)
        self._ids = completion_ids_by_name(review)
        self._letters = dict(zip(self._ids, "ABCDEFGHIJKLMNOPQRSTUVWXYZ", strict=False))

    @property
    def choices(self) -> list[ReviewChoice]:
        """Return the choices, in the order of the page."""
        chosen = self.data.get("choice", "")
        return [
            ReviewChoice(value=value, label=label, is_chosen=value == chosen)
            for value, label in self._values_and_labels()
        ]

    @property
    def ranks_entered(self) -> list[tuple[str, str, list[tuple[str, bool]]]]:
        """For each answer of a ranking: field, letter, and the ranks with whether each is chosen."""
        if len(self._ids) < 3:
            return []
        numbers = [str(number) for number in range(1, len(self._ids) + 1)]
        return [
            (f"rank-{name}", self._letters[name], [(n, self.data.get(f"rank-{name}") == n) for n in numbers])
            for name in self._ids
        ]

    @property
    def verdict(self) -> str:
        """Only after `is_valid()`."""
        return str(self.cleaned_data["choice"][0])

    @property
    def ranks(self) -> dict[int, int]:
        """Completion id → rank. Only after `is_valid()`."""
        ranks: dict[int, int] = self.cleaned_data["choice"][1]
        return ranks

    def add_refusal(self, refusal: Refusal) -> None:
        """Show what the service refused, at the part of the page that it is about."""
        self.add_error(_SHOWN_AT.get(refusal.field or ""), refusal.message)

    def clean_comment(self) -> str:
        """Browsers send line ends as CRLF."""
        return str(self.cleaned_data["comment"]).replace("\r\n", "\n")

    def clean_choice(self) -> tuple[str, dict[int, int]]:
        """The verdict with its ranks by completion id."""
        choice: str = self.cleaned_data["choice"]
        ranks = {name: rank for name in self._ids if (rank := self.data.get(f"rank-{name}", ""))}
        allowed = {value for value, _label in self._values_and_labels()}
        if choice and choice not in allowed:
            raise ValidationError(_("This page no longer fits what is stored. Reload it and decide again."))
        if choice.startswith("win:"):
            winner = choice.removeprefix("win:")
            return Verdict.RANKED, {pk: 1 if name == winner else 2 for name, pk in self._ids.items()}
        if choice not in ("", Verdict.RANKED):
            if ranks:
                raise ValidationError(
                    _("You ranked responses and chose a no-preference option. Remove one of the two.")
                )
            return choice, {}
        return Verdict.RANKED, self._ranking(choice, ranks)

    def _ranking(self, choice: str, ranks: Mapping[str, str]) -> dict[int, int]:
        if len(self._ids) == 1 and choice:
            return dict.fromkeys(self._ids.values(), 1)
        if not ranks:
            raise ValidationError(_("Choose a preference, or “cannot judge”."))
        unranked = [self._letters[name] for name in self._ids if name not in ranks]
        if unranked and not (self.cleaned_data.get("partial") and len(self._ids) > 2):
            asked = (
                _("Rank %(letters)s too.")
                if len(unranked) == 1
                else _("Rank %(letters)s, or leave them unordered.")
            )
            raise ValidationError(asked % {"letters": ", ".join(unranked)})
        if not all(rank.isascii() and rank.isdigit() for rank in ranks.values()):
            raise ValidationError(_("Ranks are whole numbers from 1, the best."))
        return {self._ids[name]: int(rank) for name, rank in ranks.items()}

    def _values_and_labels(self) -> list[tuple[str, str]]:
        cannot = (str(Verdict.CANNOT_JUDGE), _("Cannot judge"))
        if len(self._ids) == 1:
            return [(str(Verdict.RANKED), _("Reviewed")), cannot]
        wins = [
            (f"win:{name}", _("%(letter)s is better") % {"letter": letter})
            for name, letter in self._letters.items()
            if len(self._ids) == 2
        ]
        if wins:
            ties = (_("Equal"), _("Both good"), _("Both bad"))
        else:
            wins = [(str(Verdict.RANKED), _("As ranked above"))]
            ties = (_("All equal"), _("All good"), _("All bad"))
        kinds = (Verdict.EQUAL, Verdict.BOTH_GOOD, Verdict.BOTH_BAD)
        return [*wins, *((str(kind), label) for kind, label in zip(kinds, ties, strict=True)), cannot]


_LISTED = 100


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def reviews(request: Request, project: Project) -> HttpResponse:
    """List the reviews that the user may decide, and the decided ones. For reviewers."""
    waiting = open_reviews_for(project, request.user)
    context = {
        "project": project,
        "waiting": waiting.select_related("comparison__prompt")[:_LISTED],
        "waiting_count": waiting.count(),
        "decided": decided_reviews_of(project).select_related("comparison__prompt", "reviewer")[:_LISTED],
    }
    return render(request, "annotation/reviews/queue.html", context)


@require_safe
@never_cache
@project_page(role=Role.REVIEWER)
def review(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a comparison with its votes and, once decided, the decision. For reviewers who did not vote."""
    return _show(request, project, _review(request, project, pk))


@require_POST
@project_page(role=Role.REVIEWER)
def decide(request: Request, project: Project, pk: int) -> HttpResponse:
    """Decide a review, once. For reviewers who did not vote."""
    review = _review(request, project, pk)
    form = ReviewForm(request.POST, review=review)
    if not form.is_valid():
        return _show(request, project, review, form=form, status=422)
    try:
        decide_review(
            review=review,
            reviewer=request.user,
            verdict=form.verdict,
            ranks=form.ranks,
            comment=form.cleaned_data["comment"],
        )
    except AlreadyDecided as refusal:
        messages.warning(request, refusal.message)
        return _show(request, project, refusal.review, status=409)
    except NotAllowed as refusal:
        raise PermissionDenied(refusal.message) from refusal
    except Refusal as refusal:
        form.add_refusal(refusal)
        return _show(request, project, review, form=form, status=422)
    messages.success(request, _("Decided. The votes stay as they were."))
    return redirect("review", project.slug, pk)


def _review(request: Request, project: Project, pk: int) -> Review:
    """Return the review in the address; while it is open, only to a reviewer who may decide it."""
    rows = Review.objects.select_related("comparison__prompt", "comparison__project", "reviewer")
    review = get_object_or_404(rows, pk=pk, comparison__project=project)
    if review.decided_at is None and not may_review(review, request.user):
        raise PermissionDenied
    return review


def _show(
    request: Request, project: Project, review: Review, *, form: ReviewForm | None = None, status: int = 200
) -> HttpResponse:
    context = {
        "project": project,
        "page": ReviewPage(review),
        "form": form or ReviewForm(None, review=review),
        "next": open_reviews_for(project, request.user).exclude(pk=review.pk).first(),
    }
    return render(request, "annotation/reviews/review.html", context, status=status)
