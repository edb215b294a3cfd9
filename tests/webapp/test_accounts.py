"""One's own account: open sessions, one's data as a file, and leaving without leaving a name behind."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import IntegrityError, connection, models, transaction
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState
from annotation.models import ApiToken, AuditEntry, Draft, Judgment, Membership, Project, User
from annotation.services.assignments.next import assign_next
from annotation.services.audit import record
from annotation.services.judgments.drafts import save_draft
from annotation.services.people.accounts import create_token
from annotation.services.projects.invitations import create_invitation
from tests import factories
from tests.factories import PASSWORD
from tests.refusals import refused
from webapp.security.accounts import delete_account


def signed_in(name: str, device: str = "Firefox", address: str = "198.51.100.1") -> Client:
    """A browser in which somebody signed in with their password."""
    client = Client(headers={"User-Agent": device}, REMOTE_ADDR=address)
    answer = client.post(reverse("login"), {"username": name, "password": PASSWORD})
    assert answer.status_code == 302
    return client


def confirmed(client: Client) -> Client:
    """The same browser after the password was asked for again."""
    answer = client.post(reverse("account_reauthenticate") + "?next=/account/", {"password": PASSWORD})
    assert answer["Location"] == "/account/"
    return client


def is_in(client: Client) -> bool:
    return client.get(reverse("projects")).status_code == 200


# ── Sessions ──────────────────────────────────────────────────────────────────────────


def test_open_sessions_are_listed_with_device_and_address(alice: User):
    signed_in("alice", "A phone", "203.0.113.4")
    page = signed_in("alice", "A laptop").get(reverse("account")).content.decode()
    for text in ("A phone", "203.0.113.4", "A laptop", "198.51.100.1"):
        assert text in page
    assert page.count("this one") == 1


def test_one_session_is_ended_and_the_others_stay(alice: User):
    here, there = signed_in("alice"), signed_in("alice", "A phone")
    pk = UserSession.objects.get(user_agent="A phone").pk
    here.post(reverse("session-end", kwargs={"pk": pk}))
    assert is_in(here)
    assert not is_in(there)
    assert AuditEntry.objects.get().action == "session.end"


def test_all_others_are_ended_at_once(alice: User, bob: User):
    here, there, elsewhere, bobs = (signed_in(name) for name in ("alice", "alice", "alice", "bob"))
    here.post(reverse("sessions-end-others"))
    assert [is_in(client) for client in (here, there, elsewhere, bobs)] == [True, False, False, True]


def test_nobody_ends_the_session_of_another(alice: User, bob: User):
    alices = signed_in("alice")
    pk = UserSession.objects.get(user=alice).pk
    signed_in("bob").post(reverse("session-end", kwargs={"pk": pk}))
    assert is_in(alices)


def test_use_is_noted_once_in_five_minutes(alice: User, monkeypatch: pytest.MonkeyPatch):
    client = signed_in("alice")
    client.get(reverse("account"), REMOTE_ADDR="203.0.113.77")
    assert UserSession.objects.get().ip == "198.51.100.1"
    monkeypatch.setattr("webapp.security.middleware.EVERY_SECONDS", 0)
    client.get(reverse("account"), REMOTE_ADDR="203.0.113.77")
    assert UserSession.objects.get().ip == "203.0.113.77"


# ── One's data ────────────────────────────────────────────────────────────────────────


def test_the_file_holds_what_refers_to_a_person_and_no_secret(project: Project, alice: User, bob: User):
    comparison = factories.make_comparison(project)
    judgment = factories.make_judgment(factories.make_comparison(project), alice)
    factories.make_judgment(comparison, bob)
    secret = create_token(user=alice, name="script", scopes=["read"]).secret
    client = confirmed(signed_in("alice"))
    TOTP.activate(alice, "JBSWY3DPEHPK3PXP")
    answer = client.get(reverse("account-export"))
    assert answer["Content-Disposition"].startswith("attachment")
    text = answer.getvalue().decode()
    data = json.loads(text)
    assert data["person"]["username"] == "alice"
    assert [row["id"] for row in data["annotation.judgment.annotator"]] == [judgment.pk]
    assert len(data["annotation.membership.user"]) == 1
    assert len(data["annotation.rankedcompletion.judgment__annotator"]) == 2
    assert [row["name"] for row in data["annotation.apitoken.user"]] == ["script"]
    alice.refresh_from_db()
    for hidden in (secret, ApiToken.objects.get().digest, alice.password, "bob"):
        assert hidden not in text
    assert "data" not in data["mfa.authenticator.user"][0]


def test_every_model_that_points_to_a_person_is_in_the_file(alice: User):
    data = json.loads(confirmed(signed_in("alice")).get(reverse("account-export")).getvalue())
    pointing = {
        f"{model._meta.label_lower}.{field.name}"
        for model in apps.get_models()
        for field in model._meta.get_fields()
        if isinstance(field, models.ForeignKey)
        and field.related_model is User
        # The two tables of groups and rights that Django makes.
        and not model._meta.auto_created
    }
    assert pointing <= set(data), pointing - set(data)


# ── Leaving ───────────────────────────────────────────────────────────────────────────

NAME = "Zyx Öwlington"


@pytest.fixture
def zyx(project: Project, admin: User) -> User:
    """Somebody with rows in every corner, and a name that occurs nowhere by chance."""
    user = factories.make_user("zyxowl", first_name="Zyx", last_name="Öwlington")
    membership = Membership.objects.create(project=project, user=user, role="manager")
    factories.make_judgment(factories.make_comparison(project), user)
    factories.make_comparison(project)
    held = assign_next(project=project, annotator=user)
    save_draft(
        assignment=held,
        annotator=user,
        fields={"comment": ["zyxowl was here"]},
        base_version=0,
        saved_from=user.pseudonym,
    )
    create_token(user=user, name="zyxowl's script", scopes=["read"])
    create_invitation(project=project, created_by=user, role="annotator", days=7)
    EmailAddress.objects.create(user=user, email="zyxowl@example.org", verified=True, primary=True)
    SocialAccount.objects.create(user=user, provider="github", uid="7", extra_data={"login": "zyxowl"})
    TOTP.activate(user, "JBSWY3DPEHPK3PXP")
    record(action="member.add", subject=membership, actor=admin, project=project)
    record(action="note", subject="x", actor=admin, details={"who": NAME, "deep": [{"mail": user.email}]})
    for row in (user, membership):
        LogEntry.objects.create(
            user=admin,
            content_type=ContentType.objects.get_for_model(row),
            object_id=str(row.pk),
            object_repr=str(row),
            action_flag=ADDITION,
            change_message=json.dumps([{"added": {"object": str(row)}}]),
        )
    Client().post(reverse("login"), {"username": "zyxowl", "password": "wrong"})
    return user


def every_text(table: str) -> Iterator[str]:
    """All values of a table, as text, whatever their column is."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")
        for row in cursor.fetchall():
            yield from map(str, row)


