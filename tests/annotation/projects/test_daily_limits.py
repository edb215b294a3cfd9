"""Daily limits of members: they replace the project's, on the page and in the API."""

import uuid
from collections.abc import Callable

from django.test import Client
from django.urls import reverse

from annotation.choices import Verdict, WhyNothing
from annotation.models import AuditEntry, Comparison, Project, User
from annotation.selectors.eligibility import why_nothing
from annotation.services.assignments.next import assign_next
from annotation.services.judgments.submission import submit_judgment
from annotation.services.projects.invitations import change_allotment
from tests import factories
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.refusals import refused

ClientOf = Callable[[User], Client]


def test_a_daily_limit_of_a_member_replaces_that_of_the_project(
    project: Project, alice: User, bob: User, carol: User, client_of: ClientOf
):
    for _ in range(4):
        factories.make_comparison(project)
    project.daily_limit = 2
    project.save()
    Comparison.objects.update(overlap=2, open_slots=2)
    membership = project.memberships.get(user=alice)
    client_of(carol).post(
        reverse("member", args=[project.slug, membership.pk]), {"role": "annotator", "daily_limit": "1"}
    )

    def judge(annotator: User) -> int:
        done = 0
        while (leased := assign_next(project=project, annotator=annotator)) is not None:
            ids = leased.comparison.candidates.order_by("index").values_list("completion_id", flat=True)
            submit_judgment(
                assignment=leased,
                annotator=annotator,
                answer=judgment_record(verdict=Verdict.RANKED, ranks=dict(zip(ids, [1, 2], strict=True))),
                idempotency_key=uuid.uuid4(),
            )
            done += 1
        return done

    # Alice has one a day, Bob the two of the project.
    assert (judge(alice), judge(bob)) == (1, 2)
    assert why_nothing(project, alice) == WhyNothing.DAY_IS_FULL
    text = client_of(alice).get(reverse("label", args=[project.slug])).content.decode()
    assert "You have reached your limit of 1 comparisons a day here." in text
    assert "1 of 1" in client_of(alice).get(reverse("my-work", args=[project.slug])).content.decode()


def test_a_daily_limit_is_changed_recorded_and_emptied(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    membership = project.memberships.get(user=alice)
    address = reverse("member", args=[project.slug, membership.pk])
    client = client_of(carol)

    def limit_after(**fields: str) -> int | None:
        client.post(address, {"role": "annotator", **fields})
        return project.memberships.get(pk=membership.pk).daily_limit

    assert limit_after(daily_limit="40") == 40
    # What cannot be is refused, and a form without the field leaves it alone.
    assert limit_after(daily_limit="0") == 40
    assert limit_after(daily_limit="many") == 40
    assert limit_after() == 40
    assert limit_after(daily_limit="") is None
    entries = AuditEntry.objects.filter(action="member.daily_limit").order_by("pk")
    assert [entry.details for entry in entries] == [{"from": None, "to": 40}, {"from": 40, "to": None}]
    with refused("invalid_member"):
        change_allotment(membership=membership, changes={"daily_limit": 0}, changed_by=carol)


def test_the_api_sets_a_daily_limit_and_leaves_it_where_it_is_not_named(
    project: Project, alice: User, carol: User
):
    asker = Asker(carol)
    address = f"/projects/{project.slug}/members/alice/"
    assert asker("PUT", address, {"role": "annotator", "daily_limit": 5}).json()["daily_limit"] == 5
    assert asker("PUT", address, {"role": "reviewer"}).json()["daily_limit"] == 5
    assert asker("PUT", address, {"role": "reviewer", "daily_limit": 0}).status_code == 422
    assert asker("PUT", address, {"role": "reviewer", "daily_limit": None}).json()["daily_limit"] is None
