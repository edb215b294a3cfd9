"""Saved views: save, change, delete, and assign the comparisons of one to a member as a queue."""

from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.http import QueryDict
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from annotation.choices import SPENT_STATES, Purpose, WithholdingState
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Project,
    QueuedComparison,
    Review,
    SavedView,
    User,
    ViewQueue,
    bulk,
)
from annotation.selectors import access
from annotation.selectors.allocation import not_reserved_for_others
from annotation.selectors.tables.data import COMPARISONS, TABLES
from annotation.selectors.tables.table import View
from annotation.services import audit
from annotation.services.bulk import MOST_OVERLAP, MOST_ROWS, Effect

LONGEST_NAME = 120
LONGEST_QUERY = 4_000


@transaction.atomic
def save_view(
    *, project: Project, owner: User, name: str, table: str, query: str, is_shared: bool = False
) -> SavedView:
    """Save what an address shows of a table. Under a name that the owner has already, replace it.

    Refuses an unknown table, an empty or long name, conditions that cannot be met, and columns that are not
    there.
    """
    access.refuse_unless_manager(owner, project, "manager_saves_views")
    if table not in TABLES:
        raise Refusal("unknown_table", _("There is no table %(table)s."), field="table", table=table[:40])
    name = _name(name)
    view = SavedView.objects.select_for_update().filter(project=project, owner=owner, name=name).first()
    if view is None:
        view = SavedView(project=project, owner=owner, name=name)
    view.table, view.query, view.is_shared = table, checked_query(project, table, query), is_shared
    view.save()
    audit.record(
        action="view.save",
        subject=view,
        actor=owner,
        project=project,
        details={"table": table, "query": view.query, "shared": is_shared},
    )
    return view


def checked_query(project: Project, table: str, query: str) -> str:
    """Return the query as the table's address has it. Refuses conditions that cannot be met."""
    shown = View(TABLES[table], project, QueryDict(query[: LONGEST_QUERY + 1]))
    if shown.fault is not None:
        raise shown.fault
    if len(query) > LONGEST_QUERY or len(shown.address_query) > LONGEST_QUERY:
        raise Refusal(
            "view_too_long",
            _("The filters of a view have at most %(most)s characters. Leave some out."),
            field="query",
            most=LONGEST_QUERY,
        )
    return shown.address_query


@transaction.atomic
def change_view(*, view: SavedView, changed_by: User, name: str, query: str, is_shared: bool) -> SavedView:
    """Give a view another name or query, or share it. For its owner. Queues keep their comparisons."""
    _require_owner(view, changed_by)
    view.name, view.is_shared = _name(name), is_shared
    view.query = checked_query(view.project, view.table, query)
    try:
        with transaction.atomic():
            view.save()
    except IntegrityError:
        raise Refusal(
            "view_name_taken", _("You have a view of that name. Choose another."), field="name"
        ) from None
    audit.record(
        action="view.change",
        subject=view,
        actor=changed_by,
        project=view.project,
        details={"query": view.query, "shared": is_shared},
    )
    return view


@transaction.atomic
def delete_view(*, view: SavedView, deleted_by: User) -> None:
    """Delete a view. For its owner. Queues that were made of it stay."""
    _require_owner(view, deleted_by)
    audit.record(action="view.delete", subject=view, actor=deleted_by, project=view.project)
    view.delete()


def assign_view(
    *, view: SavedView, member: User, assigned_by: User, dry_run: bool = False
) -> tuple[ViewQueue | None, Effect]:
    """Assign the comparisons that a view has now to a member, as a queue; return it with its effect.

    Until the queue is done the member gets these comparisons alone. One that has all its annotations gets one
    more place, for the member. Skipped are those that the member has had, gold, qualification and quarantined
    ones, and those that a review decided or that are reserved for others.
    """
    project = view.project
    access.refuse_unless_manager(assigned_by, project, "manager_assigns_views")
    if view.table != COMPARISONS.name:
        raise Refusal(
            "view_of_no_comparisons", _("Only a view of comparisons can be assigned."), field="view"
        )
    if not project.memberships.filter(user=member).exists():
        raise Refusal(
            "unknown_members",
            _("No member of this project has the name %(names)s. Names stand with commas between."),
            field="member",
            names=member.username,
        )
    shown = View(COMPARISONS, project, QueryDict(view.query))
    if shown.fault is not None:
        raise shown.fault
    # Looked up before the transaction: a filter may read every comparison, and nobody waits for that.
    keys = list(shown.matching.order_by("pk").values_list("pk", flat=True)[: MOST_ROWS + 1])
    if len(keys) > MOST_ROWS:
        raise Refusal(
            "too_many_selected_rows",
            _("An action changes at most %(most)s rows; these are more. Narrow the filters."),
            most=MOST_ROWS,
        )
    with transaction.atomic():
        chosen, opened, effect = _choose(project, keys, member)
        if dry_run or not chosen:
            return None, effect
        return _write_queue(view, member, assigned_by, chosen, opened), effect


_WHY: Sequence[tuple[str, str | Promise]] = (
    ("work", gettext_lazy("gold, qualification or quarantined")),
    ("had", gettext_lazy("this person has had it")),
    ("queued", gettext_lazy("in a queue of this person already")),
    ("decided", gettext_lazy("decided by a review")),
    ("reserved", gettext_lazy("reserved for others")),
    ("full", gettext_lazy("at the highest overlap")),
)


