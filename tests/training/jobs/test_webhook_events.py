"""Events about rounds, runs and checkpoints for other programs, and their times."""

import json

import pytest

from annotation.choices import WebhookEvent
from annotation.models import Project, User, WebhookMessage
from annotation.services.webhooks import create_webhook
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from tests.training.registry.registry_rows import make_trained
from tests.training.rounds.round_scenes import behave
from training.choices import RoundState
from training.models import Round
from training.services.checkpoint_files import delete_files
from training.services.rounds.controls import (
    cancel_round,
    open_first_round,
    pause_round,
    reopen_round,
    resume_round,
    start_round,
)
from training.services.rounds.deciding import promote_round
from training.services.rounds.executor import advance_round

pytestmark = pytest.mark.django_db


@pytest.fixture
def hook(project: Project, carol: User) -> None:
    """A webhook for every event."""
    create_webhook(project=project, url="https://example.org", events=WebhookEvent.values, created_by=carol)


def event_types(*, without: str = "judgment.") -> list[str]:
    events = WebhookMessage.objects.order_by("pk").values_list("event", flat=True)
    return [event for event in events if not event.startswith(without)]


def test_every_state_of_a_round_is_an_event_and_every_such_event_is_a_state():
    of_rounds = {event for event in WebhookEvent.values if event.startswith("round.")}
    assert of_rounds == {f"round.{state}" for state in RoundState.values}


@pytest.mark.usefixtures("hook", "quick_trainer", "fake_server", "prompts")
def test_a_round_tells_of_each_of_its_steps_in_their_order(project: Project, alice: User, carol: User):
    round_ = open_first_round(project=project, recipe={"promotion": {"by_hand": True}})
    advance_round(round_.pk)
    judge_all(project, alice)
    round_.refresh_from_db()
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    round_.refresh_from_db()
    promote_round(round_=round_, actor=carol, note="Read them all.")
    assert event_types() == [
        "round.draft",
        "round.sampling",
        "round.labelling",
        "round.training_reward_models",
        *("run.created", "run.started", "run.finished"),
        "round.training_policy",
        *("run.created", "run.started", "run.finished"),
        *("checkpoint.registered", "checkpoint.registered"),
        "round.evaluating",
        "round.deciding",
        "round.promoted",
        # The next one is open.
        "round.sampling",
    ]
    bodies = [json.loads(message.body)["data"] for message in WebhookMessage.objects.order_by("pk")]
    promoted = next(body for body in bodies if body.get("state") == "promoted")
    assert promoted == {
        "project": "tea",
        "round": 1,
        "state": "promoted",
        "path": "/api/v1/projects/tea/rounds/1/",
    }
    assert [body["path"] for body in bodies if "checkpoint" in body] == [
        "/api/v1/checkpoints/tea-round-1-reward/",
        "/api/v1/checkpoints/tea-round-1-policy/",
    ]
    assert bodies[-1]["round"] == 2


@pytest.mark.usefixtures("hook", "quick_trainer", "prompts")
def test_a_trainer_that_fails_is_told(
    project: Project, alice: User, carol: User, fake_server: FakeServer, rondo_home
):
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    judge_all(project, alice)
    round_.refresh_from_db()
    behave(rondo_home, fail_at=2)
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    assert event_types()[-3:] == ["run.started", "run.failed", "round.failed"]


@pytest.mark.usefixtures("hook", "prompts", "fake_server")
def test_what_a_manager_does_to_a_round_is_told_once(project: Project, carol: User):
    round_ = open_first_round(project=project)
    advance_round(round_.pk)
    begun = len(event_types())
    pause_round(round_=round_, actor=carol)
    resume_round(round_=round_, actor=carol)
    cancel_round(round_=round_, actor=carol)
    reopen_round(round_=round_, actor=carol)
    assert event_types()[begun:] == ["round.paused", "round.labelling", "round.cancelled", "round.labelling"]


@pytest.mark.usefixtures("hook")
def test_a_checkpoint_whose_files_go_is_told_of(project: Project, carol: User):
    checkpoint = make_trained("tea-old", project)
    # The newest policy of a project is needed.
    make_trained("tea-new", project)
    delete_files(checkpoint=checkpoint, deleted_by=carol)
    delete_files(checkpoint=checkpoint, deleted_by=carol)
    assert event_types() == ["checkpoint.deleted"]
    assert json.loads(WebhookMessage.objects.get().body)["data"]["checkpoint"] == "tea-old"


@pytest.mark.usefixtures("quick_trainer")
def test_without_a_webhook_a_round_writes_nothing_of_the_kind(labelled: Round):
    assert not WebhookMessage.objects.exists()
