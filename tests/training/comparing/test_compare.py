"""Checkpoints beside each other: written, measured, stored; hidden until the vote, which is a judgment."""

import importlib
import json
import re
from collections.abc import Callable
from html import unescape

import httpx
import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test import Client
from django.urls import reverse

from annotation.choices import Purpose, Split, Verdict
from annotation.exchange.file_exports import Export
from annotation.exchange.formats.registry import WRITERS
from annotation.models import AuditEntry, Comparison, Completion, Judgment, Project, Prompt, User
from annotation.selectors.access import judgments_current
from tests import factories
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.engine.streaming_server import StreamingServer
from training.engine import Engine
from training.models import Checkpoint, SideBySide, SideBySideAnswer, VoteCount
from training.recipe import Recipe, default_recipe
from training.selectors.evaluations import people_say
from training.selectors.judgments import decided_judgments
from training.services.comparing.leaderboard import count_votes
from training.services.runs.runs import create_run
from training.services.snapshots import freeze_snapshot
from training.views.comparing.responses import responses_of

pytestmark = pytest.mark.django_db
SignIn = Callable[[User], Client]
NAMES = ("north", "south", "east", "west", "centre")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: "Not <hot>." if body["model"] == "north" else "Very hot."
    fake_server.score = lambda text: 1.25 if text.startswith("Very") else -0.5
    client = lambda *_, **__: Engine(transport=httpx.MockTransport(fake_server))  # noqa: E731
    monkeypatch.setattr("training.services.comparing.side_by_side.engine_for", client)
    monkeypatch.setattr("training.views.comparing.side_by_side.Engine", client)
    return fake_server


@pytest.fixture
def checkpoints(project: Project) -> list[Checkpoint]:
    return make_checkpoints(project, NAMES)


@pytest.fixture
def reward(project: Project, alice: User) -> Checkpoint:
    prompt = factories.make_prompt(project, "Judged?", split=Split.TRAIN)
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    run = create_run(
        name="taste",
        snapshot=freeze_snapshot(project=project, rounds=[1]),
        settings_of_method=Recipe.from_json(default_recipe()).reward,
        base_model="base",
        parent=None,
        seed=1,
    )
    return Checkpoint.objects.create(
        name="taste", kind="reward", project=project, base_model="base", run=run, digest="d" * 64
    )


@pytest.fixture
def manager(carol: User, checkpoints, server, client_of: SignIn) -> Client:
    return client_of(carol)


def question_form(**changes: object) -> dict[str, object]:
    return {
        "project": "tea",
        "left": "north",
        "right": "south",
        "text": "How hot?",
        "temperature": "0.5",
        "seed": "3",
        "max_tokens": "50",
        **changes,
    }


def ask(client: Client, **changes: object) -> SideBySide:
    answer = client.post(reverse("compare-answer"), question_form(**changes))
    assert answer.status_code == 302, unescape(answer.content.decode())
    return SideBySide.objects.latest("pk")


def page_of(client: Client, shown: SideBySide) -> str:
    return client.get(shown.get_absolute_url()).content.decode()


def vote(client: Client, shown: SideBySide, choice: str, **ranks: object) -> None:
    client.post(reverse("compare-vote", args=[shown.slug]), {"vote": choice, **ranks})


def place_of(shown: SideBySide, name: str) -> int:
    return shown.answers.get(checkpoint__name=name).position


def better(shown: SideBySide, name: str) -> str:
    return ("first", "second")[place_of(shown, name) - 1]


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


# ── Voting ────────────────────────────────────────────────────────────────────────────


def test_blind_nothing_tells_who_wrote_what_until_the_vote(manager, reward, server):
    server.text = lambda body: {"north": "Cold.", "south": "Warm."}.get(body["model"], "?")
    shown = ask(manager, reward="taste")
    for answer in (
        manager.get(shown.get_absolute_url()),
        manager.get(shown.get_absolute_url() + "?part=answers"),
    ):
        everything = answer.content.decode() + str(answer.headers)
        plain = re.sub(r'<span class="visually-hidden">[^<]*</span>', "", everything)
        assert "Cold." in re.sub("<[^>]*>", "", plain)
        for secret in (
            "north",
            "south",
            "1.250",
            "-0.500",
            "Segments by",
            "1 token",
            "KL 0",
            "<ins>",
            "<del>",
        ):
            assert secret not in everything
    vote(manager, shown, "first")
    page = page_of(manager, shown)
    assert "north" in page
    assert "south" in page