def where_named(*names: str) -> set[str]:
    """The tables in which one of these names stands, escaped or not."""
    written = [form for name in names for form in (name, name.encode("ascii", "backslashreplace").decode())]
    tables = set()
    for table in connection.introspection.table_names():
        if any(form.lower() in text.lower() for text in every_text(table) for form in written):
            tables.add(table)
    return tables


def test_no_name_remains_anywhere_in_the_database(zyx: User):
    names = ("zyxowl", "Öwlington", "Zyx ")
    before = where_named(*names)
    assert {"annotation_user", "annotation_auditentry", "django_admin_log", "axes_accessattempt"} <= before
    delete_account(user=zyx)
    assert where_named(*names) == set()


def test_judgments_stay_under_the_pseudonym_and_access_is_gone(zyx: User, project: Project):
    pseudonym, judged = zyx.pseudonym, list(zyx.judgments.values_list("pk", flat=True))
    client = Client()
    client.force_login(zyx)
    delete_account(user=zyx)
    assert (
        list(Judgment.objects.filter(annotator__pseudonym=pseudonym).values_list("pk", flat=True)) == judged
    )
    assert not is_in(client)
    again = Client().post(reverse("login"), {"username": "zyxowl", "password": PASSWORD})
    assert again.status_code == 200
    zyx.refresh_from_db()
    assert (zyx.is_active, zyx.is_staff, zyx.has_usable_password()) == (False, False, False)
    for gone in (Membership, ApiToken, EmailAddress, SocialAccount, Authenticator, UserSession):
        assert not gone.objects.filter(user=zyx).exists(), gone
    assert not Draft.objects.filter(assignment__annotator=zyx).exists()
    assert not zyx.assignments.filter(state=AssignmentState.LEASED).exists()
    assert zyx.invitations.get().revoked_at


def test_the_audit_log_keeps_the_deeds_and_says_that_names_were_replaced(zyx: User):
    before = list(AuditEntry.objects.order_by("pk").values_list("pk", "action", "actor_id", "created_at"))
    delete_account(user=zyx)
    after = list(AuditEntry.objects.order_by("pk").values_list("pk", "action", "actor_id", "created_at"))
    assert after[: len(before)] == before
    assert after[-1][1] == "account.delete"
    replaced = AuditEntry.objects.filter(redacted_at__isnull=False)
    assert {entry.action for entry in replaced} >= {"member.add", "note"}
    entry = AuditEntry.objects.get(action="note")
    who = f"deleted-{zyx.pseudonym.hex[:16]}"
    assert entry.details == {"who": who, "deep": [{"mail": who}]}


def test_a_name_that_is_part_of_another_word_is_left_alone(admin: User):
    user = factories.make_user("tea")
    record(action="note", subject="teapot of tea", actor=admin)
    delete_account(user=user)
    assert AuditEntry.objects.get(action="note").subject == f"teapot of deleted-{user.pseudonym.hex[:16]}"


def test_somebody_leaves_on_the_page_after_typing_their_name(alice: User):
    client = confirmed(signed_in("alice"))
    address = reverse("account-delete")
    assert client.post(address, {"username": "alise"}).status_code == 422
    assert User.objects.get(pk=alice.pk).erased_at is None
    answer = client.post(address, {"username": "alice"})
    assert answer["Location"] == reverse("login")
    assert User.objects.get(pk=alice.pk).erased_at is not None
    assert not is_in(client)
    assert not Session.objects.filter(session_key__in=UserSession.objects.values("session_key")).exists()


def test_the_only_administrator_cannot_leave(admin: User):
    with refused("last_administrator"):
        delete_account(user=admin)
    admin.refresh_from_db()
    assert (admin.username, admin.is_active) == ("admin", True)
    factories.make_user("second", superuser=True)
    delete_account(user=admin)


@pytest.mark.parametrize("field", [{"first_name": "Alice"}, {"email": "a@example.org"}, {"is_active": True}])
def test_the_database_keeps_a_deleted_account_without_name_and_access(alice: User, field: dict[str, Any]):
    delete_account(user=alice)
    with pytest.raises(IntegrityError), transaction.atomic():
        User.objects.filter(pk=alice.pk).update(**field)
