"""Invitations, sessions, accounts and a project's questions by way of the API."""

import json
import re

import pytest
from django.core import mail
from pytest_django import Settings

from annotation.choices import TaskName
from annotation.models import AuditEntry, Category, Criterion, Invitation, Membership, Project, User
from annotation.selectors.configuration import configuration_of
from annotation.selectors.personal_data import personal_data
from annotation.services.inbox import send_invitation
from tests import factories
from tests.annotation.test_admin import judge_everything
from tests.api.scene import Asker
from tests.webapp.test_accounts import confirmed, signed_in

INVITATIONS = "/projects/tea/invitations/"


def test_a_link_is_made_followed_and_revoked(project: Project, as_carol: Asker, oscar: User):
    made = as_carol.post(INVITATIONS, {"role": "reviewer", "days": 3, "note": "Oscar"})
    assert made.status_code == 201
    invitation = made.json()
    assert invitation["link"].endswith(f"/invitations/{invitation['secret']}/")
    [listed] = as_carol.get(INVITATIONS).json()["results"]
    assert invitation["secret"] not in str(listed)
    assert (listed["is_good"], listed["uses"], listed["most_uses"]) == (True, 0, 1)
    as_oscar = Asker(oscar)
    joined = as_oscar.post("/invitations/accept/", {"secret": invitation["secret"]})
    assert (joined.status_code, joined.json()["role"]) == (200, "reviewer")
    assert Membership.objects.get(user=oscar).role == "reviewer"
    # It was for one.
    again = Asker(factories.make_user("nina")).post("/invitations/accept/", {"secret": invitation["secret"]})
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "secret")
    other = as_carol.post(INVITATIONS, {"role": "annotator"}).json()
    assert as_carol("DELETE", f"{INVITATIONS}{other['id']}/").status_code == 204
    assert as_carol.get(INVITATIONS).json()["results"][0]["is_good"] is False


def test_an_invitation_is_sent_by_e_mail_and_its_link_is_in_no_response(
    project: Project, as_carol: Asker, settings: Settings, sent, django_capture_on_commit_callbacks
):
    settings.RONDO_EMAIL = True
    settings.RONDO_ADDRESS = "https://rondo.example.org"
    with django_capture_on_commit_callbacks(execute=True):
        made = as_carol.post(INVITATIONS, {"role": "reviewer", "email": "oscar@example.org"})
    assert made.status_code == 201
    invitation = made.json()
    assert (invitation["email"], invitation["mail"], invitation["secret"], invitation["link"]) == (
        "oscar@example.org", "waiting", "", "",
    )  # fmt: skip
    assert sent == [(TaskName.SEND_INVITATION, [invitation["id"]])]
    assert send_invitation(invitation["id"])
    (message,) = mail.outbox
    assert message.to == ["oscar@example.org"]
    [listed] = as_carol.get(INVITATIONS).json()["results"]
    assert (listed["email"], listed["mail"]) == ("oscar@example.org", "sent")
    [secret] = re.findall(r"https://rondo.example.org/invitations/([^/\s]+)/", str(message.body))
    joined = Asker(factories.make_user("oscar")).post("/invitations/accept/", {"secret": secret})
    assert (joined.status_code, joined.json()["role"]) == (200, "reviewer")


@pytest.mark.parametrize("email", ["oscar@example.org", "nobody"])
def test_an_address_is_refused_where_no_e_mail_is_sent_or_it_is_none(
    project: Project, as_carol: Asker, email: str
):
    refused = as_carol.post(INVITATIONS, {"role": "reviewer", "email": email})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "email")
    assert not Invitation.objects.exists()