def test_blind_answers_are_not_streamed_because_speed_tells_a_model(manager):
    shown = ask(manager, stream="1")
    answer = manager.post(reverse("compare-write", args=[shown.slug]), {"position": "1"})
    assert answer.status_code == 302
    assert not shown.answers.filter(written_at__isnull=True).exists()


def test_blind_the_order_is_drawn_by_chance(manager):
    first: set[str] = set()
    # One name alone 40 times would be a chance of one in 2³⁹.
    for _ in range(40):
        shown = ask(manager, stream="1")
        first.add(SideBySideAnswer.objects.get(side_by_side=shown, position=1).checkpoint.name)
        if len(first) == 2:
            break
    assert first == {"north", "south"}


def test_a_vote_records_prompt_answers_comparison_and_judgment(manager, carol, project):
    shown = ask(manager)
    vote(manager, shown, better(shown, "south"))
    prompt = Prompt.objects.get(messages=[{"role": "user", "content": "How hot?"}])
    assert prompt.tags == ["side by side"]
    stored = {completion.source.name: completion for completion in Completion.objects.filter(prompt=prompt)}
    assert stored["south"].text == "Very hot."
    assert stored["south"].seed == 3
    assert stored["south"].sampling == {"temperature": 0.5, "top_p": 0.95, "max_tokens": 50}
    comparison = Comparison.objects.get()
    assert (comparison.purpose, comparison.open_slots, comparison.round_number) == (Purpose.WORK, 0, 1)
    judgment = Judgment.objects.get()
    assert (judgment.annotator, judgment.verdict) == (carol, Verdict.RANKED)
    assert {row.completion: row.rank for row in judgment.ranks.all()} == {
        stored["south"]: 1,
        stored["north"]: 2,
    }
    assert judgment.blind
    assert judgment.assignment.display_order == [
        stored[answer.checkpoint.name].pk for answer in shown.answers.all()
    ]
    assert list(AuditEntry.objects.values_list("action", flat=True)) == ["side_by_side.vote"]
    count_votes()
    assert VoteCount.objects.filter(slice="all").count() == 1


def test_a_second_vote_in_another_order_marks_the_response_that_it_chose(manager):
    """Both votes are one assignment, which keeps the order of the first page."""
    vote(manager, ask(manager, unblinded="on"), "first")
    shown = ask(manager, unblinded="on", left="south", right="north")
    vote(manager, shown, "first")
    shown.refresh_from_db()
    assert [(response.name, response.rank) for response in responses_of(shown)] == [
        ("south", 1),
        ("north", 2),
    ]


def test_voting_twice_is_one_vote(manager):
    shown = ask(manager)
    vote(manager, shown, "second")
    vote(manager, shown, "first")
    assert Judgment.objects.count() == 1


def test_four_are_voted_on_by_ranks(manager, server):
    server.text = lambda body: f"Text of {body['model']}."
    shown = ask(manager, unblinded="on", third="east", fourth="west")
    vote(manager, shown, "ranked", rank_1=2, rank_2=1, rank_3=2)
    assert not Judgment.objects.exists()  # one has no rank
    vote(manager, shown, "ranked", rank_1=2, rank_2=1, rank_3=2, rank_4=4)
    ranks = {row.completion.source.name: row.rank for row in Judgment.objects.get().ranks.all()}
    assert ranks == {"south": 1, "north": 2, "east": 2, "west": 3}


@pytest.mark.parametrize(
    ("choice", "of_two", "of_three"),
    [
        ("first", "response 1 is better", None),
        ("second", "response 2 is better", None),
        ("ranked", None, "2 &gt; 1 = 3"),
        ("equal", "equal", "all equal"),
        ("both_good", "both good", "all good"),
        ("both_bad", "both bad", "all bad"),
        ("cannot_judge", "cannot judge", "cannot judge"),
    ],
)
def test_the_page_says_in_words_what_was_voted(manager, server, choice, of_two, of_three):
    server.text = lambda body: f"Text of {body['model']}."
    for words, third in ((of_two, ""), (of_three, "east")):
        if words is None:
            continue
        shown = ask(manager, unblinded="on", third=third)
        vote(manager, shown, choice, rank_1=2, rank_2=1, rank_3=2)
        assert f"Your vote: {words}." in page_of(manager, shown)


