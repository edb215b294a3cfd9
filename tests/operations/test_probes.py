"""Probes for load balancers and supervisors of processes: alive, ready, degraded or not ready."""

import time
from pathlib import Path

import pytest
from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import Settings

from webapp.operations import health, pages, reach
from webapp.operations.health import Finding, OverdueError, fine, within, wrong

READY = "/health/ready"


@pytest.fixture(autouse=True)
def asked_anew():
    pages.readiness.forget()
    yield
    pages.readiness.forget()


@pytest.fixture
def all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model server runs in these tests."""
    monkeypatch.setattr(
        pages, "MISSED", (lambda: fine("broker", ""), lambda: fine("model_server", ""), reach.disk)
    )


def test_live_asks_nothing_of_anything(client: Client, django_assert_num_queries, admin, client_of):
    signed_in = client_of(admin)
    with django_assert_num_queries(0):
        for browser in (client, signed_in):
            answer = browser.get("/health/live")
            assert (answer.status_code, answer.json()) == (200, {"status": "live"})
    assert "no-store" in answer.headers["Cache-Control"]


def test_probes_are_answered_whatever_name_and_protocol_they_come_by(
    db: None, client: Client, settings: Settings, all_is_well: None
):
    settings.SECURE_SSL_REDIRECT = True
    for path in ("/health/live", READY):
        assert client.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200


def test_ready_says_which_parts_were_looked_at(db: None, client: Client, all_is_well: None):
    answer = client.get(READY)
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "checks": dict.fromkeys(("database", "migrations", "disk", "broker", "model_server"), "ok"),
    }


def test_without_the_database_nothing_is_ready_and_nothing_is_told_of_why(
    client: Client, monkeypatch: pytest.MonkeyPatch, all_is_well: None
):
    def refuse(*_: object) -> None:
        raise DatabaseError("password authentication failed for user rondo at 10.0.0.5")

    monkeypatch.setattr(reach, "_asked_of_database", refuse)
    answer = client.get(READY)
    assert answer.status_code == 503
    assert answer.json()["checks"] == {
        "database": "failed",
        "migrations": "failed",
        "disk": "ok",
        "broker": "ok",
        "model_server": "ok",
    }
    assert b"10.0.0.5" not in answer.content


def test_a_migration_that_is_missing_makes_it_not_ready(
    db: None, client: Client, monkeypatch: pytest.MonkeyPatch, all_is_well: None
):
    newer = reach._migrations_of_the_code() | {("training", "9999_of_the_next_release")}
    monkeypatch.setattr(reach, "_migrations_of_the_code", lambda: newer)
    answer = client.get(READY)
    assert answer.status_code == 503
    assert answer.json()["checks"]["migrations"] == "failed"
    assert "1 migration is not applied: training.9999_of_the_next_release." in str(reach.migrations().says)


@pytest.mark.parametrize("missed", ["broker", "model_server"])
def test_without_broker_or_model_server_people_go_on_judging(
    db: None, client: Client, monkeypatch: pytest.MonkeyPatch, all_is_well: None, missed: str
):
    monkeypatch.setattr(pages, "MISSED", (lambda: wrong(missed, "it is away", "start it"),))
    answer = client.get(READY)
    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert answer.json()["checks"][missed] == "failed"


def test_a_nearly_full_disk_takes_no_work_from_annotators(
    db: None, client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pages, "MISSED", (reach.disk,))
    settings.RONDO_LEAST_FREE_MB = 1 << 40
    response = client.get(READY)
    assert (response.status_code, response.json()["status"]) == (200, "degraded")
    assert response.json()["checks"]["disk"] == "failed"


def test_who_asks_often_costs_one_look(client: Client, monkeypatch: pytest.MonkeyPatch, all_is_well: None):
    looks: list[int] = []

    def look() -> Finding:
        looks.append(1)
        return fine("database", "")

    monkeypatch.setattr(pages, "NEEDED", (look,))
    now = [100.0]
    monkeypatch.setattr("webapp.operations.pages.time.monotonic", lambda: now[0])
    for _ in range(5):
        client.get(READY)
    assert len(looks) == 1
    now[0] += 2
    client.get(READY)
    assert len(looks) == 2


# ── Things that do not answer ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url", ["redis://:hunter2secret@127.0.0.1:1/0", "amqp://guest:hunter2secret@127.0.0.1:1//"]
)
def test_a_broker_that_is_away_is_told_with_its_remedy_and_without_its_password(settings: Settings, url: str):
    from celery import current_app

    settings.CELERY_BROKER_URL = url
    before = current_app.conf.broker_url, current_app.conf.broker_transport, current_app.conf.broker_read_url
    current_app.conf.update(broker_url=url, broker_read_url=url, broker_transport=None)
    try:
        finding = reach.broker()
    finally:
        keys = ("broker_url", "broker_transport", "broker_read_url")
        current_app.conf.update(dict(zip(keys, before, strict=True)))
    assert finding.is_wrong
    assert "refused" in str(finding.says)
    assert "RONDO_BROKER_URL" in str(finding.remedy)
    assert "hunter2secret" not in str(finding)


def test_a_model_server_that_is_away_is_told(settings: Settings):
    settings.RONDO_MODEL_SERVER_URL = "http://127.0.0.1:1"
    finding = reach.model_server()
    assert finding.is_wrong
    assert "RONDO_MODEL_SERVER_URL" in str(finding.remedy)


def test_a_home_that_is_gone_is_told(settings: Settings, tmp_path: Path):
    settings.RONDO_HOME = tmp_path / "nowhere"
    assert reach.disk().is_wrong


def test_the_database_tells_its_version_and_size(db: None):
    assert connection.vendor.lower() in str(reach.database().says).lower()


def test_what_never_answers_is_waited_for_so_long_and_costs_one_thread():
    from threading import Event
    from threading import enumerate as living

    answers = Event()
    try:
        for _ in range(5):
            began = time.monotonic()
            with pytest.raises(OverdueError):
                within(0.05, "never", answers.wait)
            assert time.monotonic() - began < 30
        assert [thread.name for thread in living()].count("within-never") == 1
    finally:
        answers.set()
        health._threads["never"].join()
    assert within(30, "never", lambda: "again") == "again"


def test_an_error_of_what_is_asked_reaches_who_asks():
    with pytest.raises(ZeroDivisionError):
        within(30, "wrong", lambda: 1 // 0)
