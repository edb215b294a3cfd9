"""Votes on side-by-side comparisons: blind until the vote, which is a judgment."""

import importlib
import re

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.urls import reverse

from annotation.choices import Purpose, Split, Verdict
from annotation.exchange.file_exports import Export
from annotation.exchange.formats.registry import WRITERS
from annotation.models import AuditEntry, Comparison, Completion, Judgment, Prompt
from annotation.selectors.access import judgments_current
from tests import factories
from tests.training.comparing.compare_scene import ask, better, page_of, vote
from training.models import Checkpoint, SideBySide, SideBySideAnswer, VoteCount
from training.selectors.evaluations import people_say
from training.selectors.rounds import decided_judgments
from training.services.leaderboard import count_votes
from training.views.responses import responses_of

pytestmark = pytest.mark.django_db


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


def test_the_best_of_four_may_be_ranked_alone(manager, server):
    server.text = lambda body: f"Text of {body['model']}."
    shown = ask(manager, unblinded="on", third="east", fourth="west")
    vote(manager, shown, "ranked", rank_2=1, partial="on")
    ranks = {row.completion.source.name: row.rank for row in Judgment.objects.get().ranks.all()}
    assert ranks == {"south": 1}
    page = page_of(manager, shown)
    assert "Your vote: 2; not ordered: 1, 3, 4." in page
    assert page.count('<span class="badge">not ordered</span>') == 3


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
