"""The leaderboard: ratings of counted votes against votes one by one, and pages whose numbers lead on."""

import re
import uuid
from collections.abc import Callable
from html import unescape

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Purpose, Verdict
from annotation.models import Project, User
from annotation.services.judgments.submission import record_vote, voted_comparison
from tests import factories
from tests.api.scene import Asker
from tests.records import judgment_record
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.comparing.test_leaderboard_counts import written
from training.models import Checkpoint
from training.ratings import (
    WEAK_PRIOR,
    bradley_terry_ratings,
)
from training.selectors.leaderboard import BoardChoice, board_of
from training.selectors.standings import WIDEST_INTERVAL, board, groups, is_narrow
from training.services.leaderboard import count_votes

SignIn = Callable[[User], Client]

# ── From counts to ratings ────────────────────────────────────────────────────────────


def test_a_board_is_the_fit_of_its_counts_best_first():
    rows = [(10, 20, 30, 10, 5, 3), (10, 30, 40, 10, 0, 0), (20, 30, 20, 20, 4, 0)]
    fitted = board(rows, both_bad=True, elo={10: 1010.0})
    wins = np.array([[0, 30, 40], [10, 0, 20], [10, 20, 0]])
    ties = np.array([[0, 8, 0], [8, 0, 4], [0, 4, 0]])
    expected = bradley_terry_ratings(wins, ties, prior=WEAK_PRIOR)
    assert [standing.source for standing in fitted.standings] == [10, 20, 30]
    assert [standing.rating for standing in fitted.standings] == pytest.approx(list(expected.elo()))
    assert (fitted.votes, fitted.ties, fitted.both_bad) == (142, 9, 3)
    first = fitted.standings[0]
    # 30 + 40 wins and 5 + 3 ties of 48 + 50 votes.
    assert first.votes == 98
    assert first.win_rate == pytest.approx(74 / 98)
    assert first.rank == 1
    assert first.elo == 1010.0
    assert fitted.standings[-1].p_next is None
    (_, cell, _) = fitted.matrix[0]
    assert (cell.left, cell.right, cell.votes) == (10, 20, 48)
    assert cell.rate == pytest.approx(34 / 48)


def test_both_bad_left_out_are_no_votes():
    rows = [(1, 2, 3, 1, 2, 50)]
    assert board(rows, both_bad=True, elo={}).votes == 56
    assert board(rows, both_bad=False, elo={}).votes == 6
    assert board([(1, 2, 0, 0, 0, 50)], both_bad=False, elo={}).standings == ()


def test_length_that_decides_is_taken_out_of_ratings():
    """Both models win exactly when theirs is the longer answer; one is longer three times of four."""
    rows = [(1, 2, 3, 1, 290, 10, 0, 0), (1, 2, -3, 1, 10, 90, 0, 0)]
    rows += [(1, 2, 3, 0, 290, 10, 0, 0), (1, 2, -3, 0, 10, 90, 0, 0)]
    plain = board([(1, 2, 600, 200, 0, 0)], both_bad=True, elo={})
    cleared = board(rows, both_bad=True, elo={})
    assert plain.standings[0].rating - plain.standings[1].rating > 150
    gap = abs(cleared.standings[0].rating - cleared.standings[1].rating)
    assert gap < 150
    assert cleared.length.low > 2
    assert cleared.position.low < 1 < cleared.position.high


def test_parts_are_fitted_each_by_itself_and_those_with_most_votes_are_kept():
    rows = [("1", 1, 2, 9, 1, 0, 0), ("2", 1, 2, 1, 90, 0, 0), ("3", 1, 2, 1, 1, 0, 0)]
    largest = groups(rows, most=2)
    assert [(group.value, group.votes) for group in largest] == [("2", 91), ("1", 10)]
    assert largest[0].ratings[2][0] > 1000 > largest[0].ratings[1][0]
    assert largest[1].ratings[1][0] > 1000


