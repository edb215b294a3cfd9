"""E-mails: on commit, at most once, by choice, absolute links; nothing where none is configured."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from smtplib import SMTPServerDisconnected
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from annotation.choices import MailState, NotificationKind, TaskName
from annotation.models import Invitation, MailChoice, Notification, Project, User
from annotation.services.inbox import (
    Event,
    choose_mail,
    mark_read,
    notify_managers,
    send_digests,
    send_invitation,
    send_notification,
    sweep_mail,
)
from annotation.services.people.accounts import send_password_reset
from annotation.services.projects.invitations import create_invitation, find_invitation
from tests.refusals import refused

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]
Sent = list[tuple[str, list[object]]]
MORNING = datetime(2030, 1, 2, 6, 0, tzinfo=UTC)


@pytest.fixture
def with_mail(settings: Settings) -> None:
    settings.RONDO_EMAIL = True
    settings.RONDO_ADDRESS = "https://rondo.example.org"


def tell(project: Project, key: str = "1", excerpt: str = "out of memory") -> Notification:
    event = Event(
        kind=NotificationKind.ROUND_FAILED,
        key=key,
        subject="Round 1",
        excerpt=excerpt,
        address="/projects/tea/rounds/1/",
    )
    notify_managers(project_id=project.pk, event=event)
    return Notification.objects.get(key=key)


@pytest.mark.usefixtures("with_mail")
def test_a_message_with_an_id_goes_out_on_commit_and_one_e_mail_is_sent(
    project: Project, carol: User, sent: Sent, django_capture_on_commit_callbacks: Any
):
    with django_capture_on_commit_callbacks() as callbacks:
        row = tell(project)
    assert sent == []
    for callback in callbacks:
        callback()
    assert sent == [(TaskName.SEND_NOTIFICATION, [row.pk])]
    assert send_notification(row.pk)
    assert not send_notification(row.pk)
    (message,) = mail.outbox
    assert message.to == ["carol@example.org"]
    assert message.subject == "[Tea] Round 1 failed"
    assert "https://rondo.example.org/projects/tea/rounds/1/" in message.body
    assert message.content_subtype == "plain"
    assert not getattr(message, "alternatives", [])


def test_without_a_mail_server_nothing_waits_and_pages_say_so(
    project: Project, carol: User, sent: Sent, client_of: ClientOf
):
    row = tell(project)
    assert row.mail == MailState.NONE
    assert not send_notification(row.pk)
    sweep_mail()
    assert (sent, mail.outbox) == ([], [])
    client = client_of(carol)
    assert "E-mail is not set up" in client.get(reverse("account")).content.decode()
    assert "E-mail is not set up" in client.get(reverse("inbox")).content.decode()
    assert "E-mail is not set up" in client.get(reverse("invitations", args=["tea"])).content.decode()
    off = Client().get(reverse("account_reset_password"))
    assert "sends no e-mail" in off.content.decode()
    with refused("no_mail_sent"):
        create_invitation(project=project, created_by=carol, role="annotator", days=1, email="x@example.org")


@pytest.mark.usefixtures("with_mail")
def test_a_failed_e_mail_is_not_sent_again(
    project: Project, carol: User, sent: Sent, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_arguments: object, **_named: object) -> int:
        raise SMTPServerDisconnected

    monkeypatch.setattr("django.core.mail.EmailMessage.send", fail)
    row = tell(project)
    assert not send_notification(row.pk)
    row.refresh_from_db()
    assert row.mail == MailState.FAILED
    sweep_mail()
    assert sent == []


@pytest.mark.usefixtures("with_mail")
def test_a_lost_message_is_sent_again_by_the_sweep(project: Project, carol: User, sent: Sent):
    row = tell(project)
    sweep_mail()
    assert sent == [(TaskName.SEND_NOTIFICATION, [row.pk])]


@pytest.mark.usefixtures("with_mail")
def test_what_is_switched_off_or_read_or_has_no_address_is_not_sent(project: Project, carol: User):
    choose_mail(user=carol, email=carol.email, mentions=True, failures=False, digest=False)
    assert tell(project, "off").mail == MailState.NONE
    choose_mail(user=carol, email="", mentions=True, failures=True, digest=False)
    assert tell(project, "no address").mail == MailState.NONE
    choose_mail(user=carol, email="c@example.org", mentions=True, failures=True, digest=False)
    row = tell(project, "read")
    mark_read(user=carol)
    assert not send_notification(row.pk)
    assert mail.outbox == []


@pytest.mark.usefixtures("with_mail")
def test_a_line_end_in_a_name_makes_no_header(project: Project, carol: User):
    project.name = "Tea\r\nBcc: everyone@example.org"
    project.save()
    assert send_notification(tell(project, excerpt="<b>x</b>\nBcc: y").pk)
    assert mail.outbox[0].subject.count("\n") == 0
    assert mail.outbox[0].bcc == []
    assert "<b>x</b>" in mail.outbox[0].body


@pytest.mark.usefixtures("with_mail")
def test_a_digest_goes_out_once_a_day_with_what_is_new_and_unread(project: Project, carol: User):
    choose_mail(user=carol, email=carol.email, mentions=False, failures=False, digest=True)
    for number in (1, 2):
        row = tell(project, str(number), excerpt=f"error {number}")
        Notification.objects.filter(pk=row.pk).update(created_at=MORNING - timedelta(hours=number))
    mark_read(user=carol, ids=[Notification.objects.get(key="2").pk])
    assert [send_digests(now=MORNING), send_digests(now=MORNING + timedelta(hours=1))] == [1, 0]
    (message,) = mail.outbox
    assert "error 1" in message.body
    assert "error 2" not in message.body
    assert "https://rondo.example.org/inbox/" in message.body
    # Nothing new, so no e-mail on the next day.
    assert send_digests(now=MORNING + timedelta(days=1)) == 0
    assert len(mail.outbox) == 1


@pytest.mark.usefixtures("with_mail")
def test_who_wants_no_digest_gets_none(project: Project, carol: User):
    tell(project)
    assert send_digests(now=MORNING) == 0
    MailChoice.objects.create(user=carol, digest=False)
    assert send_digests(now=MORNING) == 0


@pytest.mark.usefixtures("with_mail")
def test_an_invitation_is_sent_with_a_link_that_no_page_and_no_table_holds(
    project: Project, carol: User, client_of: ClientOf
):
    values = {"role": "annotator", "days": 7, "most_uses": 1, "note": "", "email": "new@example.org"}
    page = client_of(carol).post(reverse("invitations", args=["tea"]), values, follow=True)
    assert "invitation-link" not in page.content.decode()
    row = Invitation.objects.get()
    assert send_invitation(row.pk)
    assert not send_invitation(row.pk)
    (message,) = mail.outbox
    assert message.to == ["new@example.org"]
    link = next(line for line in message.body.splitlines() if line.startswith("https://"))
    assert link.startswith("https://rondo.example.org/invitations/")
    opened = find_invitation(secret=link.rstrip("/").rpartition("/")[2])
    assert opened == row


@pytest.mark.usefixtures("with_mail")
def test_a_new_password_is_set_by_the_link_and_the_page_tells_nothing_of_accounts(
    carol: User, sent: Sent, django_capture_on_commit_callbacks: Any
):
    reset_address = reverse("account_reset_password")
    with django_capture_on_commit_callbacks(execute=True):
        known = Client().post(reset_address, {"email": "carol@example.org"})
        unknown = Client().post(reset_address, {"email": "nobody@example.org"})
    assert (known.status_code, known["Location"]) == (unknown.status_code, unknown["Location"])
    assert sent == [(TaskName.SEND_PASSWORD_RESET, [carol.pk]), (TaskName.SEND_PASSWORD_RESET, [0])]
    assert not send_password_reset(0)
    assert send_password_reset(carol.pk)
    link = next(line for line in mail.outbox[0].body.splitlines() if line.startswith("https://"))
    client = Client()
    form = client.get(link.removeprefix("https://rondo.example.org"), follow=True)
    assert form.status_code == 200
    new = "quite another battery staple"
    client.post(form.redirect_chain[-1][0], {"password1": new, "password2": new})
    carol.refresh_from_db()
    assert carol.check_password(new)


def test_switches_are_kept_and_another_address_needs_a_recent_sign_in(carol: User, client_of: ClientOf):
    client = client_of(carol)
    address = reverse("mail-choice")
    client.post(address, {"email": carol.email, "digest": "on"})
    choice = MailChoice.objects.get(user=carol)
    assert (choice.mentions, choice.failures, choice.digest) == (False, False, True)
    response = client.post(address, {"email": "thief@example.org"})
    assert "reauthenticate" in response["Location"]
    carol.refresh_from_db()
    assert carol.email == "carol@example.org"
