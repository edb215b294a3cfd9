"""The leaderboard: ratings of all that wrote answers, from every vote; each number leads to its items."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_safe

from annotation.choices import Role
from annotation.forms import offer
from annotation.models import Project
from annotation.statistics.plots import Axis, PlottedInterval
from annotation.views.access import Request, project_page
from training.models import Slice, Voters
from training.selectors.leaderboard import (
    EVERYONE,
    HUMANS,
    BoardChoice,
    board_of,
    groups_of,
    items_behind,
    names_of,
    values_of,
)
from training.services.leaderboard import waiting

_ON_A_PAGE = 50
_MOST_PAGES = 200
_SEPARATOR = ":"


class LeaderboardForm(forms.Form):
    """Form of the leaderboard's votes and controls. Unreadable values count as left out."""

    part = forms.ChoiceField(required=False, label=gettext_lazy("Votes"))
    voters = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Of"),
        choices=[
            ("", gettext_lazy("people and guests")),
            *Voters.choices,
            ("all", gettext_lazy("people, guests and models that judge")),
        ],
    )
    both_bad = forms.ChoiceField(
        required=False,
        label=gettext_lazy("Both bad"),
        choices=[("", gettext_lazy("is a tie")), ("out", gettext_lazy("is left out"))],
    )
    style = forms.BooleanField(required=False, label=gettext_lazy("Control for length and position"))

    def __init__(self, data: Mapping[str, Any], *, project: Project) -> None:
        super().__init__(data)
        parts: list[tuple[str, str]] = [("", _("all of the project"))]
        for part, values in values_of(project).items():
            for value in values:
                parts.append((f"{part}{_SEPARATOR}{value}", _part_name(part, value)))
        offer(self, "part", parts)
        self.is_valid()

    @property
    def choice(self) -> BoardChoice:
        """The votes that are meant."""
        values = self.cleaned_data
        part, _, value = (values.get("part") or Slice.ALL.value).partition(_SEPARATOR)
        voters = values.get("voters")
        by_name = {"": HUMANS, "all": EVERYONE}
        return BoardChoice(
            part=part,
            value=value,
            voters=by_name.get(voters or "") or frozenset([str(voters)]),
            both_bad=values.get("both_bad") != "out",
            style=bool(values.get("style")) and part == Slice.ALL,
        )

    @property
    def query(self) -> dict[str, str]:
        """The choice as a part of an address."""
        names = ("part", "voters")
        return {name: value for name in names if (value := self.cleaned_data.get(name))}


def _part_name(part: str, value: str) -> str:
    if part == Slice.ROUND:
        return _("Round %(number)s") % {"number": value}
    if part == Slice.TAG:
        return _("Tag: %(tag)s") % {"tag": value}
    return _("Arenas")


@dataclass(frozen=True, kw_only=True, slots=True)
class _BoardRow:
    """One line of the board as it is written."""

    standing: Any
    name: str
    checkpoint_url: str
    items_url: str
    place: PlottedInterval | None


@require_safe
@project_page(role=Role.MANAGER)
def leaderboard(request: Request, project: Project) -> HttpResponse:
    """Ratings with intervals, win rates, neighbours, Elo; of all or of a part of the votes. For managers."""
    form = LeaderboardForm(request.GET, project=project)
    board = board_of(project, form.choice)
    names = names_of({standing.source for standing in board.standings})
    items = _Items(project, form)
    rated = [standing for standing in board.standings if standing.is_rated]
    low = min((standing.low for standing in rated), default=0.0)
    high = max((standing.high for standing in rated), default=1.0)
    axis = Axis(start=low, end=max(high, low + 1.0))
    rows = [
        _BoardRow(
            standing=standing,
            name=names[standing.source][0],
            checkpoint_url=_checkpoint_url(names[standing.source][1]),
            items_url=items.url(standing.source),
            place=axis.interval(standing.rating, standing.low, standing.high) if standing.is_rated else None,
        )
        for standing in board.standings
    ]
    context = {
        "project": project,
        "form": form,
        "board": board,
        "rows": rows,
        "matrix": [
            (
                names[line[0].left][0],
                [(cell, items.url(cell.left, cell.right) if cell.votes else "") for cell in line],
            )
            for line in board.matrix
        ],
        "columns": [names[line[0].left][0] for line in board.matrix],
        "shown": len(board.matrix),
        "waiting": waiting(project),
        "tie_percent": None if board.tie is None else round(100 * board.tie),
        "unrated": len(board.standings) - len(rated),
        "has_elo": any(standing.elo is not None for standing in board.standings),
        "parts": values_of(project),
    }
    return render(request, "training/leaderboard.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def leaderboard_groups(request: Request, project: Project) -> HttpResponse:
    """Ratings within each round, or within each tag. For managers."""
    part = Slice.TAG if request.GET.get("by") == "tag" else Slice.ROUND
    form = LeaderboardForm(request.GET, project=project)
    groups = groups_of(project, part, form.choice.voters)
    if part == Slice.ROUND:
        groups = tuple(sorted(groups, key=lambda group: int(group.value)))
    names = names_of({source for group in groups for source in group.ratings})
    ordered = sorted(names, key=lambda source: names[source][0].casefold())
    context = {
        "project": project,
        "by_tag": part == Slice.TAG,
        "groups": [
            (
                _part_name(part, group.value),
                f"{reverse('leaderboard', args=[project.slug])}?"
                + urlencode({"part": f"{part}{_SEPARATOR}{group.value}"}),
                group,
            )
            for group in groups
        ],
        "rows": [
            (
                names[source][0],
                [
                    (group.ratings[source], group.is_rated(source)) if source in group.ratings else None
                    for group in groups
                ],
            )
            for source in ordered
        ],
    }
    return render(request, "training/leaderboard_groups.html", context)


@require_safe
@project_page(role=Role.MANAGER)
def leaderboard_items(request: Request, project: Project) -> HttpResponse:
    """The comparisons behind a number of the leaderboard. For managers."""
    form = LeaderboardForm(request.GET, project=project)
    left, right = _number(request.GET.get("left")), _number(request.GET.get("right"))
    matches = items_behind(project, form.choice, left=left or 0, right=right).select_related("prompt")
    # One row more tells whether there is another page; counting them all would cost more than the page.
    page = min(max(_number(request.GET.get("page")) or 1, 1), _MOST_PAGES)
    comparisons = list(matches[(page - 1) * _ON_A_PAGE : page * _ON_A_PAGE + 1])
    names = names_of({source for source in (left, right) if source})
    query = request.GET.copy()
    query.pop("page", None)
    context = {
        "project": project,
        "before": page - 1,
        "next": page + 1 if len(comparisons) > _ON_A_PAGE and page < _MOST_PAGES else 0,
        "comparisons": comparisons[:_ON_A_PAGE],
        "query": query.urlencode(),
        "left": names.get(left or 0, ("", ""))[0],
        "right": names.get(right or 0, ("", ""))[0],
    }
    return render(request, "training/leaderboard_items.html", context)


class _Items:
    """Addresses of the comparisons behind numbers; made by hand, because a matrix has hundreds."""

    def __init__(self, project: Project, form: LeaderboardForm) -> None:
        self._base = reverse("leaderboard-items", args=[project.slug])
        self._query = form.query

    def url(self, left: int, right: int | None = None) -> str:
        about = {"left": left} | ({"right": right} if right is not None else {})
        return f"{self._base}?{urlencode(self._query | about)}"


def _checkpoint_url(name: str) -> str:
    return reverse("checkpoint", args=[name]) if name else ""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and len(text) < 18 else None