def _choose(project: Project, keys: Sequence[int], member: User) -> tuple[list[int], list[int], Effect]:
    """Hold the comparisons; return those of the queue, those that get a place more, and the effect."""
    rows = Comparison.objects.filter(project=project, pk__in=keys).order_by("pk")
    list(rows.select_for_update(of=("self",)).values_list("pk", flat=True))
    of_comparison = {"comparison": OuterRef("pk")}
    had = Assignment.objects.filter(**of_comparison, annotator=member, state__in=SPENT_STATES)
    queued = QueuedComparison.objects.filter(
        **of_comparison, queue__member=member, queue__ended_at__isnull=True
    )
    free = Q(withholding__isnull=True) | Q(withholding__state=WithholdingState.RELEASED)
    conditions = {
        "work": Q(purpose=Purpose.WORK) & free,
        "had": ~Exists(had),
        "queued": ~Exists(queued),
        "decided": ~Exists(Review.objects.filter(**of_comparison, decided_at__isnull=False)),
        "reserved": not_reserved_for_others(member),
        "full": Q(open_slots__gt=0) | Q(overlap__lt=MOST_OVERLAP),
    }
    chosen, opened = [], []
    skipped: dict[str | Promise, int] = {}
    marked = rows.annotate(**{f"is_{name}": condition for name, condition in conditions.items()})
    names = [f"is_{name}" for name, _why in _WHY]
    for pk, open_slots, *met in marked.values_list("pk", "open_slots", *names):
        why = next((why for is_met, (_name, why) in zip(met, _WHY, strict=True) if not is_met), None)
        if why is not None:
            skipped[why] = skipped.get(why, 0) + 1
            continue
        chosen.append(pk)
        if not open_slots:
            opened.append(pk)
    return chosen, opened, Effect(changed=len(chosen), skipped=skipped)


def _write_queue(
    view: SavedView, member: User, assigned_by: User, chosen: Sequence[int], opened: Sequence[int]
) -> ViewQueue:
    project = view.project
    queue = ViewQueue.objects.create(
        project=project, view=view, name=view.name, member=member, created_by=assigned_by
    )
    has_more = set(opened)
    bulk.insert(
        QueuedComparison,
        ["queue_id", "comparison_id", "is_opened"],
        ((queue.pk, pk, pk in has_more) for pk in chosen),
    )
    Comparison.objects.filter(pk__in=opened).update(overlap=F("overlap") + 1, open_slots=F("open_slots") + 1)
    reserved = Comparison.reserved_for.through
    known = set(
        reserved.objects.filter(comparison__in=opened, user=member).values_list("comparison", flat=True)
    )
    bulk.insert(reserved, ["comparison_id", "user_id"], ((pk, member.pk) for pk in opened if pk not in known))
    Project.objects.filter(pk=project.pk).update(
        has_queues=True, **({"has_reservations": True} if opened else {})
    )
    audit.record(
        action="view.assign",
        subject=view,
        actor=assigned_by,
        project=project,
        details={
            "member": member.username,
            "comparisons": len(chosen),
            "opened": len(opened),
            "query": view.query,
        },
    )
    return queue


@transaction.atomic
def end_queue(*, queue: ViewQueue, ended_by: User) -> int:
    """End a queue; return how many places it takes back: those that it opened and that nobody took.

    Annotations stay, and what the member labels now stays theirs.
    """
    access.refuse_unless_manager(ended_by, queue.project, "manager_assigns_views")
    queue = ViewQueue.objects.select_for_update().select_related("project").get(pk=queue.pk)
    if queue.ended_at is not None:
        raise Refusal("queue_ended", _("The queue has ended already."), field="queue")
    ViewQueue.objects.filter(pk=queue.pk).update(ended_at=timezone.now())
    opened = _opened(queue)
    list(opened.order_by("pk").select_for_update(of=("self",)).values_list("pk", flat=True))
    unused = list(opened.filter(open_slots__gt=0, overlap__gt=1).order_by("pk").values_list("pk", flat=True))
    Comparison.objects.filter(pk__in=unused).update(overlap=F("overlap") - 1, open_slots=F("open_slots") - 1)
    Comparison.reserved_for.through.objects.filter(comparison__in=opened, user=queue.member_id).delete()
    audit.record(
        action="view.end_queue",
        subject=queue,
        actor=ended_by,
        project=queue.project,
        details={"member": queue.member.username, "places": len(unused)},
    )
    return len(unused)


def _opened(queue: ViewQueue) -> QuerySet[Comparison]:
    in_queue = QueuedComparison.objects.filter(queue=queue, is_opened=True, comparison=OuterRef("pk"))
    return Comparison.objects.filter(Exists(in_queue), project=queue.project_id)


def _name(name: str) -> str:
    name = " ".join(name.split())
    if not name or len(name) > LONGEST_NAME:
        raise Refusal(
            "invalid_view_name",
            _("Enter a name of 1 to %(most)s characters."),
            field="name",
            most=LONGEST_NAME,
        )
    return name


def _require_owner(view: SavedView, user: User) -> None:
    access.refuse_unless_manager(user, view.project, "manager_saves_views")
    if view.owner_id != user.pk and not user.is_superuser:
        raise NotAllowed("owner_changes_view", _("Only the owner of a view changes it. Save a copy."))
