"""Access to each page: people without it learn nothing."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState
from annotation.models import Assignment, Membership, Project, User
from annotation.services.assignments.next import assign_next
from tests import factories

ClientOf = Callable[[User], Client]


@pytest.fixture
def assignment(project: Project, alice: User) -> Assignment:
    """The assignment that Alice holds."""
    factories.make_comparison(project)
    leased = assign_next(project=project, annotator=alice)
    assert leased is not None
    return leased


@pytest.mark.parametrize("action", ["submit", "skip", "flag", "renew"])
def test_nobody_acts_on_the_assignment_of_another(
    action: str, assignment: Assignment, project: Project, bob: User, admin: User, client_of: ClientOf
):
    address = reverse(action, args=[project.slug, assignment.pk])
    for user in (bob, admin):
        assert client_of(user).post(address, {"choice": "equal"}).status_code == 404
    assignment.refresh_from_db()
    assert assignment.state == AssignmentState.LEASED


def test_an_assignment_is_not_found_through_another_project(
    assignment: Assignment, alice: User, client_of: ClientOf
):
    other = factories.make_project(slug="coffee", annotators=[alice])
    assert client_of(alice).post(reverse("renew", args=[other.slug, assignment.pk])).status_code == 404


def test_one_sees_ones_own_projects_only(project: Project, alice: User, oscar: User, client_of: ClientOf):
    address = f"/projects/{project.slug}/"
    assert address in client_of(alice).get("/").content.decode()
    assert address not in client_of(oscar).get("/").content.decode()


def test_only_managers_are_shown_the_way_to_training(
    project: Project, alice: User, carol: User, client_of: ClientOf
):
    address = reverse("project", args=[project.slug])
    rounds = reverse("rounds", args=[project.slug])
    assert rounds not in client_of(alice).get(address).content.decode()
    assert rounds in client_of(carol).get(address).content.decode()


def test_the_list_of_projects_asks_as_often_for_many_as_for_one(
    project: Project, alice: User, client_of: ClientOf, django_assert_max_num_queries
):
    for number in range(12):
        factories.make_project(slug=f"more-{number}", annotators=[alice])
    client = client_of(alice)
    # Session, person with two kinds of permissions, projects with what is open, memberships, annotations by
    # day and of today, archived projects, those in the bin, those with conversations.
    with django_assert_max_num_queries(11):
        client.get("/")


def test_colours_come_as_a_stylesheet_and_nothing_else_does(
    project: Project, alice: User, client_of: ClientOf
):
    factories.make_category(project, "odd", colour="red}*{x", position=9)
    answer = client_of(alice).get(reverse("category-colours", args=[project.slug]))
    assert answer["Content-Type"].startswith("text/css")
    assert '[data-category="untruthful"]{--category:#be123c}' in answer.content.decode()
    assert "*{x" not in answer.content.decode()


def test_only_members_say_that_they_have_read_the_rules_and_no_link_says_it_for_them(
    project: Project, alice: User, oscar: User, admin: User, client: Client, client_of: ClientOf
):
    address = reverse("guidelines-read", args=[project.slug])
    form = {"version": "1"}
    assert client.post(address, form)["Location"].startswith("/login/")
    assert client_of(oscar).post(address, form).status_code == 404
    assert client_of(alice).get(address).status_code == 405
    assert not Membership.objects.filter(guideline_seen__isnull=False).exists()
    for user in (alice, admin):
        assert client_of(user).post(address, form).status_code == 302
    assert list(Membership.objects.filter(guideline_seen=1)) == [alice.memberships.get()]
