"""Notices on the labelling page: changed guidelines, gold feedback and the annotator's pace."""

import uuid

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Judgment, Membership, Project, User
from annotation.selectors.annotator_work import PersonPace
from annotation.services.assignments.display_order import tokens_of
from annotation.services.assignments.next import assign_next
from annotation.services.projects.projects import publish_guideline
from tests import factories
from tests.annotation.labelling.questions_scene import (
    HTMX,
    ClientOf,
    address,
    label,
    ratings,
    send,
    shown,
    token_of,
)

# ── Rules that changed ────────────────────────────────────────────────────────────────


CHANGED = "The guidelines have changed."


def test_the_first_rules_announce_nothing_and_count_as_read_at_the_first_submit(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    assert CHANGED not in label(browser, asks)
    assert Membership.objects.get(user=alice).guideline_seen is None
    send(browser, held, **ratings(held))
    assert Membership.objects.get(user=alice).guideline_seen == 1


def test_changed_rules_announce_themselves_until_they_are_read(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    home = reverse("project", args=[asks.slug])
    assert CHANGED in label(browser, asks)
    assert CHANGED in shown(browser.get(home))
    answer = browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": "2"})
    assert (answer.status_code, answer["Location"]) == (302, reverse("label", args=[asks.slug]))
    assert CHANGED not in label(browser, asks)
    assert CHANGED not in shown(browser.get(home))
    assert Membership.objects.get(user=alice).guideline_seen == 2


def test_a_submit_under_changed_rules_does_not_count_as_reading_them(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    publish_guideline(project=asks, text="New rules.", author=None)
    send(browser, held, guideline="2", **ratings(held))
    assert Membership.objects.get(user=alice).guideline_seen == 1


def test_who_judged_before_such_things_were_remembered_is_told_too(
    held: Assignment, asks: Project, alice: User, browser: Client
):
    send(browser, held, **ratings(held))
    Membership.objects.update(guideline_seen=None)
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    assert CHANGED in label(browser, asks)


def test_changed_rules_say_nothing_to_who_never_had_any_on_screen(
    asks: Project, alice: User, browser: Client
):
    """A vote of a side-by-side comparison and an imported annotation have no guidelines beside them."""
    for fields in ({"guideline": None}, {"imported_from": {"file": "votes.csv"}}):
        voted = factories.lease_to(factories.make_comparison(asks), alice)
        Assignment.objects.filter(pk=voted.pk).update(state=AssignmentState.SUBMITTED)
        known = {"guideline": asks.guidelines.get(), **fields}
        Judgment.objects.create(
            assignment=voted,
            comparison=voted.comparison,
            annotator=alice,
            verdict=Verdict.EQUAL,
            idempotency_key=uuid.uuid4(),
            **known,
        )
    publish_guideline(project=asks, text="New rules.", author=None)
    factories.make_comparison(asks)
    assert CHANGED not in label(browser, asks)
    assert CHANGED not in shown(browser.get(reverse("project", args=[asks.slug])))


@pytest.mark.parametrize("version", ["", "x", "7", "-1"])
def test_rules_that_there_are_not_cannot_be_read(version: str, asks: Project, alice: User, browser: Client):
    answer = browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": version})
    assert answer.status_code == 400
    assert Membership.objects.get(user=alice).guideline_seen is None


def test_reading_an_older_version_takes_nothing_back(asks: Project, alice: User, browser: Client):
    publish_guideline(project=asks, text="New rules.", author=None)
    for version in ("2", "1"):
        browser.post(reverse("guidelines-read", args=[asks.slug]), {"version": version})
    assert Membership.objects.get(user=alice).guideline_seen == 2


# ── Gold ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def gold(project: Project, alice: User) -> Assignment:
    """A gold item in Alice's hands: "right" is known to be better than "wrong"."""
    Project.objects.filter(pk=project.pk).update(gold_feedback=True, gold_share=1.0)
    factories.make_gold_item(project, (1, 2), texts=["right", "wrong"], explanation="It is *so*.")
    factories.make_comparison(project, ["work A", "work B"])
    assignment = assign_next(project=Project.objects.get(pk=project.pk), annotator=alice)
    assert assignment is not None
    assert assignment.comparison.completions.filter(text="right").exists()
    return assignment


def winner(assignment: Assignment, text: str) -> str:
    return f"win:{token_of(assignment, text)}:2"


@pytest.mark.parametrize(("text", "word"), [("right", "Right."), ("wrong", "Not quite.")])
def test_after_a_gold_item_the_next_page_says_what_was_known_and_why(
    text: str, word: str, gold: Assignment, browser: Client
):
    letters = dict(zip(tokens_of(gold), "AB", strict=True))
    order = f"{letters[token_of(gold, 'right')]} &gt; {letters[token_of(gold, 'wrong')]}"
    page = shown(send(browser, gold, choice=winner(gold, text)))
    assert "work A" in page
    for part in (word, order, "It is <em>so</em>."):
        assert part in page


def test_feedback_comes_alone_where_the_next_page_is_in_hand_already(gold: Assignment, browser: Client):
    data = {"idempotency_key": str(uuid.uuid4()), "choice": winner(gold, "right")}
    answer = browser.post(address("submit", gold), data, headers={**HTMX, "X-Next-In-Hand": "yes"})
    assert answer.status_code == 200
    assert "Right." in shown(answer)
    assert 'id="screen"' not in shown(answer)


def test_without_javascript_feedback_comes_after_the_redirect(gold: Assignment, browser: Client):
    data = {"idempotency_key": str(uuid.uuid4()), "choice": winner(gold, "wrong")}
    page = browser.post(address("submit", gold), data, follow=True)
    assert page.redirect_chain[0][0].endswith(f"?after={gold.pk}")
    assert "Not quite." in shown(page)


def test_nothing_is_said_of_work_or_by_a_silent_project(gold: Assignment, browser: Client):
    Project.objects.update(gold_feedback=False)
    page = shown(send(browser, gold, choice=winner(gold, "wrong")))
    assert 'id="feedback"' not in page


def test_nobody_asks_for_the_feedback_of_another(
    gold: Assignment, project: Project, bob: User, browser: Client, client_of: ClientOf
):
    send(browser, gold, choice=winner(gold, "wrong"))
    url = reverse("label", args=[project.slug])
    assert client_of(bob).get(f"{url}?after={gold.pk}").status_code == 404


# ── One's own pace ────────────────────────────────────────────────────────────────────


def test_ones_own_count_and_median_stand_on_the_screen_and_at_home(
    project: Project, alice: User, bob: User, browser: Client
):
    for seconds in (10, 100, 65):
        factories.make_judgment(factories.make_comparison(project), alice, active_seconds=seconds)
    factories.make_judgment(factories.make_comparison(project), bob, active_seconds=9000)
    # Yesterday's work is no part of today's count, and part of the pace.
    Assignment.objects.filter(judgments__active_seconds=100).update(closed_at="2020-01-01T12:00:00Z")
    factories.make_comparison(project)
    assert "2 today · median 1:05 min" in label(browser, project)
    home = shown(browser.get(reverse("project", args=[project.slug])))
    assert "2 today" in home
    assert "median 1:05 min" in home


def test_the_count_of_today_includes_the_one_in_hand_on_a_page_fetched_ahead(
    project: Project, alice: User, browser: Client
):
    for _ in range(2):
        factories.make_comparison(project)
    label(browser, project)
    in_hand = Assignment.objects.get()
    following = browser.get(reverse("label-ahead", args=[project.slug]), {"after": in_hand.pk}, headers=HTMX)
    # It is shown once the one in hand is submitted, the first of today.
    assert "1 today" in shown(following)


@pytest.mark.parametrize(
    ("seconds", "words"), [(2, "2 s"), (59, "59 s"), (60, "1:00 min"), (125, "2:05 min")]
)
def test_a_median_below_a_minute_is_in_seconds(seconds: int, words: str):
    assert PersonPace(today=1, median_seconds=seconds).clock == words


def test_a_day_that_is_full_says_so(project: Project, alice: User, browser: Client):
    Project.objects.filter(pk=project.pk).update(daily_limit=1)
    for _ in range(2):
        factories.make_comparison(project)
    assignment = assign_next(project=Project.objects.get(pk=project.pk), annotator=alice)
    assert assignment is not None
    assert "That is all for today" in shown(send(browser, assignment))
