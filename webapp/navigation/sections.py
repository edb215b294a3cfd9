"""Sections and pages of a project, as its sidebar and its tabs show them.

A page is named by its URL; pages without the project in their address take it as `?project=`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Case, IntegerField, Subquery, Value, When
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from annotation.choices import Role, WithholdingState
from annotation.models import Project, User, Withholding
from annotation.selectors import access
from annotation.selectors.reviews import open_reviews_for
from training.choices import CAN_DECIDE, RoundState
from training.models import Round

# Work that waits for somebody in a project: the numbers beside the pages of the sidebar, in one query.

MOST = 99
"""The highest number that is shown; more are shown as "99+"."""


class _CountUpToMost(Subquery):
    """Count the rows of a query within another, `MOST` + 1 at most."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) counted)"
    output_field = IntegerField()


def _reviews(project: Project, user: User) -> Subquery:
    return _CountUpToMost(open_reviews_for(project, user).order_by().values("pk")[: MOST + 1])


def _quarantined(project: Project, _user: User) -> Subquery:
    pending = Withholding.objects.filter(comparison__project=project, state=WithholdingState.PENDING)
    return _CountUpToMost(pending.order_by().values("pk")[: MOST + 1])


def _rounds(project: Project, _user: User) -> Subquery:
    """Only the newest round can wait: the ones before it were followed by another."""
    waits = Case(When(state__in=(*CAN_DECIDE, RoundState.FAILED), then=Value(1)), default=Value(0))
    newest = Round.objects.filter(project=project).order_by("-number")
    return Subquery(newest.values(waits=waits)[:1], output_field=IntegerField())


COUNTS: Mapping[str, Callable[[Project, User], Subquery]] = {
    "reviews": _reviews,
    "withheld": _quarantined,
    "rounds": _rounds,
}
"""URL name of a page → how much waits there."""


