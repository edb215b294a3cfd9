"""Abuse: bursts, contradictions and dominance, excluded until a manager includes them."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Project, User
from tests import factories
from tests.refusals import refused
from tests.training.feedback.conftest import Application
from training.choices import AbuseKind
from training.models import Checkpoint, Feedback, FeedbackIncident
from training.selectors.feedback import thumbs_by_day, trust_of_authors, usable_feedback
from training.services.feedback import abuse
from training.services.feedback.abuse import FeedbackVote, check_project, decide_incident, detect, sweep_abuse

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def vote(pk: int, *, author: str = "", seconds: float = 0.0, **fields: object) -> FeedbackVote:
    """Return a thumb up, by default by a new author and on a new completion."""
    values = {
        "completion": (pk, 0),
        "is_thumb": True,
        "is_good": True,
        "author": author or f"author-{pk}",
        "address": "",
        "source": "shop",
        "changes": 0,
        "at": NOON + timedelta(seconds=seconds),
        **fields,
    }
    return FeedbackVote(pk=pk, **values)  # type: ignore[arg-type]


def findings(
    votes: list[FeedbackVote], before: Counter[str] | None = None
) -> dict[tuple[str, str], set[int]]:
    return {
        (str(finding.kind), finding.subject): set(finding.votes)
        for finding in detect(votes, before or Counter())
    }


def test_ordinary_feedback_is_no_abuse():
    assert findings([vote(n, seconds=60 * n, is_good=n % 3 > 0) for n in range(60)]) == {}


def test_a_burst_is_the_votes_of_a_window_and_no_others():
    # 19 within five minutes are none; the twentieth makes a burst of these twenty, and the late one is apart.
    quick = [vote(n, author="x", seconds=15 * n) for n in range(19)]
    assert findings(quick) == {}
    votes = [*quick, vote(19, author="x", seconds=299), vote(20, author="x", seconds=4000)]
    assert findings(votes) == {("burst", "user:x"): set(range(20))}


def test_many_names_behind_one_address_are_a_burst_of_the_address():
    votes = [vote(n, seconds=n, address="here") for n in range(20)]
    assert findings(votes) == {("burst", "address:here"): set(range(20))}


def test_a_source_surges_against_its_own_week():
    votes = [vote(n, seconds=30 * n) for n in range(110)]
    # 110 votes in 55 minutes. A hundred an hour are a surge of a source that was silent …
    assert findings(votes)[("burst", "source:shop")] == set(range(110))
    # … and not of one with 2,016 in the week, which are 12 an hour: its bound is 121.
    assert findings(votes, Counter({"shop": 2016})) == {}


def test_changing_again_and_again_contradicts_itself():
    votes = [vote(1, changes=3), vote(2, changes=2)]
    assert findings(votes) == {("contradiction", "user:author-1"): {1}}


def test_up_and_down_on_one_completion_from_one_user_or_address_contradict():
    same: dict[str, Any] = {"completion": (7, 0)}
    votes = [
        vote(1, author="x", **same),
        # A rating of the same user, on the other side.
        vote(2, author="x", is_thumb=False, is_good=False, **same),
        vote(3, author="x"),
    ]
    assert findings(votes) == {("contradiction", "user:x"): {1, 2}}
    votes = [vote(1, address="here", **same), vote(2, address="here", is_good=False, **same)]
    assert findings(votes) == {("contradiction", "address:here"): {1, 2}}
    # Two users of different addresses disagree, which people do; a middling rating is on no side.
    votes = [vote(1, **same), vote(2, is_good=False, **same), vote(3, author="x", is_good=None, **same)]
    assert findings(votes) == {}


def test_a_user_dominates_a_day_from_a_share_on_that_has_enough_feedback():
    theirs = [vote(n, author="x", seconds=600 * n) for n in range(16)]
    others = [vote(100 + n, seconds=60 * n) for n in range(34)]
    # 16 of 50 are 32 %, above 30 %; 16 of 49 belong to a day with too little to say.
    assert findings([*theirs, *others]) == {("dominance", "user:x"): set(range(16))}
    assert findings([*theirs, *others[:-1]]) == {}


def test_a_source_dominates_only_where_it_did_not_before():
    votes = [vote(n, seconds=120 * n, source="new") for n in range(45)]
    votes += [vote(100 + n, seconds=120 * n, source="old") for n in range(5)]
    assert findings(votes) == {}
    assert findings(votes, Counter({"old": 90, "new": 10})) == {("dominance", "source:new"): set(range(45))}
    assert findings(votes, Counter({"old": 40, "new": 60})) == {}


# ── in a project ──────────────────────────────────────────────────────────────────────


@pytest.mark.django_db
def test_a_flood_is_excluded_by_default_and_included_by_one_click(
    application: Application,
    project: Project,
    carol: User,
    alice: User,
    starter: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(abuse, "BURST", 5)
    for name in "abcde":
        request = factories.make_application_request(project, starter, key=name)
        application.give(name, thumb="down", user="flood")
        application.give(name, thumb="up", user=f"user-{request.pk}")
    sweep_abuse()
    incident = FeedbackIncident.objects.get()
    assert (incident.kind, incident.is_included, incident.feedback.count()) == (AbuseKind.BURST, False, 5)
    assert set(usable_feedback(project).values_list("value", flat=True)) == {1}
    [day] = thumbs_by_day(project)
    # Wilson's interval of 5 of 5: low is 5 / (5 + 1.96²) = 0.5655.
    assert (day.up, day.down, round(day.low, 4), day.high) == (5, 0, 0.5655, 1.0)
    # (0 + 1) / (5 + 2) for who flooded, (1 + 1) / (1 + 2) for the others.
    assert sorted(set(trust_of_authors(project).values())) == [1 / 7, 2 / 3]
    with refused("manager_decides_feedback", NotAllowed):
        decide_incident(incident=incident, included=True, decided_by=alice)
    decide_incident(incident=incident, included=True, decided_by=carol)
    assert usable_feedback(project).count() == 10
    assert AuditEntry.objects.filter(action="feedback.include").count() == 1
    # What is found again grows, and stays decided.
    factories.make_application_request(project, starter, key="f")
    application.give("f", thumb="down", user="flood")
    check_project(project)
    incident.refresh_from_db()
    assert (incident.is_included, incident.feedback.count()) == (True, 6)


@pytest.mark.django_db
def test_what_was_searched_is_not_searched_again(
    application: Application, project: Project, starter: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    factories.make_application_request(project, starter, key="a")
    application.give("a", thumb="up")
    searched: list[int] = []
    detects: Callable[..., list[abuse.AbusePattern]] = lambda votes, before: searched.append(len(votes)) or []  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr(abuse, "detect", detects)
    sweep_abuse()
    sweep_abuse()
    assert searched == [1]
    # Days long past, without a change since, are left alone.
    Feedback.objects.update(updated_at=datetime(2020, 1, 1, tzinfo=UTC))
    check_project(project)
    assert searched == [1]
