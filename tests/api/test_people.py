"""Who joins, where one is signed in, and what a project asks, by way of the API."""

import json

from annotation.configuration import configuration_of
from annotation.models import AuditEntry, Category, Criterion, Membership, Project, User
from annotation.personal_data import personal_data
from tests import factories
from tests.annotation.test_admin import judge_everything
from tests.api.scene import Asker
from tests.webapp.test_accounts import confirmed, signed_in

INVITATIONS = "/projects/tea/invitations/"


def test_a_link_is_made_followed_and_revoked(project: Project, as_carol: Asker, oscar: User):
    made = as_carol.post(INVITATIONS, {"role": "reviewer", "days": 3, "note": "Oscar"})
    assert made.status_code == 201
    told = made.json()
    assert told["link"].endswith(f"/invitations/{told['secret']}/")
    [listed] = as_carol.get(INVITATIONS).json()["results"]
    assert told["secret"] not in str(listed)
    assert (listed["is_good"], listed["uses"], listed["most_uses"]) == (True, 0, 1)
    as_oscar = Asker(oscar)
    joined = as_oscar.post("/invitations/accept/", {"secret": told["secret"]})
    assert (joined.status_code, joined.json()["role"]) == (200, "reviewer")
    assert Membership.objects.get(user=oscar).role == "reviewer"
    # It was for one.
    again = Asker(factories.make_user("nina")).post("/invitations/accept/", {"secret": told["secret"]})
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "secret")
    other = as_carol.post(INVITATIONS, {"role": "annotator"}).json()
    assert as_carol("DELETE", f"{INVITATIONS}{other['id']}/").status_code == 204
    assert as_carol.get(INVITATIONS).json()["results"][0]["is_good"] is False


def test_a_person_sees_their_sessions_and_ends_them(alice: User):
    here, there = signed_in("alice"), signed_in("alice")
    listed = here.get("/api/v1/sessions/").json()
    assert sorted(one["is_current"] for one in listed) == [False, True]
    [other] = [one["id"] for one in listed if not one["is_current"]]
    assert here.delete(f"/api/v1/sessions/{other}/").status_code == 204
    assert there.get("/api/v1/me/").status_code in (401, 403)
    assert here.get("/api/v1/me/").status_code == 200
    assert here.delete(f"/api/v1/sessions/{other}/").status_code == 404
    # A token is no session: it ends all of them.
    assert all(not one["is_current"] for one in Asker(alice).get("/sessions/").json())
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
    told = json.loads(answer.getvalue())
    assert told["person"]["username"] == "alice"
    alice.refresh_from_db()
    assert told == json.loads("".join(personal_data(alice)))


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


def test_the_only_administrator_is_told_why_they_cannot_leave(admin: User):
    here = confirmed(signed_in("admin"))
    answer = here.post("/api/v1/me/deletion/", {"username": "admin"}, "application/json")
    assert answer.status_code == 422
    assert "only administrator" in answer.json()["detail"]
    assert here.get("/api/v1/me/").status_code == 200


def test_a_category_is_added_changed_and_deleted(project: Project, as_admin: Asker):
    address = "/projects/tea/categories/rude/"
    added = as_admin("PUT", address, {"label": "Rude", "scope": "span", "severity_steps": 3, "shortcut": "r"})
    assert (added.status_code, added.json()["severity_steps"]) == (200, 3)
    row = Category.objects.get(key="rude")
    assert row.position == 4
    changed = as_admin("PUT", address, {"label": "Impolite", "colour": "#112233"})
    assert (changed.json()["label"], changed.json()["severity_steps"]) == ("Impolite", 3)
    # Those who label read it from their next page on.
    project.refresh_from_db()
    assert "Impolite" in [one.label for one in configuration_of(project).categories]
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
    taken = project.categories.exclude(shortcut="").first().shortcut
    for body, field in (
        ({"label": "Rude", "colour": "red"}, "colour"),
        ({"label": "Rude", "severity_steps": 10}, "severity_steps"),
        ({"label": ""}, "label"),
        ({"label": "Rude", "scope": "everywhere"}, "scope"),
    ):
        refused = as_admin("PUT", address, body)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)
    assert as_admin("PUT", address, {"label": "Rude", "shortcut": taken}).status_code == 422
    assert not Category.objects.filter(key="rude").exists()


def test_what_judgments_go_by_is_not_deleted(project: Project, as_admin: Asker, alice: User):
    judge_everything(project, alice)
    for address in ("categories/untruthful/", "criteria/helpful/"):
        refused = as_admin("DELETE", f"/projects/tea/{address}")
        assert (refused.status_code, "cannot be deleted" in refused.json()["detail"]) == (422, True)
    assert not AuditEntry.objects.filter(action__endswith=".delete").exists()
