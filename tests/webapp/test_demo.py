"""The demo project: three rounds through the services that people use, all or nothing."""

import io
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import models
from django.test import Client
from django.utils import timezone

from annotation.models import (
    AuditEntry,
    Comparison,
    CompletionSource,
    ConversationTurn,
    Judgment,
    Project,
    Rubric,
    SpanFlag,
    Suggestion,
    User,
)
from tests import factories
from tests.refusals import refused
from tests.training.runs.trained_here import train_here
from tests.write_lock import measured_write_lock
from training.choices import CheckpointKind, RoundState, RunState
from training.models import BaseModel, Checkpoint, Evaluation, Feedback, Round, RoundStep, Run, SideBySide
from training.services.rounds.executor import rounds_with_work
from webapp.demo import pages
from webapp.demo import project as demo_project
from webapp.demo.model_server import SKILLS
from webapp.demo.project import is_left_over
from webapp.demo.showcase import Showcase
from webapp.demo.texts import Skill, compose, prompt_rows, rewrite, topics, topics_by_question
from webapp.demo.trainer import train

PAGES = (
    *("", "data/comparisons/", "statistics/", "annotators/", "rounds/", "runs/", "leaderboard/", "gold/"),
    *("conversations/", "suggestions/", "rubrics/", "feedback/", "feedback/figures/"),
)


LONGEST, LONGEST_ON_THE_CLOCK = 1.0, 10.0
"""Seconds that a transaction may hold the write lock of SQLite: of the processor, and on the clock."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty prompts instead of three hundred."""
    monkeypatch.setattr(demo_project, "PROMPTS", 40)


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's trainer without a process, for tests of what a demo leaves behind."""
    train_here(monkeypatch, train)


def test_every_prompt_is_another_one_about_a_known_topic():
    rows = list(prompt_rows(300, Random(1)))
    assert len(set(rows)) == 300
    assert len(topics_by_question()) == 8 * len(topics())


def test_flaws_stand_where_the_response_says_them():
    topic = topics()[0]
    skill = Skill(wrong=1, irrelevant=1, repeated=1, truncated=0, facts=(2, 2))
    for seed in range(40):
        response = compose(topic, skill, Random(seed))
        quotes: Mapping[str, list[str]] = {"untruthful": [], "irrelevant": []}
        for flaw in response.flaws:
            quotes[flaw.category].append(response.text[flaw.start : flaw.end])
        assert [quote[:-1].lower() in map(str.lower, topic.errors) for quote in quotes["untruthful"]] == [
            True
        ]
        assert sum(quote.startswith("As I said, ") for quote in quotes["irrelevant"]) == 1
        assert len(quotes["irrelevant"]) == 2
        # Two facts, a false claim (−2), an aside and a repetition (−0.8 each).
        assert response.quality == pytest.approx(2 - 2 - 0.8 - 0.8)


def assert_nothing_left() -> None:
    """Assert that no table but those of accounts, the log and names of models holds a row of the demo."""
    assert not Checkpoint.objects.exclude(kind=CheckpointKind.STARTER).exists()
    stays = {User, AuditEntry, CompletionSource, Checkpoint, BaseModel}
    for model in (
        *apps.get_app_config("annotation").get_models(),
        *apps.get_app_config("training").get_models(),
    ):
        if model not in stays:
            assert not models.QuerySet(model).exists(), model


@pytest.mark.django_db
@pytest.mark.usefixtures("small", "trained_here")
def test_a_demo_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch):
    def broken(*args: object) -> None:
        raise RuntimeError("the power went")

    monkeypatch.setattr(demo_project, "_date", broken)
    command = settings.RONDO_TRAINER_COMMAND
    with pytest.raises(RuntimeError, match="the power went"):
        demo_project.create_demo(annotations=30)
    assert_nothing_left()
    # The audit log names the manager, whose account nobody can sign in with.
    assert [is_left_over(user) for user in User.objects.all()] == [True]
    assert not list(Path(settings.RONDO_RUNS).glob("*"))
    assert not list(Path(settings.RONDO_CHECKPOINTS).glob("*"))
    assert command == settings.RONDO_TRAINER_COMMAND
    assert abs((timezone.now() - factories.make_user("now").date_joined).total_seconds()) < 60