@pytest.mark.parametrize(("split", "learned"), [(Split.TRAIN, 1), (Split.HELD_OUT, 0)])
def test_a_vote_on_a_training_prompt_is_learned_from_and_on_a_held_out_one_it_measures(
    manager, project, split, learned
):
    prompt = factories.make_prompt(project, "Of a split?", split=split)
    shown = ask(manager, text="", prompt=prompt.pk)
    vote(manager, shown, "first")
    assert judgments_current(project, [1]).count() == 1
    assert decided_judgments(project, [1]).count() == learned


def test_a_text_that_the_same_seed_gave_otherwise_is_not_mistaken_for_what_was_read(manager, project):
    prompt = factories.make_prompt(project, "Sampled before?")
    source = Checkpoint.objects.get(name="south").source
    factories.make_completions(prompt, ["Something else."], source=source)
    before = Completion.objects.get(prompt=prompt)
    shown = ask(manager, text="", prompt=prompt.pk, seed=before.seed)
    vote(manager, shown, better(shown, "south"))
    best = Judgment.objects.get().ranks.get(rank=1).completion
    assert (best.text, best.source, best.seed) == ("Very hot.", source, None)


def test_a_vote_made_with_the_names_in_sight_is_stored_as_unblinded_and_counts_nowhere(manager, project):
    prompt = factories.make_prompt(project, "Named?", split=Split.TRAIN)
    shown = ask(manager, text="", prompt=prompt.pk, unblinded="on")
    assert "will be stored as unblinded" in page_of(manager, shown)
    vote(manager, shown, "second")
    judgment = Judgment.objects.get()
    assert not judgment.blind
    assert "leave it out" in page_of(manager, shown)
    # It takes no place in the queue, and puts nothing into it.
    assert (judgment.assignment.slot, judgment.comparison.open_slots) == (None, 0)
    assert not judgments_current(project).exists()
    assert not decided_judgments(project, [1]).exists()
    assert list(judgments_current(project, unblinded=True)) == [judgment]
    count_votes()
    assert not VoteCount.objects.exists()
    north, south = (Checkpoint.objects.get(name=name) for name in ("north", "south"))
    assert people_say(north, south).judgments == 0
    item = manager.get(reverse("statistics-item", args=["tea", judgment.comparison_id]))
    assert "unblinded" in item.content.decode()


def test_an_unblinded_vote_stands_marked_in_the_export_and_not_in_files_to_train_on(manager, project):
    shown = ask(manager, unblinded="on")
    vote(manager, shown, "second")
    (row,) = Export(project=project, writer=WRITERS["jsonl"]).row_stream()
    assert row["blind"] is False
    assert list(Export(project=project, writer=WRITERS["trl-preference"]).row_stream()) == []


def test_names_can_be_shown_before_the_vote_which_is_then_unblinded(manager):
    shown = ask(manager)
    manager.post(reverse("compare-reveal", args=[shown.slug]))
    page = page_of(manager, shown)
    assert "north" in page
    assert "<ins>" in page
    vote(manager, shown, "equal")
    assert not Judgment.objects.get().blind


def test_a_second_vote_on_responses_whose_names_were_told_does_not_replace_the_blind_one(manager):
    first, second = ask(manager), ask(manager)
    vote(manager, first, "first")
    vote(manager, second, "equal")
    assert Judgment.objects.get().blind
    second.refresh_from_db()
    assert second.judgment is None


def test_votes_of_before_are_marked_by_the_migration_with_their_revisions_and_counted_again(manager, project):
    shown, hidden = ask(manager), ask(manager, seed="4")
    vote(manager, shown, "equal")
    vote(manager, hidden, "equal")
    count_votes()
    SideBySide.objects.filter(pk=shown.pk).update(blind=False)
    name = "0013_unblinded_votes"
    then = MigrationLoader(connection, replace_migrations=False).project_state(("training", name)).apps
    importlib.import_module(f"training.migrations.{name}").mark_unblinded(then, None)
    marks = {row.judgment_id: row.judgment.blind for row in SideBySide.objects.select_related("judgment")}
    shown.refresh_from_db()
    assert marks == {pk: pk != shown.judgment_id for pk in marks}
    assert project.vote_totals.stale


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
