"""Invitations: a link makes members, as many and as long as was said, and leaves a trace."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.choices import Role
from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, Invitation, Membership, Project, User
from annotation.services.projects.invitations import (
    NewInvitation,
    accept_invitation,
    create_invitation,
    find_invitation,
    revoke_invitation,
)
from tests import factories
from tests.factories import PASSWORD
from tests.refusals import refused


@pytest.fixture
def made(project: Project, carol: User) -> NewInvitation:
    return create_invitation(project=project, created_by=carol, role="reviewer", days=7)


def address_of(made: NewInvitation) -> str:
    return reverse("invitation", kwargs={"secret": made.secret})


def sign_up(client: Client, name: str = "dora"):
    return client.post(
        reverse("account_signup"), {"username": name, "password1": PASSWORD, "password2": PASSWORD}
    )


def test_the_secret_opens_and_is_not_in_the_database(made: NewInvitation):
    assert find_invitation(secret=made.secret) == made.invitation
    assert find_invitation(secret=made.secret[:-1]) is None
    stored = Invitation.objects.values().get()
    assert made.secret not in str(stored)
    assert stored["digest"] == hashlib.sha256(made.secret.encode()).hexdigest()


def test_somebody_with_an_account_joins_with_one_click(made: NewInvitation, oscar: User, client_of):
    client = client_of(oscar)
    assert "as reviewer" in client.get(address_of(made)).content.decode()
    assert not Membership.objects.filter(user=oscar).exists(), "looking is not joining"
    assert client.post(address_of(made))["Location"] == "/projects/tea/"
    assert Membership.objects.get(user=oscar).role == Role.REVIEWER
    assert client.get("/projects/tea/reviews/").status_code == 200
    assert client.get("/projects/tea/statistics/").status_code == 403


def test_somebody_without_makes_one_and_is_a_member(made: NewInvitation, client: Client):
    client.get(address_of(made))
    assert sign_up(client).status_code == 302
    dora = User.objects.get(username="dora")
    assert Membership.objects.get(user=dora).role == Role.REVIEWER
    assert client.get("/projects/tea/").status_code == 200
    assert not dora.is_staff
    assert [(e.action, str(e.actor)) for e in AuditEntry.objects.all()] == [
        ("invitation.accept", "dora"),
        ("invitation.create", "carol"),
    ]


def test_who_signs_in_comes_back_to_the_invitation(made: NewInvitation, oscar: User, client: Client):
    page = client.get(address_of(made)).content.decode()
    login = re.search(r'href="(/login/\?[^"]*)"', page)[1]
    answer = client.post(login, {"username": "oscar", "password": PASSWORD})
    assert answer["Location"] == address_of(made)


def test_a_link_makes_as_many_members_as_was_said(made: NewInvitation):
    for name, joins in (("dora", True), ("emil", False)):
        client = Client()
        client.get(address_of(made))
        sign_up(client, name)
        assert User.objects.filter(username=name).exists() is joins
    assert Client().get(address_of(made)).status_code == 410


def test_a_use_taken_while_the_form_was_filled_in_makes_no_account(made: NewInvitation, oscar: User):
    client = Client()
    client.get(address_of(made))
    accept_invitation(invitation=made.invitation, user=oscar)
    sign_up(client)
    assert not User.objects.filter(username="dora").exists()


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_link_that_does_not_hold_opens_nothing(made: NewInvitation, carol: User, oscar: User, how: str):
    client = Client()
    client.get(address_of(made))
    if how == "revoked":
        revoke_invitation(invitation=made.invitation, user=carol)
    else:
        Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(address_of(made)).status_code == 410
    sign_up(client)
    assert not User.objects.filter(username="dora").exists()
    with refused("invitation_not_usable"):
        accept_invitation(invitation=made.invitation, user=oscar)


def test_nobody_is_made_less_than_they_are(project: Project, carol: User, alice: User):
    lower = create_invitation(project=project, created_by=carol, role="annotator", days=1).invitation
    assert accept_invitation(invitation=lower, user=carol).role == Role.MANAGER
    lower.refresh_from_db()
    assert lower.uses == 0
    higher = create_invitation(project=project, created_by=carol, role="reviewer", days=1).invitation
    assert accept_invitation(invitation=higher, user=alice).role == Role.REVIEWER


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"role": "owner"}, "role"),
        ({"days": 0}, "days"),
        ({"days": 91}, "days"),
        ({"most_uses": 0}, "most_uses"),
        ({"most_uses": 1001}, "most_uses"),
    ],
)
def test_an_invitation_out_of_bounds_is_refused(project: Project, carol: User, changes, field: str):
    with pytest.raises(Refusal) as refusal:
        create_invitation(
            **{"project": project, "created_by": carol, "role": "annotator", "days": 7, **changes}
        )
    assert refusal.value.field == field
    assert not Invitation.objects.exists()


def test_a_manager_of_another_project_revokes_nothing(made: NewInvitation, oscar: User):
    factories.make_project(slug="coffee", managers=[oscar])
    with refused("manager_revokes_invitations", NotAllowed):
        revoke_invitation(invitation=made.invitation, user=oscar)
    assert find_invitation(secret=made.secret)


def test_a_manager_makes_and_revokes_on_the_page(project: Project, carol: User, client_of):
    client = client_of(carol)
    page = reverse("invitations", kwargs={"slug": "tea"})
    answer = client.post(page, {"role": "annotator", "days": "7", "most_uses": "3", "note": "the new ones"})
    link = re.search(r'value="http://testserver(/invitations/[^"]+)"', answer.content.decode())[1]
    assert Client().get(link).status_code == 200
    again = client.get(page).content.decode()
    assert link not in again
    assert "the new ones" in again
    invitation = Invitation.objects.get()
    client.post(reverse("invitation-revoke", kwargs={"slug": "tea", "pk": invitation.pk}))
    assert Client().get(link).status_code == 410
    assert client.post(page, {"role": "annotator", "days": "0", "most_uses": "3"}).status_code == 422


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_exactly_as_many_join_as_may(project: Project, carol: User):
    invitation = create_invitation(
        project=project, created_by=carol, role="annotator", days=1, most_uses=3
    ).invitation
    people = [factories.make_user(f"guest-{number}") for number in range(8)]

    def joins(user: User) -> bool:
        try:
            accept_invitation(invitation=invitation, user=user)
        except Refusal:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(joins, people)) == 3
    assert Membership.objects.filter(user__in=people).count() == 3