def test_a_person_sees_their_sessions_and_ends_them(alice: User):
    here, there = signed_in("alice"), signed_in("alice")
    listed = here.get("/api/v1/sessions/").json()
    assert sorted(session["is_current"] for session in listed) == [False, True]
    [other] = [session["id"] for session in listed if not session["is_current"]]
    assert here.delete(f"/api/v1/sessions/{other}/").status_code == 204
    assert there.get("/api/v1/me/").status_code in (401, 403)
    assert here.get("/api/v1/me/").status_code == 200
    assert here.delete(f"/api/v1/sessions/{other}/").status_code == 404
    # A token is no session: it ends all of them.
    assert all(not session["is_current"] for session in Asker(alice).get("/sessions/").json())
    assert Asker(alice, scopes=("manage",))("DELETE", "/sessions/").status_code == 204
    assert here.get("/api/v1/me/").status_code in (401, 403)
    assert AuditEntry.objects.filter(action__startswith="session.", actor=alice).count() == 2


def test_a_session_of_somebody_else_is_not_there(alice: User, bob: User):
    signed_in("bob")
    as_bob = Asker(bob)
    [session] = as_bob.get("/sessions/").json()
    assert Asker(alice)("DELETE", f"/sessions/{session['id']}/").status_code == 404
    assert len(as_bob.get("/sessions/").json()) == 1


def test_all_data_about_oneself_is_handed_out_after_a_proof_and_never_to_a_token(client_of, alice: User):
    # The cookie alone, as after a theft.
    refused = client_of(alice).get("/api/v1/me/data/")
    assert refused.status_code == 403
    assert "/account/reauthenticate/" in refused.json()["detail"]
    assert Asker(alice, scopes=("read", "manage")).get("/me/data/").status_code == 403
    answer = confirmed(signed_in("alice")).get("/api/v1/me/data/")
    assert answer.status_code == 200
    exported = json.loads(answer.getvalue())
    assert exported["person"]["username"] == "alice"
    alice.refresh_from_db()
    assert exported == json.loads("".join(personal_data(alice)))


def test_an_account_is_deleted_after_a_proof_and_its_name_and_never_by_a_token(client_of, alice: User):
    address, name = "/api/v1/me/deletion/", {"username": "alice"}
    assert client_of(alice).post(address, name, "application/json").status_code == 403
    assert Asker(alice, scopes=("manage",)).post("/me/deletion/", name).status_code == 403
    here = confirmed(signed_in("alice"))
    slip = here.post(address, {"username": "alise"}, "application/json")
    assert (slip.status_code, slip.json()["errors"][0]["field"]) == (422, "username")
    assert User.objects.get(pk=alice.pk).erased_at is None
    assert here.post(address, name, "application/json").status_code == 204
    assert User.objects.get(pk=alice.pk).erased_at is not None
    assert here.get("/api/v1/me/").status_code in (401, 403)


def test_a_category_is_added_changed_and_deleted(project: Project, as_admin: Asker):
    address = "/projects/tea/categories/rude/"
    added = as_admin("PUT", address, {"label": "Rude", "scope": "span", "severity_steps": 3, "shortcut": "f"})
    assert (added.status_code, added.json()["severity_steps"]) == (200, 3)
    row = Category.objects.get(key="rude")
    assert row.position == 4
    changed = as_admin("PUT", address, {"label": "Impolite", "colour": "#112233"})
    assert (changed.json()["label"], changed.json()["severity_steps"]) == ("Impolite", 3)
    # Those who label read it from their next page on.
    project.refresh_from_db()
    assert "Impolite" in [category.label for category in configuration_of(project).categories]
    assert AuditEntry.objects.filter(action="category.set").count() == 2
    assert as_admin("DELETE", address).status_code == 204
    assert as_admin("DELETE", address).status_code == 404


def test_a_criterion_is_added_and_keeps_its_scale(project: Project, as_admin: Asker):
    address = "/projects/tea/criteria/helpful/"
    assert as_admin("PUT", address, {"label": "Helpful", "scale": "seven"}).status_code == 200
    again = as_admin("PUT", address, {"label": "Helps", "scale": "five"})
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "scale")
    assert Criterion.objects.get().label == "Helpful"


