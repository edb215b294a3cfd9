"""Feedback in snapshots: only where a recipe says so, marked, weighted and filtered."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.test import Client

from annotation.choices import Split
from annotation.models import Project, User
from annotation.text.identity import in_held_out_share
from tests import factories
from tests.training.feedback.conftest import Application
from training.contract import ContractError
from training.contract.snapshot import read_snapshot, read_snapshot_header
from training.models import ApplicationRequest, Checkpoint, Feedback, FeedbackIncident, Snapshot
from training.recipe.form import RecipeForm, flattened
from training.recipe.recipe import FeedbackUse, Recipe
from training.services.snapshots import freeze_snapshot

pytestmark = pytest.mark.django_db


def trained_question(number: int) -> str:
    """The question of that number whose prompt is no held-out one by its hash."""
    from annotation.text.identity import content_hash

    places = (f"Why is tea hot, {place}?" for place in range(1_000))
    trained = [
        question
        for question in places
        if not in_held_out_share(content_hash([{"role": "user", "content": question}]))
    ]
    return trained[number]


@pytest.fixture
def judged(project: Project, alice: User) -> Project:
    """One annotation of a pair, so that there is something to freeze without any feedback."""
    prompt = factories.make_prompt(project, "How long?", split="train")
    factories.make_judgment(factories.make_comparison(project, prompt=prompt), alice)
    return project


@pytest.fixture
def rated_requests(
    application: Application, judged: Project, starter: Checkpoint
) -> list[ApplicationRequest]:
    """Two answers to one question with a thumb, a rating, a rewrite and a chosen alternative."""
    question = trained_question(0)
    stored = [
        factories.make_application_request(judged, starter, text, key=key, question=question)
        for key, text in (("a", "Because."), ("b", "Heat."))
    ]
    application.give("a", thumb="up", user="anna")
    application.give("a", rating=4, user="anna")
    application.give("a", rewrite="Because of heat.", user="anna")
    application.give("a", alternative="b", user="ben")
    return stored


def rows_of(snapshot: Snapshot, settings) -> list[dict[str, object]]:
    folder = Path(settings.RONDO_HOME) / snapshot.folder
    return [json.loads(line) for line in (folder / "judgments.jsonl").read_text().splitlines()]


def test_without_the_setting_a_snapshot_has_the_bytes_that_it_had_before_any_feedback(
    judged: Project, application: Application, starter: Checkpoint, settings
):
    before = freeze_snapshot(project=judged, rounds=[1])
    folder = Path(settings.RONDO_HOME) / before.folder
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    factories.make_application_request(judged, starter, key="a")
    application.give("a", thumb="up")
    after = freeze_snapshot(project=judged, rounds=[1])
    assert after == before
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert b"feedback" not in b"".join(files.values())


def test_feedback_comes_as_rows_of_its_own_after_the_judgments(
    rated_requests: list[ApplicationRequest], judged: Project, settings
):
    snapshot = freeze_snapshot(project=judged, rounds=[1], feedback=FeedbackUse(weight=0.5))
    judgment, *rows = rows_of(snapshot, settings)
    assert "feedback" not in judgment
    assert [row["feedback"] for row in rows] == ["thumb", "rating", "rewrite", "alternative"]
    assert {row["weight"] for row in rows} == {0.5}
    thumb, rating, rewrite, alternative = rows
    first, second = (f"request-{request.pk}-0" for request in rated_requests)
    assert thumb["ratings"] == [{"completion": first, "criterion": "feedback", "scale": "thumbs", "value": 1}]
    assert rating["ratings"] == [{"completion": first, "criterion": "feedback", "scale": "five", "value": 4}]
    assert (thumb["verdict"], thumb["ranks"]) == ("not_asked", {})
    # A rewrite is better than its original, what was chosen better than what was not.
    rewritten = f"feedback-{Feedback.objects.get(kind='rewrite').pk}"
    assert rewrite["ranks"] == {first: 2, rewritten: 1}
    assert [completion["text"] for completion in rewrite["completions"]] == ["Because.", "Because of heat."]  # type: ignore[attr-defined]
    assert alternative["ranks"] == {first: 2, second: 1}
    assert thumb["annotator"] == rating["annotator"] != alternative["annotator"]
    # The counts of annotations are those of people; the header and the page tell of the feedback.
    header = read_snapshot_header(Path(settings.RONDO_HOME) / snapshot.folder)
    assert (header.rows, header.feedback) == (5, 4)
    assert (snapshot.counts["judgments"], snapshot.counts["feedback"]) == (1, 4)
    assert snapshot.counts["decided_pairs"] == {"train": 1, "held-out": 0}
    # The reader of the trainer takes what was written.
    folder = Path(settings.RONDO_HOME) / snapshot.folder
    assert [row.feedback for row in read_snapshot(folder)] == [
        None,
        "thumb",
        "rating",
        "rewrite",
        "alternative",
    ]


def test_filters_by_kind_source_day_trust_and_abuse(
    rated_requests: list[ApplicationRequest], judged: Project, application: Application, settings
):
    def kinds(**filters: object) -> list[object]:
        use = FeedbackUse(**filters)  # type: ignore[arg-type]
        snapshot = freeze_snapshot(project=judged, rounds=[1], feedback=use)
        return [row["feedback"] for row in rows_of(snapshot, settings)[1:]]

    assert kinds(kinds=("rewrite",)) == ["rewrite"]
    assert kinds(sources=("nobody",)) == []
    assert len(kinds(sources=("shop",))) == 4
    # Anna's trust is (3 + 1) / (3 + 2) = 0.8, Ben's (1 + 1) / (1 + 2) = 0.67.
    assert kinds(least_trust=0.7) == ["thumb", "rating", "rewrite"]
    Feedback.objects.filter(kind="thumb").update(created_at=datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert kinds(until="2026-01-31") == ["thumb"]
    assert kinds(since="2026-02-01") == ["rating", "rewrite", "alternative"]
    now = datetime(2026, 2, 1, tzinfo=UTC)
    incident = FeedbackIncident.objects.create(
        project=judged, kind="burst", subject="user:x", started_at=now, ended_at=now
    )
    incident.feedback.set(Feedback.objects.filter(kind__in=("rating", "rewrite")))
    # Of Anna's three one is good: (1 + 1) / (3 + 2) = 0.4.
    assert kinds(least_trust=0.0) == ["thumb", "alternative"]
    assert kinds() == ["alternative"]


def test_one_user_weighs_no_more_than_the_recipe_lets_them(
    application: Application, judged: Project, starter: Checkpoint, settings
):
    for number in range(4):
        factories.make_application_request(
            judged, starter, key=f"k{number}", question=trained_question(number)
        )
        application.give(f"k{number}", thumb="up", user="anna")
    application.give("k0", thumb="down", user="ben")
    use = FeedbackUse(weight=1.0, most_per_user=2)
    rows = rows_of(freeze_snapshot(project=judged, rounds=[1], feedback=use), settings)[1:]
    # Four of Anna's weigh what two weigh.
    assert [row["weight"] for row in rows] == [0.5, 0.5, 0.5, 0.5, 1.0]


def test_feedback_on_held_out_prompts_stays_out_also_where_the_project_decides(
    rated_requests: list[ApplicationRequest], judged: Project, settings
):
    factories.make_prompt(judged, rated_requests[0].last_question, split=Split.HELD_OUT)
    snapshot = freeze_snapshot(project=judged, rounds=[1], feedback=FeedbackUse())
    assert len(rows_of(snapshot, settings)) == 1


def test_a_recipe_takes_feedback_in_by_its_form_and_by_json():
    assert Recipe().feedback is None
    data = flattened(Recipe())
    assert "feedback-on" not in data
    form = RecipeForm(
        {**data, "feedback-on": ["on"], "feedback-weight": ["0.1"], "feedback-since": ["2026-01-31"]}
    )
    assert form.errors == []
    assert form.recipe is not None
    assert form.recipe.feedback == FeedbackUse(weight=0.1, since="2026-01-31")
    assert Recipe.from_json(form.recipe.to_json()) == form.recipe
    with pytest.raises(ContractError, match="no day"):
        Recipe.from_json({"feedback": {"since": "yesterday"}})


def test_the_page_of_a_snapshot_tells_how_much_feedback_is_in_it(
    rated_requests: list[ApplicationRequest], judged: Project, carol: User
):
    snapshot = freeze_snapshot(project=judged, rounds=[1], feedback=FeedbackUse())
    client = Client()
    client.force_login(carol)
    page = client.get(f"/snapshots/{snapshot.digest}/").content.decode()
    assert "Feedback of applications" in page
