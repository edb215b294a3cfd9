"""Allocation of work: which comparisons a member may get by the tags of their prompts. Reads only.

A rule of a project names a tag and a skill: comparisons of prompts with the tag go only to members who have
the skill. A prompt with several such tags asks for all of their skills; one without goes to everybody.
A comparison can be reserved for members: then nobody else gets it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from annotation.choices import AssignmentState, Purpose
from annotation.models import Assignment, Comparison, Membership, Project, User
from annotation.selectors.membership import membership_of


def tagged(field: str, tag: str) -> Q:
    """Rows whose list of tags has one, spelled in either way in which databases keep JSON."""
    spelled = (json.dumps(tag), json.dumps(tag, ensure_ascii=False))
    return Q(**{f"{field}__icontains": spelled[0]}) | Q(**{f"{field}__icontains": spelled[1]})


def closed_tags(project: Project, membership: Membership | None) -> tuple[str, ...]:
    """Return the tags whose comparisons this member does not get, for want of a skill.

    Rules bind members of every role; a superuser who is no member gets everything.
    """
    if membership is None:
        return ()
    return tuple(rule["tag"] for rule in project.allocation if rule["skill"] not in membership.skills)


def without_tags(tags: Sequence[str], field: str = "prompt__tags") -> Q:
    """Comparisons of prompts that have none of these tags; `field` leads to the tags."""
    condition = Q()
    for tag in tags:
        condition &= ~tagged(field, tag)
    return condition


def allotted_to(project: Project, annotator: User) -> Q:
    """Comparisons that rules and reservations let this person get. No query where there are no rules."""
    reserved = not_reserved_for_others(annotator)
    if not project.allocation:
        return reserved
    return reserved & without_tags(closed_tags(project, membership_of(annotator, project)))


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
    """Open comparisons of prompts with the tag."""
    members: int
    """Members who have the skill."""


def rule_rows(project: Project, memberships: Sequence[Membership]) -> list[RuleRow]:
    """Return the rules in order. One query each."""
    open_work = Comparison.objects.filter(project=project, purpose=Purpose.WORK, open_slots__gt=0)
    return [
        RuleRow(
            **rule,
            open=open_work.filter(tagged("prompt__tags", rule["tag"])).count(),
            members=sum(rule["skill"] in membership.skills for membership in memberships),
        )
        for rule in project.allocation
    ]


def submitted_by_member(project: Project) -> dict[int, int]:
    """Return the number of submitted assignments by the id of their annotator. One query."""
    submitted = Assignment.objects.filter(comparison__project=project, state=AssignmentState.SUBMITTED)
    return dict(submitted.order_by().values_list("annotator").annotate(Count("pk")))
