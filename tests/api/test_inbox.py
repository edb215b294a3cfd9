"""Inbox and comments by the API: the same rules as on the pages."""

import pytest

from annotation.models import Project, User
from annotation.services.assignments.next import assign_next
from tests.api.scene import Asker, make_scene

pytestmark = pytest.mark.django_db


def test_a_question_is_asked_answered_read_and_hidden_from_others(
    project: Project, alice: User, bob: User, carol: User
):
    scene = make_scene(project, alice, carol)
    as_alice, as_bob, as_carol = Asker(alice), Asker(bob), Asker(carol)
    comments_address = f"/projects/tea/assignments/{scene.assignment.pk}/comments/"
    threads = f"/projects/tea/comparisons/{scene.assignment.comparison_id}/comments/"
    assert as_alice.post(comments_address, {"text": "Hm?"}).status_code == 201
    reply = {"assignment": scene.assignment.pk, "text": "Yes."}
    assert as_carol.post(threads, reply).json()["author"] == "carol"
    assert [row["text"] for row in as_alice.get(comments_address).json()["results"]] == ["Hm?", "Yes."]
    assert [row["text"] for row in as_carol.get(threads).json()["results"]] == ["Hm?", "Yes."]
    assert assign_next(project=project, annotator=bob) is not None
    assert as_bob.get(comments_address).status_code == 404
    assert as_bob.get(threads).status_code == 403
    (notification,) = as_alice.get("/inbox/?unread=true").json()["results"]
    assert (notification["kind"], notification["text"], notification["excerpt"]) == (
        "reply",
        "carol replied",
        "Yes.",
    )
    assert as_bob.post("/inbox/", {"ids": [notification["id"]]}).json() == {"marked": 0}
    assert as_alice.post("/inbox/", {"ids": [notification["id"]]}).json() == {"marked": 1}
    assert as_alice.get("/inbox/?unread=true").json()["results"] == []


def test_e_mails_are_chosen_and_the_answer_says_that_none_are_sent(alice: User):
    asker = Asker(alice)
    values = {"mentions": False, "failures": True, "digest": True}
    chosen = asker("PUT", "/me/mail/", values)
    assert chosen.json() == {"is_configured": False, "email": "alice@example.org", **values}
    assert asker.get("/me/mail/").json() == chosen.json()
