"""Side-by-side comparisons of checkpoints: written, measured, stored, and continued as conversations."""

import json
import re
from html import unescape

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Judgment
from tests import factories
from tests.training.comparing.compare_scene import ask, page_of, place_of, question_form, vote
from training.models import SideBySide

pytestmark = pytest.mark.django_db


# ── Asking ────────────────────────────────────────────────────────────────────────────


def test_without_a_script_all_answers_are_there_when_the_page_opens(manager, server, reward):
    shown = ask(manager, unblinded="on", reward="taste", third="east")
    completed = {body["model"]: body for body in server.asked if "n" in body}
    assert set(completed) == {"north", "south", "east"}
    assert {body["seed"] for body in completed.values()} == {3}
    assert {body["temperature"] for body in completed.values()} == {0.5}
    page = page_of(manager, shown)
    assert all(name in page for name in ("north", "south", "east"))
    assert "west" not in page


def test_two_answers_show_what_differs_their_rewards_by_segment_and_their_divergence(manager, reward):
    page = page_of(manager, ask(manager, unblinded="on", reward="taste"))
    plain = re.sub(r'<span class="visually-hidden">[^<]*</span>', "", page)
    assert "<del>Not &lt;</del>hot<del>&gt;</del>." in plain
    assert "<ins>Very </ins>hot." in plain
    assert "-0.500" in page
    assert "1.250" in page
    assert "Segments by untruthful" in page
    # The largest reward of an answer is as dark as it gets, and below 0.
    assert '<span class="segment shade-n4">Not</span>' in page
    # 0.75 of 2 nats.
    assert 'data-kl="0.75">Not ' in page
    assert "KL 0.75" in page


def test_a_server_that_knows_no_divergence_is_shown_without(manager, server):
    server.knows_kl = False
    page = page_of(manager, ask(manager, unblinded="on"))
    assert "Very " in page
    assert "data-kl" not in page
    assert ">KL " not in page


def test_opening_the_page_again_asks_no_model(manager, server):
    shown = ask(manager)
    server.asked.clear()
    server.trouble = lambda request: httpx.Response(503)
    assert "Very " in page_of(manager, shown)
    assert server.asked == []


def test_with_a_script_each_answer_comes_in_pieces_and_is_stored_at_the_end(manager, server):
    shown = ask(manager, unblinded="on", stream="1")
    assert server.asked == []
    place = shown.answers.get(checkpoint__name="south").position
    response = manager.post(reverse("compare-write", args=[shown.slug]), {"position": place})
    events = [json.loads(line[6:]) for line in response.getvalue().decode().split("\n\n") if line]
    assert events == [{"text": "Very"}, {"text": " hot."}, {"done": True}]
    written = shown.answers.get(position=place)
    assert (written.text, written.token_count, written.seed) == ("Very hot.", 2, 3)
    assert shown.answers.filter(written_at__isnull=True).count() == 1
    # Sent again it is what is stored, without asking.
    server.asked.clear()
    manager.post(reverse("compare-write", args=[shown.slug]), {"position": place}).getvalue()
    assert server.asked == []
    # Without a script the missing ones are written by a plain form.
    manager.post(reverse("compare-write", args=[shown.slug]))
    assert not shown.answers.filter(written_at__isnull=True).exists()


def test_a_server_that_fails_is_named_and_the_page_can_try_again(manager, server):
    server.trouble = lambda request: httpx.Response(503, json={"error": {"message": "still loading"}})
    answer = manager.post(reverse("compare-answer"), question_form(unblinded="on"), follow=True)
    assert "still loading" in answer.content.decode()
    server.trouble = lambda request: None
    shown = SideBySide.objects.get()
    manager.post(reverse("compare-write", args=[shown.slug]))
    assert "Very " in page_of(manager, shown)


def test_a_prompt_of_the_project_is_asked_as_it_stands(manager, server, project):
    prompt = factories.make_prompt(project, "From the list?", context=[("Leaves", ["Green."])])
    ask(manager, text="", prompt=prompt.pk)
    (chat, other) = [body["messages"] for body in server.asked if "n" in body]
    assert chat == other
    assert "From the list?" in chat[-1]["content"]
    assert "Green." in chat[-1]["content"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": " "}, "Choose a prompt of the project or type one."),
        ({"temperature": "9"}, "less than or equal to 2"),
        ({"left": "nobody"}, "Select a valid choice"),
        ({"right": "north"}, "Choose different checkpoints."),
    ],
)
def test_what_cannot_be_asked_is_said_beside_the_form(manager, server, changes, message):
    page = manager.post(reverse("compare-answer"), question_form(**changes)).content.decode()
    assert message in unescape(page)
    assert server.asked == []
    assert not SideBySide.objects.exists()


def test_a_model_server_that_is_not_ready_is_named_plainly(manager, server):
    server.trouble = lambda request: httpx.Response(
        503, json={"state": "loading", "message": "loading the starter model", "progress": 0.43}
    )
    page = manager.get(reverse("compare")).content.decode()
    assert "The model server is not ready: loading the starter model (43 %)" in page


def test_pages_and_checkpoints_of_another_project_do_not_exist(manager, oscar, client_of, server):
    shown = ask(manager)
    factories.make_project(slug="coffee", managers=[oscar])
    other = client_of(oscar)
    assert other.get(shown.get_absolute_url()).status_code == 404
    assert other.post(reverse("compare-vote", args=[shown.slug]), {"vote": "equal"}).status_code == 404
    assert other.post(reverse("compare-answer"), question_form()).status_code == 404
    server.asked.clear()
    other.post(reverse("compare-answer"), question_form(project="coffee"))
    assert server.asked == []


# ── Conversations ─────────────────────────────────────────────────────────────────────


def go_on(client: Client, shown: SideBySide, **fields: object) -> SideBySide:
    client.post(reverse("compare-continue", args=[shown.slug]), fields)
    return SideBySide.objects.latest("pk")


def test_a_conversation_goes_on_with_one_answer_for_all_and_is_voted_on_as_one_chat(manager, server):
    shown = ask(manager)
    server.asked.clear()
    following = go_on(manager, shown, text="And cold?", after=place_of(shown, "south"))
    chats = [body["messages"] for body in server.asked if "n" in body]
    expected = [
        {"role": "user", "content": "How hot?"},
        {"role": "assistant", "content": "Very hot."},
        {"role": "user", "content": "And cold?"},
    ]
    assert chats == [expected, expected]
    assert following.continues == shown
    vote(manager, following, "equal")
    assert Judgment.objects.get().comparison.prompt.messages == expected


def test_a_conversation_in_which_each_goes_on_with_its_own_answer_cannot_be_voted_on(manager, server):
    shown = ask(manager)
    server.asked.clear()
    following = go_on(manager, shown, text="And cold?", after="")
    earlier_answers = {body["model"]: body["messages"][1]["content"] for body in server.asked if "n" in body}
    assert earlier_answers == {"north": "Not <hot>.", "south": "Very hot."}
    assert "conversations differ" in page_of(manager, following)
    vote(manager, following, "equal")
    assert not Judgment.objects.exists()
    together = go_on(manager, following, text="Both?", after="1")
    assert together.shared
    assert len(together.messages) == 5


def test_what_is_hidden_stays_hidden_in_the_next_turn(manager):
    shown = ask(manager)
    following = go_on(manager, shown, text="And?", after="1")
    assert "north" not in page_of(manager, following)
    assert "south" not in page_of(manager, following)


def test_nothing_goes_on_before_all_have_answered(manager):
    shown = ask(manager, stream="1")
    assert go_on(manager, shown, text="And?", after="") == shown
