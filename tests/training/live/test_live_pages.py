"""Live learning on pages and in the API: for managers, and nothing of it for those who label."""

import json
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Project, User
from tests.api.scene import Asker
from training.models import LiveLearning, Round
from training.services.live import do_live, set_live, sweep_live

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

SignIn = Callable[[User], Client]


@pytest.fixture
def updated(
    project: Project,
    labelled: Round,
    carol: User,
) -> LiveLearning:
    """A project whose four judgments became an update."""
    learning = set_live(project=project, by=carol, is_active=True, every=4)
    sweep_live()
    do_live(learning.pk)
    return learning


def test_a_manager_sees_on_the_labelling_screen_which_policy_answers(
    project: Project, updated: LiveLearning, carol: User, client_of: SignIn
):
    page = client_of(carol).get(reverse("label", args=[project.slug])).content.decode()
    assert 'id="live-line"' in page
    assert "version 1" in page
    line = client_of(carol).get(reverse("live-line", args=[project.slug])).content.decode()
    assert "policy updated 0 annotations ago, version 1, 0 behind" in " ".join(line.split())


def test_an_annotator_sees_nothing_of_it(
    project: Project, updated: LiveLearning, alice: User, client_of: SignIn
):
    client = client_of(alice)
    page = client.get(reverse("label", args=[project.slug])).content.decode()
    assert "screen__where" in page
    for trace in ("live-line", "live/", "policy updated", "tea-live"):
        assert trace not in page
    for name in ("live", "live-line"):
        assert client.get(reverse(name, args=[project.slug])).status_code == 403


def test_the_page_lists_the_updates_with_where_they_come_from(
    project: Project, updated: LiveLearning, carol: User, client_of: SignIn
):
    page = client_of(carol).get(reverse("live", args=[project.slug])).content.decode()
    update = project.live_updates.get()
    for address in (
        update.snapshot.get_absolute_url(),
        update.run.get_absolute_url(),
        update.checkpoint.get_absolute_url(),
    ):
        assert f'href="{address}"' in page
    for name in ("rounds", "round"):
        arguments = [project.slug, *([1] if name == "round" else [])]
        assert 'id="live-line"' in client_of(carol).get(reverse(name, args=arguments)).content.decode()


def test_a_manager_switches_it_on_by_the_form(project: Project, carol: User, client_of: SignIn):
    client, address = client_of(carol), reverse("live", args=[project.slug])
    policy = json.dumps({"beta": 0.2, "optimiser": {"max_steps": 4}})
    sent = {"is_active": "on", "every": "20", "ahead": "5", "policy": policy}
    for wrong in ({"every": "0"}, {"ahead": "1000"}, {"policy": "[1]"}, {"policy": '{"beta": -1}'}):
        assert client.post(address, {**sent, **wrong}).status_code == 422
    assert not LiveLearning.objects.exists()
    assert client.post(address, sent).status_code == 302
    learning = LiveLearning.objects.get()
    assert (learning.is_active, learning.every, learning.ahead) == (True, 20, 5)
    assert learning.policy["beta"] == 0.2
    assert client.post(address, {**sent, "is_active": ""}).status_code == 302
    learning.refresh_from_db()
    assert not learning.is_active


def test_the_api_sets_what_the_page_sets_and_lists_the_updates(
    project: Project, updated: LiveLearning, alice: User, carol: User
):
    manager = Asker(carol)
    read = manager.get("/projects/tea/live/").json()
    assert (read["is_active"], read["every"], read["version"], read["behind"]) == (True, 4, 1, 0)
    assert read["checkpoint"] == "tea-live-1"
    put = manager("PUT", "/api/v1/projects/tea/live/", {"is_active": False})
    assert (put.status_code, put.json()["is_active"], put.json()["every"]) == (200, False, 4)
    wrong = manager("PUT", "/api/v1/projects/tea/live/", {"is_active": True, "policy": {"beta": -1}})
    assert wrong.status_code == 422
    [row] = manager.get("/projects/tea/live/updates/").json()["results"]
    assert (row["number"], row["state"], row["judgments"], row["round"]) == (1, "served", 4, 1)
    assert (row["run"], row["checkpoint"]) == ("tea-live-1", "tea-live-1")
    assert row["snapshot"] == project.live_updates.get().snapshot.digest
    assert Asker(alice).get("/projects/tea/live/").status_code == 403


def test_what_has_stopped_says_why(
    project: Project, labelled: Round, alice: User, carol: User, client_of: SignIn
):
    set_live(project=project, by=carol, is_active=False)
    LiveLearning.objects.update(stopped_because="People found update 10 worse.")
    page = client_of(carol).get(reverse("live", args=[project.slug])).content.decode()
    assert "People found update 10 worse." in page
