"""The training pages: who may open them, what stands on them, where their links lead."""

import json
import re
from collections.abc import Callable
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from annotation.models import Completion, Project, Prompt, User
from training.choices import RoundState
from training.models import Checkpoint, Round, Snapshot
from training.services.rounds.actions import ACTIONS
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

SignIn = Callable[[User], Client]


@pytest.fixture
def trained(labelled: Round, carol: User) -> Round:
    """Round 1, trained to its end."""
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    return labelled


def pages_of(round_: Round) -> list[str]:
    policy = Checkpoint.objects.get(name="tea-round-1-policy")
    return [
        round_.get_absolute_url(),
        reverse("round-progress", args=["tea", 1]),
        reverse("round-retry", args=["tea", 1]),
        reverse("round-recipe", args=["tea", 1]),
        policy.get_absolute_url(),
        policy.run.get_absolute_url(),
        policy.run.snapshot.get_absolute_url(),
        reverse("completion", args=[Completion.objects.first().pk]),
        reverse("checkpoints"),
        reverse("compare"),
        reverse("compare") + "?project=tea",
    ]


def test_an_annotator_opens_none_because_they_tell_who_wrote_what(
    trained: Round, alice: User, client_of: SignIn
):
    client = client_of(alice)
    for url in pages_of(trained):
        response = client.get(url)
        assert response.status_code == 403, url
        assert b"tea-round-1-policy" not in response.content
        assert b"SmolLM2" not in response.content


@pytest.mark.parametrize("name", list(ACTIONS))
def test_a_link_only_asks(labelled: Round, carol: User, client_of: SignIn, name: str):
    before = Round.objects.values().get()
    address = reverse(f"round-{name}", args=["tea", 1])
    page = client_of(carol).get(address, {"step": "answer_prompts"}, follow=True)
    assert page.status_code == 200
    if name == "open":
        # Asked on the page of the recipe; this round was opened, so nothing is left to ask.
        return
    assert 'id="confirm"' in page.content.decode()
    assert Round.objects.values().get() == before


def test_a_link_asks_no_checkpoint(carol: User, client_of: SignIn, project: Project):
    assert client_of(carol).get(reverse("compare-answer")).status_code == 405


def test_a_manager_starts_watches_and_cancels(labelled: Round, carol: User, client_of: SignIn):
    client = client_of(carol)
    page = client.get(labelled.get_absolute_url()).content.decode()
    assert "Start training round" in page
    assert 'hx-trigger="every' not in page  # nothing goes on, so nothing is asked for
    question = client.get(reverse("round-start", args=["tea", 1]), follow=True).content.decode()
    assert "The snapshot will hold 4 annotations of this round and those before" in question
    labelled.refresh_from_db()
    assert labelled.state == RoundState.LABELLING

    response = client.post(reverse("round-start", args=["tea", 1]), follow=True)
    page = response.content.decode()
    assert 'hx-trigger="every 2s"' in page
    for step in ("Freeze snapshot", "Train reward model", "Train policy", "Register checkpoints"):
        assert step in page

    client.post(reverse("round-cancel", args=["tea", 1]))
    labelled.refresh_from_db()
    assert labelled.state == RoundState.CANCELLED
    page = client.get(labelled.get_absolute_url()).content.decode()
    assert "Start again" in page
    assert "Back to labelling" in page
    client.post(reverse("round-again", args=["tea", 1]))
    labelled.refresh_from_db()
    assert labelled.state == RoundState.TRAINING_REWARD_MODELS


def test_a_start_that_is_refused_says_why(
    project: Project, prompts: list[Prompt], carol: User, client_of: SignIn
):
    open_first_round(project=project)
    response = client_of(carol).post(reverse("round-start", args=["tea", 1]), follow=True)
    assert "Tea has no judgments yet: label some comparisons" in response.content.decode()


