"""The inbox: once per event, one's own only, read and unread, the badge, and where events come from."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import NotificationKind, Purpose, ReviewReason
from annotation.models import Membership, Notification, Project, User
from annotation.selectors.inbox import notifications_of, unread_count
from annotation.services.inbox import Event, forget_notifications, mark_read, notify_managers
from annotation.services.judgments.submission import flag_item
from annotation.services.reviews import decide_review, open_review
from tests import factories

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


def event(key: str = "round:1:failed", kind: NotificationKind = NotificationKind.ROUND_FAILED) -> Event:
    return Event(kind=kind, key=key, subject="Round 1", excerpt="out of memory", address="/projects/tea/")


def test_an_event_reaches_each_manager_once_however_often_it_is_told(
    project: Project, alice: User, carol: User
):
    assert notify_managers(project_id=project.pk, event=event()) == 1
    assert notify_managers(project_id=project.pk, event=event()) == 0
    assert [row.user for row in Notification.objects.all()] == [carol]


def test_the_badge_counts_what_is_unread_and_what_may_be_opened(
    project: Project, carol: User, client_of: ClientOf
):
    for number in range(3):
        notify_managers(project_id=project.pk, event=event(f"round:{number}"))
    mark_read(user=carol, ids=[Notification.objects.earliest("pk").pk])
    assert unread_count(carol) == 2
    assert b"2" in client_of(carol).get(reverse("inbox-count")).content
    Membership.objects.filter(user=carol).delete()
    assert unread_count(carol) == 0
    assert list(notifications_of(carol)) == []
    assert client_of(carol).get(reverse("inbox-count")).content.strip() == b""


def test_the_badge_costs_a_fixed_number_of_queries(
    project: Project,
    carol: User,
    client_of: ClientOf,
    django_assert_max_num_queries: Callable[..., AbstractContextManager[object]],
):
    for number in range(101):
        notify_managers(project_id=project.pk, event=event(f"round:{number}"))
    client = client_of(carol)
    with django_assert_max_num_queries(4):
        page = client.get(reverse("inbox-count"))
    assert b"99+" in page.content


def test_opening_one_marks_it_read_and_leads_to_its_page(
    project: Project, carol: User, alice: User, client_of: ClientOf
):
    notify_managers(project_id=project.pk, event=event())
    row = Notification.objects.get()
    client = client_of(carol)
    listed = client.get(reverse("inbox")).content.decode()
    assert "Round 1 failed" in listed
    assert "out of memory" in listed
    opened = client.post(reverse("notification", args=[row.pk]))
    assert opened["Location"] == "/projects/tea/"
    row.refresh_from_db()
    assert row.read_at is not None
    client.post(reverse("notification", args=[row.pk]), {"unread": "1"})
    assert unread_count(carol) == 1
    client.post(reverse("inbox-read"))
    assert unread_count(carol) == 0
    assert "Nothing is unread" in client.get(reverse("inbox") + "?show=unread").content.decode()
    # Of somebody else's inbox nothing can be opened.
    assert client_of(alice).post(reverse("notification", args=[row.pk])).status_code == 404


def test_marking_all_read_leaves_others_alone(project: Project, alice: User, carol: User):
    notify_managers(project_id=project.pk, event=event())
    assert mark_read(user=alice) == 0
    assert unread_count(carol) == 1


def test_who_flagged_is_told_of_the_decision_and_nobody_else(
    project: Project, alice: User, bob: User, carol: User
):
    comparison = factories.make_comparison(project)
    assignment = factories.lease_to(comparison, alice)
    flag_item(assignment=assignment, annotator=alice, reason="something else")
    review = open_review(comparison=comparison, reason=ReviewReason.FLAGGED)
    assert comparison.purpose == Purpose.WORK
    decide_review(review=review, reviewer=carol, verdict="both_bad", ranks={}, comment="Bob was wrong")
    decide_review(review=review, reviewer=carol, verdict="both_bad", ranks={})
    row = Notification.objects.get()
    assert (row.user, row.kind, row.excerpt) == (alice, NotificationKind.REVIEW_DECIDED, "")


def test_old_notifications_are_forgotten(project: Project, carol: User):
    notify_managers(project_id=project.pk, event=event("old"))
    Notification.objects.update(created_at=timezone.now() - timedelta(days=91))
    notify_managers(project_id=project.pk, event=event("new"))
    assert forget_notifications() == 1
    assert Notification.objects.get().key == "new"
