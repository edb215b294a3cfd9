"""Allocation of work: which comparisons a member may get by the tags of their prompts. Reads only.

A rule of a project names a tag and a skill: comparisons of prompts with the tag, or a share of them, go only
to members who have the skill. A prompt with several such tags asks for all of their skills; one without goes
to everybody.
A comparison can be reserved for members: then nobody else gets it.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.lookups import LessThan

from annotation.choices import SPENT_STATES, AssignmentState, Purpose
from annotation.models import (
    Assignment,
    Comparison,
    Membership,
    Project,
    QueuedComparison,
    User,
    ViewQueue,
)
from annotation.models.people import ALL

# Memberships: a person's row in a project, and the groups of its annotators. Reads only.


def membership_of(user: User | AnonymousUser, project: Project) -> Membership | None:
    """The row that makes `user` a member of `project`, or None for an outsider."""
    if not user.is_authenticated:
        return None
    if project.visitor is not None and project.visitor[0] == user.pk:
        return project.visitor[1]
    return Membership.objects.filter(user=user, project=project).first()


FEWEST_IN_GROUP = 3
"""Annotators of a group from which on training data name it: of fewer it would be a person's taste."""


def groups_of_annotators(project: Project, annotators: Iterable[int]) -> dict[int, str]:
    """Return the group of each of these annotators, by id, where enough of them are in it."""
    groups = dict(
        Membership.objects.filter(project=project, user__in=set(annotators), user__is_machine=False)
        .exclude(group="")
        .values_list("user_id", "group")
    )
    sizes = Counter(groups.values())
    return {annotator: group for annotator, group in groups.items() if sizes[group] >= FEWEST_IN_GROUP}


# ── Allocation ──


def tagged(field: str, tag: str) -> Q:
    """Rows whose list of tags has one, spelled in either way in which databases keep JSON."""
    spelled = (json.dumps(tag), json.dumps(tag, ensure_ascii=False))
    return Q(**{f"{field}__icontains": spelled[0]}) | Q(**{f"{field}__icontains": spelled[1]})


class Closed(NamedTuple):
    """A tag whose comparisons somebody does not get, with the share in percent that is meant."""

    tag: str
    share: int

    def condition(self, path: str = "") -> Q:
        """Comparisons that are closed by it; `path` leads to the comparison. Which ones the share holds is
        drawn once, when a comparison is made."""
        has_tag = tagged(f"{path}prompt__tags", self.tag)
        return has_tag if self.share == ALL else has_tag & Q(LessThan(F(f"{path}shuffle") % 100, self.share))


def closed_rules(project: Project, membership: Membership | None) -> tuple[Closed, ...]:
    """Return what this member does not get, for want of a skill.

    Rules bind members of every role; a superuser who is no member gets everything.
    """
    if membership is None:
        return ()
    return tuple(
        Closed(rule["tag"], rule.get("share", ALL))
        for rule in project.allocation
        if rule["skill"] not in membership.skills
    )


def open_under(closed: Sequence[Closed], path: str = "") -> Q:
    """Comparisons that none of these rules closes; `path` leads to the comparison."""
    condition = Q()
    for rule in closed:
        condition &= ~rule.condition(path)
    return condition


def allotted_to(project: Project, annotator: User) -> Q:
    """Comparisons that rules, reservations and queues let this person get.

    No query where the project has neither rules nor queues.
    """
    allotted = not_reserved_for_others(annotator) if project.has_reservations else Q()
    if project.allocation:
        allotted &= open_under(closed_rules(project, membership_of(annotator, project)))
    if project.has_queues and (queue := queue_for(project, annotator, allotted)) is not None:
        allotted &= Q(Exists(in_queue(queue)))
    return allotted


def queue_for(project: Project, annotator: User, allotted: Q) -> int | None:
    """Return the oldest queue that has an open comparison for this person; None without one.

    allotted: what rules and reservations let them get.
    """
    queues = ViewQueue.objects.filter(member=annotator, project=project, ended_at__isnull=True)
    for pk in queues.order_by("pk").values_list("pk", flat=True):
        had = Assignment.objects.filter(
            comparison=OuterRef("pk"), annotator=annotator, state__in=SPENT_STATES
        )
        left = Comparison.objects.filter(
            allotted, ~Exists(had), Exists(in_queue(pk)), project=project, open_slots__gt=0
        )
        if left.exists():
            return pk
    return None


def in_queue(queue: int) -> QuerySet[QueuedComparison]:
    """Return the row of a queue for the comparison of the outer query."""
    return QueuedComparison.objects.filter(comparison=OuterRef("pk"), queue=queue)


def reservations(comparison: str = "pk") -> QuerySet[Any]:
    """Return the reservations of the comparison to which a field of the outer query leads."""
    through = Comparison.reserved_for.through
    return through.objects.filter(comparison=OuterRef(comparison))


def not_reserved_for_others(annotator: User, comparison: str = "pk") -> Q:
    """Comparisons that are reserved for nobody, or for this person among others."""
    named = reservations(comparison)
    return Q(~Exists(named)) | Q(Exists(named.filter(user=annotator)))


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleRow:
    """A rule with what it concerns right now."""

    tag: str
    skill: str
    open: int
    """Open comparisons that the rule reserves."""
    members: int
    """Members who have the skill."""
    share: int = ALL
    """Percentage of the comparisons with the tag."""


def rule_rows(project: Project, memberships: Sequence[Membership]) -> list[RuleRow]:
    """Return the rules in order. One query each."""
    open_work = Comparison.objects.filter(project=project, purpose=Purpose.WORK, open_slots__gt=0)
    return [
        RuleRow(
            **rule,
            open=open_work.filter(Closed(rule["tag"], rule.get("share", ALL)).condition()).count(),
            members=sum(rule["skill"] in membership.skills for membership in memberships),
        )
        for rule in project.allocation
    ]


def submitted_by_member(project: Project) -> dict[int, int]:
    """Return the number of submitted assignments by the id of their annotator. One query."""
    submitted = Assignment.objects.filter(comparison__project=project, state=AssignmentState.SUBMITTED)
    return dict(submitted.order_by().values_list("annotator").annotate(Count("pk")))