def waiting_on(url_names: Collection[str], project: Project, user: User) -> Mapping[str, int]:
    """Return how much waits for `user` on each of these pages of the sidebar where something can.

    URL name → number, at most `MOST` + 1; one query, none where nothing can wait.
    """
    names = [name for name in url_names if name in COUNTS]
    if not names:
        return {}
    row = Project.objects.values_list(*(COUNTS[name](project, user) for name in names)).get(pk=project.pk)
    return dict(zip(names, (count or 0 for count in row), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of a project, and the role that opens it."""

    url: str
    label: str | Promise
    role: Role = Role.MANAGER
    by_query: bool = False
    """The project stands in the query, not in the path."""
    inner: tuple[str, ...] = ()
    """URL names of pages that are reached from this one."""
    needs: str = ""
    """Field of the project without which only its managers see the page; empty for none."""

    def address(self, project: Project) -> str:
        """Return the page's address for a project."""
        if self.by_query:
            return f"{reverse(self.url)}?project={project.slug}"
        return reverse(self.url, args=[project.slug])

    def role_in(self, project: Project) -> Role:
        """Return the role from which the page is in the sidebar of a project."""
        return Role.MANAGER if self.needs and not getattr(project, self.needs) else self.role

    def holds(self, url_name: str) -> bool:
        """Return True on this page and on those reached from it."""
        return url_name == self.url or url_name in self.inner


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """An entry of the sidebar, with one page or several, which are its tabs."""

    name: str
    label: str | Promise
    icon: str
    pages: tuple[Page, ...] = field(default=())


SECTIONS: tuple[Section, ...] = (
    Section(
        name="overview",
        label=_("Overview"),
        icon="house",
        pages=(Page(url="project", label=_("Overview"), role=Role.ANNOTATOR),),
    ),
    Section(
        name="label",
        label=_("Label"),
        icon="pencil-line",
        pages=(
            Page(url="label", label=_("Label"), role=Role.ANNOTATOR),
            Page(
                url="conversations",
                label=_("Conversations"),
                role=Role.ANNOTATOR,
                inner=("conversation-begin",),
            ),
            Page(url="my-work", label=_("My work"), role=Role.ANNOTATOR),
            Page(url="guidelines", label=_("Guidelines"), role=Role.ANNOTATOR),
        ),
    ),
    Section(
        name="data",
        label=_("Data"),
        icon="database",
        pages=(
            Page(url="data-comparisons", label=_("Comparisons"), inner=("data-act",)),
            Page(url="data-prompts", label=_("Prompts"), inner=("prompt", "prompt-new", "prompt-similar")),
            Page(url="near-duplicates", label=_("Near-duplicates")),
            Page(url="data-annotations", label=_("Annotations")),
            Page(url="data-responses", label=_("Responses")),
            Page(url="saved-views", label=_("Views"), inner=("saved-view-assign",)),
            Page(url="transfers", label=_("Import and export"), inner=("transfer",)),
            Page(url="sources", label=_("Sources")),
            Page(url="export-choose", label=_("Export")),
        ),
    ),
    Section(
        name="quality",
        label=_("Quality"),
        icon="gauge",
        pages=(
            Page(url="statistics", label=_("Statistics"), inner=("statistics-items", "statistics-item")),
            Page(url="annotators", label=_("Annotators"), inner=("annotator",)),
            Page(url="pay", label=_("Pay")),
            Page(url="reviews", label=_("Reviews"), role=Role.REVIEWER, inner=("review",)),
            Page(
                url="calibrations",
                label=_("Calibration"),
                role=Role.ANNOTATOR,
                needs="calibration_seals",
                inner=("calibration-new", "calibration", "calibration-item"),
            ),
            Page(url="gold", label=_("Gold items"), inner=("gold-answer",)),
            Page(url="withheld", label=_("Quarantined")),
            Page(url="judges", label=_("AI annotators"), inner=("judge", "served-model")),
            Page(url="suggestions", label=_("Suggestions")),
            Page(url="drift", label=_("Drift"), inner=("drift-items",)),
        ),
    ),
    Section(
        name="rounds",
        label=_("Rounds"),
        icon="repeat",
        pages=(
            Page(
                url="rounds",
                label=_("Rounds"),
                inner=("round", "round-draft", "round-recipe", "round-promote"),
            ),
            Page(url="live", label=_("Live learning")),
        ),
    ),
    Section(
        name="models",
        label=_("Models"),
        icon="box",
        pages=(
            Page(url="runs", label=_("Runs"), inner=("run", "runs-compare", "run-describe")),
            Page(
                url="checkpoints",
                label=_("Checkpoints"),
                by_query=True,
                inner=("checkpoint", "evaluation", "snapshot", "completion"),
            ),
            Page(
                url="base-models",
                label=_("Base models"),
                by_query=True,
                inner=("base-model", "base-model-add", "base-model-remove", "providers", "provider"),
            ),
        ),
    ),
    Section(
        name="compare",
        label=_("Compare"),
        icon="columns-2",
        pages=(
            Page(url="compare", label=_("Playground"), by_query=True, inner=("compare-shown",)),
            Page(
                url="prompt-sets",
                label=_("Prompt sets"),
                inner=("prompt-set", "prompt-set-create", "prompt-set-change"),
            ),
            Page(
                url="leaderboard", label=_("Leaderboard"), inner=("leaderboard-groups", "leaderboard-items")
            ),
            Page(url="arenas", label=_("Arenas")),
        ),
    ),
    Section(
        name="feedback",
        label=_("Applications"),
        icon="thumbs-up",
        pages=(
            Page(url="feedback", label=_("Requests and feedback"), inner=("feedback-request",)),
            Page(url="feedback-figures", label=_("Thumbs by day")),
            Page(url="feedback-incidents", label=_("Abuse")),
            Page(url="feedback-settings", label=_("Feedback settings"), inner=("feedback-patterns",)),
        ),
    ),
    Section(
        name="learn",
        label=_("Learn"),
        icon="book-open",
        pages=(
            Page(url="course", label=_("Lessons"), role=Role.ANNOTATOR, by_query=True, inner=("lesson",)),
            Page(url="course-class", label=_("Class")),
        ),
    ),
    Section(
        name="settings",
        label=_("Settings"),
        icon="settings",
        pages=(
            Page(url="project-settings", label=_("General"), inner=("guidelines-edit",)),
            Page(
                url="project-questions",
                label=_("Questions"),
                inner=(
                    *("criterion", "criterion-add", "criterion-change"),
                    *("project-question", "project-question-add", "project-question-change"),
                ),
            ),
            Page(
                url="rubrics",
                label=_("Rubrics"),
                inner=("rubric", "rubric-new", "rubric-edit", "rubric-drafts", "rubric-draft"),
            ),
            Page(
                url="project-categories",
                label=_("Categories"),
                inner=("category", "category-add", "category-change"),
            ),
            Page(
                url="conversation-settings",
                label=_("Conversations"),
                inner=("conversation-task", "conversation-task-add"),
            ),
            Page(url="project-preview", label=_("Preview")),
            Page(url="members", label=_("Members")),
            Page(url="allocation", label=_("Allocation")),
            Page(url="invitations", label=_("Invitations")),
            Page(url="panels", label=_("Panels"), inner=("panel-participants",)),
            Page(url="webhooks", label=_("Webhooks"), inner=("webhook", "webhook-delivery")),
            Page(url="project-file", label=_("Project file")),
            Page(url="project-audit", label=_("Activity")),
        ),
    ),
)


FULL_WIDTH = frozenset(
    {
        *("label", "submit", "revise", "skip", "flag"),
        *("conversation", "conversation-say", "conversation-write", "conversation-end"),
        *("arena-talk", "arena-talk-say", "arena-talk-vote", "arena-talk-end"),
    }
)
"""URL names of the labelling screen, also in a conversation, which has no sidebar."""


@dataclass(frozen=True, slots=True)
class Link:
    """A page as somebody sees it: its address, and whether it is the current one."""

    label: str | Promise
    address: str
    current: bool
    waiting: int = 0
    """Number of items waiting there for this person; more than `MOST` is not counted."""


@dataclass(frozen=True, slots=True)
class SectionEntry:
    """A section as somebody sees it, with the pages that they may open."""

    name: str
    label: str | Promise
    icon: str
    pages: Sequence[Link]
    current: bool

    @property
    def address(self) -> str:
        """Return the address of its first page on which something waits, else of its first page."""
        return next((page.address for page in self.pages if page.waiting), self.pages[0].address)

    @property
    def aria_current(self) -> str:
        """Return what `aria-current` says in the current section: the page itself, or that it is in here."""
        return "page" if len(self.pages) == 1 else "true"

    @property
    def waiting(self) -> str:
        """Return how much waits on its pages together, as text; empty for nothing."""
        together = sum(page.waiting for page in self.pages)
        return f"{MOST}+" if together > MOST else str(together or "")


def entries(project: Project, user: User, url_name: str) -> Iterator[SectionEntry]:
    """Yield the sections of which `user` may open a page; `url_name` tells the current one."""
    membership = access.membership_of(user, project)
    allowed = [
        [page for page in section.pages if access.allows(user, membership, page.role_in(project))]
        for section in SECTIONS
    ]
    waiting = waiting_on([page.url for pages in allowed for page in pages], project, user)
    for section, pages in zip(SECTIONS, allowed, strict=True):
        links = [
            Link(page.label, page.address(project), page.holds(url_name), waiting.get(page.url, 0))
            for page in pages
        ]
        if links:
            current = any(link.current for link in links)
            yield SectionEntry(section.name, section.label, section.icon, links, current)