# ── Pages ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def voted(project: Project, alice: User, carol: User) -> list[Checkpoint]:
    """North beats south five times in round 1, once in an arena by a guest, and ties once."""
    checkpoints = make_checkpoints(project)
    guest = factories.make_user("guest", is_guest=True, is_active=False)
    for number in range(7):
        prompt = factories.make_prompt(project, f"Question {number}?", tags=["tea"] if number < 2 else [])
        answers = [
            written(prompt, checkpoint.source, f"{checkpoint.name} text {number}")
            for checkpoint in checkpoints
        ]
        arena = number == 5
        comparison = voted_comparison(
            prompt=prompt,
            completions=answers,
            round_number=2 if number == 6 else 1,
            purpose=Purpose.ARENA if arena else Purpose.WORK,
        )
        tie = number == 6
        ranks = {} if tie else {answers[0].pk: 1, answers[1].pk: 2}
        record_vote(
            comparison=comparison,
            voter=guest if arena else alice,
            shown=[answer.pk for answer in answers],
            answer=judgment_record(verdict=Verdict.EQUAL if tie else Verdict.RANKED, ranks=ranks),
            idempotency_key=uuid.uuid4(),
        )
    count_votes()
    return checkpoints


@pytest.mark.django_db
def test_the_page_ranks_with_intervals_and_every_number_leads_to_its_comparisons(
    project, voted, carol, client_of
):
    client = client_of(carol)
    page = unescape(client.get(reverse("leaderboard", args=["tea"])).content.decode())
    plain = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert plain.index("north") < plain.index("south")
    assert "7 votes. Ties: 1, both bad: 0." in plain
    north = voted[0].source_id
    south = voted[1].source_id
    link = f"{reverse('leaderboard-items', args=['tea'])}?left={north}&right={south}"
    assert f'href="{link}"' in page
    items = client.get(link).content.decode()
    assert items.count("card--link") == 7
    only = client.get(link + "&part=tag%3Atea").content.decode()
    assert only.count("card--link") == 2
    item = re.search(r'href="(/projects/tea/items/\d+/)"', items)
    assert client.get(item.group(1)).status_code == 200


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("query", "votes"),
    [
        ("voters=guests", "1 vote."),
        ("voters=people", "6 votes."),
        ("part=round:1", "6 votes."),
        ("part=round:2", "1 vote."),
        ("part=tag:tea", "2 votes."),
        ("part=arena:", "1 vote."),
        ("style=on", "7 votes."),
        ("part=nonsense&voters=nobody", "7 votes."),
    ],
)
def test_the_votes_can_be_narrowed(project, voted, carol, client_of, query, votes):
    page = client_of(carol).get(reverse("leaderboard", args=["tea"]) + f"?{query}").content.decode()
    plain = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert votes in plain
    assert ("Excluded" in plain) == (query == "style=on")


@pytest.mark.django_db
def test_ratings_stand_beside_each_other_by_round_and_by_tag(project, voted, carol, client_of):
    client = client_of(carol)
    by_round = client.get(reverse("leaderboard-groups", args=["tea"])).content.decode()
    assert by_round.index("Round 1") < by_round.index("Round 2")
    by_tag = client.get(reverse("leaderboard-groups", args=["tea"]) + "?by=tag").content.decode()
    assert "Tag: tea" in by_tag


@pytest.mark.django_db
def test_a_new_vote_makes_a_new_board_and_no_vote_keeps_the_fitted_one(project, voted, alice):
    before = board_of(project, BoardChoice())
    assert board_of(project, BoardChoice()) is before
    prompt = factories.make_prompt(project, "One more?")
    answers = [written(prompt, checkpoint.source, checkpoint.name) for checkpoint in voted]
    comparison = voted_comparison(prompt=prompt, completions=answers, round_number=1, purpose=Purpose.WORK)
    factories.make_judgment(comparison, alice)
    count_votes()
    assert board_of(project, BoardChoice()).votes == before.votes + 1


@pytest.mark.django_db
def test_the_page_asks_the_database_as_often_for_many_votes_as_for_few(
    project, voted, carol, client_of, django_assert_max_num_queries
):
    client = client_of(carol)
    with django_assert_max_num_queries(14):
        client.get(reverse("leaderboard", args=["tea"]))