def test_a_value_that_no_category_has_is_refused_with_its_field(project: Project, as_admin: Asker):
    address = "/projects/tea/categories/rude/"
    used_shortcut = project.categories.exclude(shortcut="").first().shortcut
    for body, field in (
        ({"label": "Rude", "colour": "red"}, "colour"),
        ({"label": "Rude", "severity_steps": 10}, "severity_steps"),
        ({"label": ""}, "label"),
        ({"label": "Rude", "scope": "everywhere"}, "scope"),
    ):
        refused = as_admin("PUT", address, body)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)
    assert as_admin("PUT", address, {"label": "Rude", "shortcut": used_shortcut}).status_code == 422
    assert not Category.objects.filter(key="rude").exists()


def test_what_judgments_go_by_is_not_deleted(project: Project, as_admin: Asker, alice: User):
    judge_everything(project, alice)
    for address in ("categories/untruthful/", "criteria/helpful/"):
        refused = as_admin("DELETE", f"/projects/tea/{address}")
        assert (refused.status_code, refused.json()["code"]) == (422, "question_in_use")
    assert not AuditEntry.objects.filter(action__endswith=".delete").exists()


def test_language_and_keys_are_chosen_as_on_the_pages(alice: User):
    as_alice = Asker(alice, scopes=("read", "manage"))
    assert as_alice("PATCH", "/me/", {"language": "de"}).json()["language"] == "de"
    refused = as_alice("PATCH", "/me/", {"language": "tlh"})
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "language")
    alice.refresh_from_db()
    assert alice.language == "de"
    assert as_alice("PATCH", "/me/", {"language": ""}).status_code == 200
    assert as_alice.get("/me/keys/").json()["skip"] == "s"
    chosen = as_alice("PUT", "/me/keys/", {"skip": "u", "comment": ""}).json()
    assert (chosen["skip"], chosen["comment"]) == ("u", "t")
    # One key for two actions, an action that there is not, and what is no text.
    for sent, field in (({"skip": "t"}, "skip"), ({"sleep": "y"}, "sleep"), ({"skip": 1}, "skip")):
        refused = as_alice("PUT", "/me/keys/", sent)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)
    assert as_alice.get("/me/keys/").json()["skip"] == "u"


def test_a_superuser_reads_the_whole_audit_log_and_how_rondo_stands(project: Project, as_admin: Asker):
    as_admin.post(INVITATIONS, {"role": "annotator"})
    AuditEntry.objects.create(action="note", subject="of no project")
    entries = as_admin.get("/audit/").json()["results"]
    assert {(entry["action"], entry["project"]) for entry in entries} >= {
        ("invitation.create", "tea"),
        ("note", None),
    }
    [newest] = as_admin.get("/audit/?project=tea&actor=admin&since=2000-01-01T00:00:00Z").json()["results"]
    assert (newest["action"], newest["actor"]) == ("invitation.create", "admin")
    [note] = as_admin.get("/audit/?subject=NO%20project").json()["results"]
    assert (note["action"], note["actor"], note["project"]) == ("note", "", None)
    assert as_admin.get("/audit/?until=2000-01-01T00:00:00Z").json()["results"] == []
    state = as_admin.get("/status/").json()
    assert state["worst"] in ("fine", "attention", "wrong")
    [database] = [finding for finding in state["findings"] if finding["subject"] == "database"]
    assert (database["level"], database["remedy"]) == ("fine", "")


def test_a_superuser_adds_a_model_of_another_server(as_admin: Asker, settings):
    settings.RONDO_MODEL_SERVER_HOSTS = ["models.example.org"]
    body = {"name": "elsewhere", "url": "https://models.example.org/v1", "model": "big"}
    added = as_admin.post("/checkpoints/", body)
    assert (added.status_code, added.json()["name"]) == (201, "elsewhere")
    assert AuditEntry.objects.get(action="checkpoint.serve").details["url"] == body["url"]
    again = as_admin.post("/checkpoints/", body)
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "name")
    inside = as_admin.post("/checkpoints/", {"name": "inside", "url": "http://169.254.169.254/v1"})
    assert (inside.status_code, inside.json()["errors"][0]["field"]) == (422, "url")
