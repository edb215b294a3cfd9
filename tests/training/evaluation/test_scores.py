"""Scores of reward models: asked for after the answers, written once, never in the way of a round."""

import fcntl
import json
import os
import time
from pathlib import Path

import httpx
import pytest

from annotation.choices import AcquisitionStrategy
from annotation.models import Comparison, CompletionScore, Project, Prompt, User
from annotation.services import job_runs
from annotation.services.assignments.acquisition import NEEDS_SCORES
from annotation.services.jobs import worker_is_stopping
from tests import factories
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from training.choices import RoundState
from training.engine import Engine
from training.models import Checkpoint, Round, Run, Snapshot
from training.services import scores
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round
from training.services.scores import score_newest_round, score_project, sweep_scores, unscored

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A model server that scores an answer by its length, for the scoring task too."""
    fake = FakeServer()
    monkeypatch.setattr(scores, "Engine", lambda: Engine(transport=httpx.MockTransport(fake)))
    return fake


@pytest.fixture
def engine(server: FakeServer) -> Engine:
    return Engine(transport=httpx.MockTransport(server))


@pytest.fixture
def uncertain(project: Project) -> Project:
    project.acquisition = AcquisitionStrategy.UNCERTAINTY
    project.save()
    return project


def reward_model(project: Project, name: str) -> Checkpoint:
    """A reward checkpoint without files: scoring asks the server for it by name."""
    snapshot, _ = Snapshot.objects.get_or_create(
        project=project, digest="d" * 64, defaults={"folder": "f", "rounds": [1], "counts": {}}
    )
    run = Run.objects.create(name=name, method="reward", snapshot=snapshot, spec={}, folder=name)
    return Checkpoint.objects.create(
        name=name, kind="reward", project=project, base_model="b", run=run, folder=name, digest="e" * 64
    )


def two_comparisons(project: Project) -> tuple[Comparison, Comparison]:
    return (
        factories.make_comparison(project, ["aa", "bbbbb"]),
        factories.make_comparison(project, ["cc", "dd"]),
    )


def values_of(scorer: str) -> dict[str, float]:
    rows = CompletionScore.objects.filter(scorer=scorer)
    return dict(rows.values_list("completion__text", "value"))


def test_every_answer_of_the_newest_round_gets_a_score_and_the_order_follows(
    uncertain: Project, engine: Engine, server: FakeServer
):
    reward_model(uncertain, "reward-1")
    old = factories.make_comparison(uncertain, ["old", "older"])
    Comparison.objects.filter(pk=old.pk).update(round_number=1)
    first, second = (
        factories.make_comparison(uncertain, texts, round_number=2)
        for texts in (["aa", "bbbbb"], ["cc", "dd"])
    )
    message = score_newest_round(project=uncertain, engine=engine)
    assert message == "4 scores by 1 reward model"
    assert values_of("reward-1") == {"aa": 2, "bbbbb": 5, "cc": 2, "dd": 2}
    # σ(2 − 5) = 0.0474: H = 0.2754 bits; an even pair has 1.
    for comparison, expected in ((first, 0.2754), (second, 1.0)):
        comparison.refresh_from_db()
        assert comparison.acquisition_score == pytest.approx(expected, abs=1e-4)
    assert [body["model"] for body in server.asked] == ["reward-1", "reward-1"]


def test_what_is_scored_is_not_asked_for_again(uncertain: Project, engine: Engine, server: FakeServer):
    reward_model(uncertain, "reward-1")
    two_comparisons(uncertain)
    score_newest_round(project=uncertain, engine=engine)
    server.asked.clear()
    server.score = lambda text: 99.0
    assert score_newest_round(project=uncertain, engine=engine) == "0 scores by 1 reward model"
    assert server.asked == []
    factories.make_comparison(uncertain, ["new", "newer"])
    assert score_newest_round(project=uncertain, engine=engine) == "2 scores by 1 reward model"
    assert values_of("reward-1")["aa"] == 2
    assert values_of("reward-1")["new"] == 99


def test_the_newest_reward_models_are_the_members_of_the_ensemble(
    uncertain: Project, engine: Engine, server: FakeServer
):
    for number in range(scores.MEMBERS + 1):
        reward_model(uncertain, f"reward-{number}")
    reward_model(factories.make_project(slug="coffee"), "reward-of-another")
    factories.make_comparison(uncertain)
    score_newest_round(project=uncertain, engine=engine)
    members = set(CompletionScore.objects.values_list("scorer", flat=True))
    assert members == {f"reward-{number}" for number in range(1, scores.MEMBERS + 1)}


def test_the_server_sees_the_chat_with_its_context(uncertain: Project, engine: Engine, server: FakeServer):
    reward_model(uncertain, "reward-1")
    prompt = factories.make_prompt(uncertain, "How long?", context=[("Tea", ["Two minutes."])])
    factories.make_comparison(uncertain, prompt=prompt)
    score_newest_round(project=uncertain, engine=engine)
    [body] = server.asked
    assert body["messages"][-1]["content"].endswith("How long?")
    assert "Two minutes." in body["messages"][-1]["content"]


def test_a_server_that_goes_away_leaves_the_rest_for_later(
    uncertain: Project, engine: Engine, server: FakeServer
):
    reward_model(uncertain, "reward-1")
    two_comparisons(uncertain)
    server.trouble = lambda request: httpx.Response(503, json={"error": "loading"}) if server.asked else None
    message = score_newest_round(project=uncertain, engine=engine)
    assert message == "2 scores by 1 reward model, the rest later (loading)"
    assert unscored(uncertain, "reward-1").count() == 2
    server.trouble = lambda request: None
    assert score_newest_round(project=uncertain, engine=engine) == "2 scores by 1 reward model"
    assert not unscored(uncertain, "reward-1").exists()


def test_a_checkpoint_that_the_server_does_not_know_yet_does_not_stop_the_others(
    uncertain: Project, engine: Engine, server: FakeServer
):
    reward_model(uncertain, "known")
    reward_model(uncertain, "unknown")
    factories.make_comparison(uncertain)

    def trouble(request: httpx.Request) -> httpx.Response | None:
        model = json.loads(request.content)["model"]
        return httpx.Response(404, json={"error": "no such model"}) if model == "unknown" else None

    server.trouble = trouble
    message = score_newest_round(project=uncertain, engine=engine)
    assert message == "2 scores by 2 reward models, the rest later (no such model)"
    assert len(values_of("known")) == 2


def test_answers_that_cannot_be_scored_are_counted_and_passed_over(
    uncertain: Project, engine: Engine, server: FakeServer
):
    reward_model(uncertain, "reward-1")
    two_comparisons(uncertain)

    def trouble(request: httpx.Request) -> httpx.Response | None:
        refused = "aa" in json.loads(request.content)["completions"]
        return httpx.Response(400, json={"error": "too long"}) if refused else None

    server.trouble = trouble
    message = score_newest_round(project=uncertain, engine=engine)
    assert message == "2 scores by 1 reward model, 2 answers could not be scored"
    assert set(values_of("reward-1")) == {"cc", "dd"}


def test_what_is_no_number_is_no_score(uncertain: Project, engine: Engine, monkeypatch: pytest.MonkeyPatch):
    reward_model(uncertain, "reward-1")
    factories.make_comparison(uncertain)
    monkeypatch.setattr(engine, "score", lambda **_: [float("nan"), 1.0])
    assert score_newest_round(project=uncertain, engine=engine) == "1 scores by 1 reward model"


def test_a_project_without_a_reward_model_is_told_so(uncertain: Project, engine: Engine, server: FakeServer):
    factories.make_comparison(uncertain)
    assert score_newest_round(project=uncertain, engine=engine) == "no reward model to score with yet"
    assert server.asked == []


def test_while_one_worker_scores_another_does_not(
    uncertain: Project, engine: Engine, server: FakeServer, rondo_home: Path
):
    reward_model(uncertain, "reward-1")
    factories.make_comparison(uncertain)
    folder = rondo_home / "scoring"
    folder.mkdir()
    with (folder / f"{uncertain.pk}.lock").open("a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        assert score_newest_round(project=uncertain, engine=engine).startswith("another worker")
    assert server.asked == []
    assert score_newest_round(project=uncertain, engine=engine) == "2 scores by 1 reward model"


def test_a_slow_answer_does_not_silence_the_worker(
    uncertain: Project, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    # A worker that says nothing for long loses its step to another.
    reward_model(uncertain, "reward-1")
    factories.make_comparison(uncertain)
    monkeypatch.setattr(job_runs, "_POLL_SECONDS", 0.02)

    def slow(**_: object) -> list[float]:
        time.sleep(0.3)
        return [1.0, 2.0]

    monkeypatch.setattr(engine, "score", slow)
    messages: list[str] = []
    score_newest_round(project=uncertain, engine=engine, tell=messages.append)
    assert len(messages) >= 5
    assert set(messages) == {"scoring the answers: prompt 1 of 1 by reward-1"}


# ── The task and the sweep ────────────────────────────────────────────────────────────


def test_the_task_scores_where_the_strategy_goes_by_scores(project: Project, server: FakeServer):
    reward_model(project, "reward-1")
    factories.make_comparison(project)
    assert score_project(project.pk) == ""
    assert server.asked == []
    for strategy in NEEDS_SCORES:
        CompletionScore.objects.all().delete()
        Project.objects.filter(pk=project.pk).update(acquisition=strategy)
        assert score_project(project.pk) == "2 scores by 1 reward model"


def test_a_worker_that_ends_leaves_the_rest(uncertain: Project, server: FakeServer):
    reward_model(uncertain, "reward-1")
    factories.make_comparison(uncertain)
    worker_is_stopping.set()
    assert score_project(uncertain.pk) == "this worker ends; the rest later"
    assert server.asked == []


def test_the_sweep_sends_messages_where_scores_are_missing_and_not_without_end(
    uncertain: Project, engine: Engine, sent: list[tuple[str, list[int]]], rondo_home: Path
):
    factories.make_comparison(uncertain)
    sweep_scores()
    assert sent == []
    reward_model(uncertain, "reward-1")
    note = rondo_home / "scoring" / f"{uncertain.pk}.lock"

    def a_minute_later() -> None:
        long_ago = time.time() - scores.LOOK_AGAIN_SECONDS - 1
        os.utime(note, (long_ago, long_ago))

    a_minute_later()
    sweep_scores()
    sweep_scores()
    assert sent == [("training.tasks.score_project", [uncertain.pk])]
    a_minute_later()
    sweep_scores()
    assert len(sent) == 2
    score_newest_round(project=uncertain, engine=engine)
    a_minute_later()
    sweep_scores()
    assert len(sent) == 2


def test_by_age_nobody_is_asked_for_scores(project: Project, sent: list[tuple[str, list[int]]]):
    reward_model(project, "reward-1")
    factories.make_comparison(project)
    sweep_scores()
    assert sent == []


# ── In a round ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def labelled(
    uncertain: Project, prompts: list[Prompt], alice: User, fake_server: FakeServer, quick_trainer: None
) -> Round:
    """Round 1 with its prompts answered and all of its comparisons annotated by Alice."""
    round_ = open_first_round(project=uncertain)
    advance_round(round_.pk)
    judge_all(uncertain, alice)
    return round_


def test_the_answers_of_the_next_round_are_scored_by_the_reward_model_of_this_one(
    labelled: Round, carol: User, fake_server: FakeServer
):
    assert not CompletionScore.objects.exists()
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    answered = second.steps.get()
    # Two pairs and two rankings of four: twelve answers.
    assert answered.message == "4 prompts answered; 12 scores by 1 reward model"
    assert set(CompletionScore.objects.values_list("scorer", flat=True)) == {"tea-round-1-reward"}
    assert not unscored(labelled.project, "tea-round-1-reward").exists()


def test_a_round_is_not_failed_by_scores_that_cannot_be_had(
    labelled: Round, carol: User, fake_server: FakeServer
):
    def no_scores(request: httpx.Request) -> httpx.Response | None:
        return httpx.Response(503, json={"error": "busy"}) if request.url.path == "/v1/score" else None

    fake_server.trouble = no_scores
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    assert second.steps.get().message == (
        "4 prompts answered; 0 scores by 1 reward model, the rest later (busy)"
    )