@pytest.mark.django_db
def test_a_project_without_votes_says_what_would_be_one(project, carol, client_of):
    page = client_of(carol).get(reverse("leaderboard", args=["tea"])).content.decode()
    assert "No votes here yet" in page


@pytest.mark.django_db
def test_long_lists_of_comparisons_come_page_by_page(project, voted, carol, client_of, monkeypatch):
    monkeypatch.setattr("training.views.leaderboard._ON_A_PAGE", 3)
    client = client_of(carol)
    base = f"{reverse('leaderboard-items', args=['tea'])}?left={voted[0].source_id}"
    seen = []
    for page in (1, 2, 3):
        content = client.get(f"{base}&page={page}").content.decode()
        seen.append(re.findall(r'href="/projects/tea/items/(\d+)/"', content))
        assert ('rel="next"' in content) == (page < 3)
        assert ('rel="prev"' in content) == (page > 1)
    assert [len(ids) for ids in seen] == [3, 3, 1]
    assert len({pk for ids in seen for pk in ids}) == 7


# ── Too few votes ─────────────────────────────────────────────────────────────────────


FEW = [(10, 20, 300, 100, 0, 0), (10, 30, 2, 0, 0, 0)]
"""10 beats 20 in 300 of 400 votes, and 30 twice."""


def test_a_model_with_too_few_votes_has_no_rank_and_comes_last():
    fitted = board([*FEW, (20, 30, 0, 1, 0, 0)], both_bad=True, elo={})
    last = fitted.standings[-1]
    assert (last.source, last.votes, last.is_rated, last.rank, last.p_next) == (30, 3, False, None, None)
    assert last.high - last.low > 400
    assert [(standing.source, standing.rank, standing.is_rated) for standing in fitted.standings[:2]] == [
        (10, 1, True),
        (20, 1, True),
    ]
    # 30 lies between the two in the fit, and what has no rating is compared with nothing.
    assert [standing.p_next for standing in fitted.standings] == [None, None, None]


def test_a_model_that_won_its_only_votes_is_not_first():
    fitted = board([(10, 20, 300, 100, 0, 0), (10, 30, 0, 2, 0, 0)], both_bad=True, elo={})
    assert fitted.standings[-1].source == 30
    assert fitted.standings[-1].rating > fitted.standings[0].rating
    assert [line[0].left for line in fitted.matrix] == [10, 20, 30]


def test_an_interval_as_wide_as_the_bound_is_narrow_enough():
    assert is_narrow(900.0, 900.0 + WIDEST_INTERVAL)
    assert not is_narrow(900.0, 900.5 + WIDEST_INTERVAL)


@pytest.mark.django_db
def test_pages_and_the_api_say_too_few_votes_instead_of_a_rating(project, carol, client_of, monkeypatch):
    north, south, east = make_checkpoints(project, ("north", "south", "east"))
    ids = [checkpoint.source_id for checkpoint in (north, south, east)]
    few = board([(ids[0], ids[1], 300, 100, 0, 0), (ids[0], ids[2], 2, 0, 0, 0)], both_bad=True, elo={})
    for module in ("training.views.leaderboard", "training.api.leaderboard"):
        monkeypatch.setattr(f"{module}.board_of", lambda *_: few)
    page = client_of(carol).get(reverse("leaderboard", args=["tea"])).content.decode()
    rows = re.findall(r'<tr>\s*<td class="number">(.*?)</tr>', page, re.S)
    assert [("too few votes" in row, "board__mark" in row) for row in rows] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert "1 model has too few votes for a rating" in page
    standings = Asker(carol).get("/projects/tea/leaderboard/").json()["standings"]
    assert [
        (standing["name"], standing["rated"], standing["rank"], standing["rating"] is None)
        for standing in standings
    ] == [
        ("north", True, 1, False),
        ("south", True, 1, False),
        ("east", False, None, True),
    ]


@pytest.mark.django_db
def test_a_round_with_too_few_votes_shows_no_rating(project, voted, carol, client_of):
    by_round = client_of(carol).get(reverse("leaderboard-groups", args=["tea"])).content.decode()
    assert "too few votes" in by_round