def test_a_decided_round_shows_no_curves_and_asks_for_nothing(trained: Round, carol: User, client_of: SignIn):
    page = client_of(carol).get(reverse("round-progress", args=["tea", 1])).content.decode()
    assert "data-curves=" not in page
    assert "hx-get" not in page
    assert page.count('data-state="done"') == 7
    whole = client_of(carol).get(reverse("round", args=["tea", 1])).content.decode()
    assert "annotations so far" not in whole


def test_a_failure_stands_on_the_page_in_the_words_of_the_trainer(
    labelled: Round, carol: User, client_of: SignIn, rondo_home
):
    (rondo_home / "fake_trainer.json").write_text('{"fail_at": 1}')
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    page = client_of(carol).get(labelled.get_absolute_url()).content.decode()
    assert "Train reward model failed." in page
    assert "Loss was not finite at step 1. Lower the learning rate." in page


def links(page: str) -> list[str]:
    return [unescape(link) for link in re.findall(r'href="([^"]+)"', page)]


def test_from_a_checkpoint_one_walks_to_the_seed_of_every_answer_it_learnt_from(
    trained: Round, carol: User, client_of: SignIn
):
    client = client_of(carol)

    def follow(page: str, pattern: str) -> str:
        matching = [link for link in links(page) if re.fullmatch(pattern, link)]
        assert matching, pattern
        return client.get(matching[0]).content.decode()

    checkpoint = client.get(reverse("checkpoint", args=["tea-round-1-policy"])).content.decode()
    run = follow(checkpoint, r"/runs/\d+/")
    snapshot = follow(run, r"/snapshots/[0-9a-f]{64}/")
    judged = {link for link in links(snapshot) if link.startswith("/completions/")}
    # Two pairs and two rankings of four were judged: all twelve answers are linked.
    assert len(judged) == 12
    first = Completion.objects.get(pk=int(min(judged).split("/")[2]))
    answer = client.get(min(judged)).content.decode()
    assert str(first.seed) in answer
    body = json.loads(unescape(re.search(r"<pre[^>]*>(.*?)</pre>", answer, re.DOTALL).group(1)))
    assert body == {
        "model": "SmolLM2-135M-Instruct",
        "messages": first.prompt.messages,
        "seed": first.seed,
        "temperature": 0.8,
        "top_p": 0.95,
        "top_k": 0,
        "max_tokens": 200,
    }
    writer = follow(answer, r"/checkpoints/SmolLM2-135M-Instruct/")
    assert "starter model" in writer


def test_pages_ask_the_database_as_often_for_many_rows_as_for_few(
    trained: Round, carol: User, client_of: SignIn, django_assert_max_num_queries
):
    # Session, user, role twice, and then the rows: the numbers hold whatever the number of rows. A decided
    # round has its evaluation too, which takes three; the sidebar counts what waits in one.
    client = client_of(carol)
    budgets = {
        # The panel that says whether the round helped takes three, the line of live learning one.
        trained.get_absolute_url(): 21,
        reverse("round-progress", args=["tea", 1]): 11,
        # Rounds to filter by and evaluations take one each.
        reverse("checkpoints"): 10,
        reverse("checkpoint", args=["tea-round-1-policy"]): 14,
        Snapshot.objects.get().get_absolute_url(): 11,
        reverse("completion", args=[Completion.objects.first().pk]): 7,
    }
    for url, budget in budgets.items():
        with django_assert_max_num_queries(budget, info=url):
            assert client.get(url).status_code == 200


def test_checkpoints_of_another_project_cannot_be_seen(trained: Round, oscar: User, client_of: SignIn):
    from tests import factories

    factories.make_project(slug="coffee", managers=[oscar])
    client = client_of(oscar)
    listed = client.get(reverse("checkpoints")).content.decode()
    assert "SmolLM2-135M-Instruct" in listed
    assert "tea-round-1-policy" not in listed
    assert client.get(reverse("checkpoint", args=["tea-round-1-policy"])).status_code == 404
