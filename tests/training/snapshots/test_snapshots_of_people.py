"""Annotators in a snapshot: the order on their screens, and groups of three or more."""

import pytest

from annotation.models import Membership, Project, User
from tests import factories
from training.contract.snapshot import read_snapshot
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def judged_by(project: Project, people: list[User]) -> None:
    """Everyone prefers the first of two responses to one training prompt."""
    Project.objects.update(overlap=len(people))
    project.refresh_from_db()
    prompt = factories.make_prompt(project, "How long?", split="train")
    comparison = factories.make_comparison(project, prompt=prompt)
    for person in people:
        factories.make_judgment(comparison, person)


def test_a_row_names_the_order_in_which_its_annotator_saw_the_completions(project: Project, alice: User):
    judged_by(project, [alice])
    (judgment,) = project.comparisons.get().judgments.all()
    (row,) = read_snapshot(freeze_snapshot(project=project, rounds=[1]).path)
    assert row.shown == tuple(map(str, judgment.assignment.display_order))
    assert sorted(row.shown) == sorted(completion.id for completion in row.completions)


def test_a_group_is_named_from_three_annotators_on(project: Project, alice: User, bob: User):
    carl, dora, emil = (factories.make_user(name) for name in ("carl", "dora", "emil"))
    for person in (carl, dora, emil):
        Membership.objects.create(project=project, user=person)
    Membership.objects.filter(user__in=[alice, bob, carl]).update(group="nurses")
    Membership.objects.filter(user__in=[dora, emil]).update(group="doctors")
    judged_by(project, [alice, bob, carl, dora, emil])

    rows = list(read_snapshot(freeze_snapshot(project=project, rounds=[1]).path))

    groups = {row.annotator: row.group for row in rows}
    assert {groups[str(person.pseudonym)] for person in (alice, bob, carl)} == {"nurses"}
    assert {groups[str(person.pseudonym)] for person in (dora, emil)} == {""}