@pytest.mark.django_db(transaction=True)
def test_nobody_sees_a_demo_that_is_being_written_and_a_whole_one_has_rounds_of_each_end(
    admin: User, sent: list[tuple[str, list[object]]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_project, "PROMPTS", 60)
    browser, go_round = Client(), demo_project._go_round
    browser.force_login(admin)

    def looked_at(demo: demo_project._Demo, number: int) -> None:
        assert RoundStep.objects.filter(round__number=number).exists()
        assert rounds_with_work() == []
        assert pages.progress().state != pages.DemoState.FINISHED
        for page in ("/", "/?archived=1", "/rounds/", "/runs/", "/api/v1/projects/"):
            assert demo_project.NAME not in browser.get(page, follow=True).content.decode()
        assert browser.get("/projects/demo/").status_code == 404
        with refused("demo_under_way"):
            demo_project.create_demo()
        go_round(demo, number)

    monkeypatch.setattr(demo_project, "_go_round", looked_at)
    with measured_write_lock() as lock:
        call_command("demo", annotations=120, stdout=io.StringIO())
    assert max(lock.processor_seconds) < LONGEST
    assert max(lock.seconds) < LONGEST_ON_THE_CLOCK
    # As one transaction it would hold the lock all the time.
    assert max(lock.processor_seconds) < sum(lock.processor_seconds) / 4
    assert sent == []
    project = Project.objects.get(slug="demo")
    states = dict(Round.objects.filter(project=project).values_list("number", "state"))
    assert states[1] == RoundState.PROMOTED
    assert states[3] == RoundState.FAILED
    assert set(states) == {1, 2, 3}
    assert Judgment.objects.filter(comparison__project=project).count() > 45
    assert SpanFlag.objects.filter(completion__prompt__project=project).exists()
    assert Run.objects.filter(state=RunState.FAILED).count() == 1
    assert Evaluation.objects.filter(finished_at__isnull=False).count() == 2
    # What the showcase adds.
    assert ConversationTurn.objects.filter(conversation__project=project).count() == 3
    assert Comparison.objects.filter(project=project, completions__step_count__gt=0).exists()
    assert Suggestion.objects.filter(suggestion_set__comparison__project=project).exists()
    assert SideBySide.objects.get(project=project).judgment is not None
    assert Rubric.objects.get(project=project).published is not None
    assert {"thumb", "rewrite"} <= set(Feedback.objects.values_list("kind", flat=True))
    # Simulated weights are nobody's to serve.
    assert not Checkpoint.objects.filter(project=project, files_deleted_at=None).exists()
    assert Judgment.objects.latest("created_at").created_at < timezone.now()
    for page in PAGES:
        assert browser.get(f"/projects/demo/{page}").status_code == 200
    with refused("demo_exists", CommandError, slug="demo"):
        call_command("demo")


@pytest.mark.django_db
@pytest.mark.usefixtures("small", "trained_here")
def test_the_next_try_removes_what_a_killed_demo_left(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as killed:
        killed.setattr(demo_project, "remove_incomplete", lambda slug: None)
        killed.setattr(Showcase, "_add_feedback", _killed)
        with pytest.raises(KeyboardInterrupt):
            demo_project.create_demo(annotations=66)
    assert Project.objects.filter(is_incomplete=True).exists()
    begun: list[int] = []

    def begin(annotations: int, *_: object) -> None:
        assert_nothing_left()
        begun.append(annotations)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_project, "_write", begin)
    with pytest.raises(KeyboardInterrupt):
        demo_project.create_demo(annotations=66)
    assert begun == [66]


def _killed(*args: object) -> None:
    raise KeyboardInterrupt


def test_a_rewrite_differs_from_the_response_whatever_is_drawn():
    chances = [Random(seed) for seed in range(50)]
    for topic in topics():
        drawn = [compose(topic, skill, chance).text for chance in chances for skill in SKILLS.values()]
        # The response that ended a demo: the first three facts, in order and as a paragraph.
        for text in (*drawn, " ".join(topic.facts[:3])):
            assert rewrite(topic, text).strip() not in ("", text.strip())


@pytest.mark.django_db
def test_a_demo_takes_nobodys_account():
    factories.make_user("demo-ada")
    with refused("accounts_exist", CommandError, names="demo-ada"):
        call_command("demo")
