"""Feedback: who may give it, that it counts once, that it is bounded, and what other pages may do."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from annotation.models import Judgment, Project, User
from annotation.services.people.accounts import create_token
from tests import factories
from tests.training.feedback.conftest import ORIGIN, Application
from training.models import Feedback, FeedbackKey, FeedbackSettings
from training.services.feedback import recording
from training.services.feedback.settings import revoke_key

pytestmark = pytest.mark.django_db


def test_each_kind_is_stored_with_its_source_and_pseudonym(application: Application):
    application.stored("a", "Because.", "Heat.")
    application.stored("b", "Friction.")
    bodies: list[dict[str, Any]] = [
        {"thumb": "down"},
        {"rating": 6, "scale": "seven"},
        {"rewrite": "Since anna@example.org heated it."},
        {"alternative": "b", "choice": 1},
    ]
    for body in bodies:
        assert application.give("a", user="anna", **body).status_code == 201
    rows = {row.kind: row for row in Feedback.objects.all()}
    assert (rows["thumb"].value, rows["thumb"].scale, rows["thumb"].is_good) == (0, "thumbs", False)
    assert (rows["rating"].value, rows["rating"].scale, rows["rating"].is_good) == (6, "seven", True)
    assert rows["rewrite"].text == "Since [redacted] heated it."
    assert (rows["alternative"].alternative.key, rows["alternative"].choice) == ("b", 1)
    assert {row.source_name for row in rows.values()} == {"shop"}
    assert len({row.author for row in rows.values()}) == 1
    assert "anna" not in rows["thumb"].author
    # A table of its own: nothing of it is a judgment.
    assert not Judgment.objects.exists()


def test_a_thousand_votes_of_one_user_on_one_completion_are_one_and_changes_are_bounded(
    application: Application,
):
    application.stored("a")
    assert application.give("a", thumb="up", user="anna").status_code == 201
    for _ in range(30):
        assert application.give("a", thumb="up", user="anna").status_code == 200
    statuses = [
        application.give("a", thumb=("down", "up")[n % 2], user="anna").status_code for n in range(24)
    ]
    assert statuses == [200] * recording.MOST_CHANGES + [422, 200, 422, 200]
    row = Feedback.objects.get()
    assert row.changes == recording.MOST_CHANGES


def test_the_same_request_with_an_idempotency_key_is_stored_once(application: Application):
    application.stored("a")
    for _ in range(2):
        answer = application.give("a", thumb="up", user="anna", headers={"Idempotency-Key": "k1"})
        assert answer.json()["completion"] == "a"
    assert Feedback.objects.count() == 1
    refused = application.give("a", thumb="up", headers={"Idempotency-Key": "two words"})
    assert refused.status_code == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "thumb"),
        ({"thumb": "up", "rating": 3}, "thumb"),
        ({"thumb": "sideways"}, "thumb"),
        ({"rating": 6}, "rating"),
        ({"rewrite": "Because of the water."}, "rewrite"),
        ({"alternative": "a"}, "alternative"),
        ({"alternative": "other"}, "alternative"),
    ],
)
def test_what_does_not_fit_the_completion_is_refused_by_field(
    body: dict[str, Any], field: str, application: Application
):
    application.stored("a")
    application.stored("other", question="And coffee?")
    answer = application.give("a", **body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    assert not Feedback.objects.exists()


def test_unknown_completions_and_choices_are_not_there(application: Application, oscar: User):
    application.stored("a")
    assert application.give("nothing", thumb="up").status_code == 404
    assert application.give("a", thumb="up", choice=1).status_code == 404
    # Oscar's token has the scope, and he manages nothing.
    secret = create_token(user=oscar, name="x", scopes=["feedback"]).secret
    assert application.give("a", thumb="up", headers={"Authorization": f"Bearer {secret}"}).status_code == 404


def test_only_a_token_of_the_scope_gives_feedback_and_no_cookie(
    application: Application, carol: User, admin: User
):
    application.stored("a")
    secret = create_token(user=carol, name="x", scopes=["read", "label", "manage", "generate"]).secret
    assert application.give("a", thumb="up", headers={"Authorization": f"Bearer {secret}"}).status_code == 403
    client = Client()
    client.force_login(admin)
    body = {"completion": "a", "thumb": "up"}
    assert client.post("/api/v1/feedback/", body, content_type="application/json").status_code == 401


# ── publishable keys ──────────────────────────────────────────────────────────────────


def test_a_page_gives_feedback_with_a_publishable_key(application: Application):
    application.stored("a")
    answer = application.give("a", by_key=True, thumb="up", user="anna")
    assert answer.status_code == 201
    assert answer["Access-Control-Allow-Origin"] == ORIGIN
    assert "Origin" in answer["Vary"]
    row = Feedback.objects.get()
    assert (row.key, row.token, row.source_name) == (application.key, None, "shop page")
    assert len(row.address) == 64


@pytest.mark.parametrize(
    "origin", ["", "https://evil.example", "https://app.example.org.evil.example", "null"]
)
def test_a_key_is_refused_on_pages_that_are_not_listed(origin: str, application: Application):
    application.stored("a")
    answer = application.give("a", by_key=True, thumb="up", user="anna", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "Access-Control-Allow-Origin" not in answer
    assert not Feedback.objects.exists()


def test_preflights_are_answered_for_listed_origins_alone(application: Application):
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    listed = application.client.options("/api/v1/feedback/", headers={"Origin": ORIGIN, **preflight})
    assert (listed.status_code, listed["Access-Control-Allow-Origin"]) == (204, ORIGIN)
    assert listed["Access-Control-Allow-Methods"] == "POST"
    assert "Access-Control-Allow-Credentials" not in listed
    other = application.client.options(
        "/api/v1/feedback/", headers={"Origin": "https://evil.example", **preflight}
    )
    assert "Access-Control-Allow-Origin" not in other


def test_a_key_opens_nothing_else_and_nothing_once_revoked(
    application: Application, carol: User, project: Project
):
    application.stored("a")
    headers = {"Authorization": f"Bearer {application.key.key}", "Origin": ORIGIN}
    for path in ("me/", "projects/", f"projects/{project.slug}/prompts/", "checkpoints/"):
        assert application.client.get(f"/api/v1/{path}", headers=headers).status_code == 401
    assert application.client.get("/v1/models", headers=headers).status_code == 401
    assert application.give("a", by_key=True, thumb="up").json()["errors"][0]["field"] == "user"
    revoke_key(key=application.key, revoked_by=carol)
    assert application.give("a", by_key=True, thumb="up", user="anna").status_code == 401


def test_a_key_reaches_the_completions_of_its_project_alone(
    application: Application, project: Project, carol: User
):
    application.stored("a")
    coffee = factories.make_project(slug="coffee", managers=[carol])
    FeedbackSettings.objects.create(project=coffee, origins=[ORIGIN])
    key = FeedbackKey.objects.create(project=coffee, name="x", created_by=carol)
    headers = {"Authorization": f"Bearer {key.key}"}
    assert application.give("a", by_key=True, thumb="up", user="u", headers=headers).status_code == 404


# ── limits ────────────────────────────────────────────────────────────────────────────


def test_one_user_one_address_and_one_source_are_bounded(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    FeedbackSettings.objects.update(daily_quota_of_user=3, daily_quota=5)
    for name in "abcdefg":
        application.stored(name)
    statuses = [application.give(name, thumb="up", user="anna").status_code for name in "abcd"]
    assert statuses == [201, 201, 201, 429]
    statuses = [application.give(name, thumb="up", user="ben").status_code for name in "abc"]
    assert statuses == [201, 201, 429]
    # A key of its own, from one address: two a minute.
    monkeypatch.setattr(recording, "ADDRESS_PER_MINUTE", 2)
    answers = [application.give("a", by_key=True, thumb="up", user=user) for user in ("x", "y", "z")]
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert int(answers[-1]["Retry-After"]) == 60
    # A day later there is room again.
    Feedback.objects.update(created_at=timezone.now() - timedelta(days=1, minutes=1))
    assert application.give("d", thumb="up", user="anna").status_code == 201


def test_requests_with_keys_are_bounded_per_address_whatever_they_ask(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("training.api.applications.REQUESTS_PER_MINUTE", 3)
    statuses = [application.give("nothing", by_key=True, thumb="up", user="x").status_code for _ in range(4)]
    assert statuses == [404, 404, 404, 429]


# ── the script ────────────────────────────────────────────────────────────────────────

SCRIPT = Path(__file__).parents[3] / "static" / "js" / "feedback.js"


def test_the_script_is_small_and_does_nothing_that_a_strict_policy_forbids():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.encode()) <= 2048
    assert not re.search(r"\beval\b|new Function|innerHTML|\.style\b|document\.write|setAttribute\(.on", text)


def test_the_script_has_an_address_that_stays(client: Client):
    answer = client.get("/static/js/feedback.js")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/javascript")
    assert answer["Access-Control-Allow-Origin"] == "*"
