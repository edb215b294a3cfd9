"""Rounds: once around with a scripted trainer and model server, and every way to end early."""

from pathlib import Path

import pytest
from django.utils.translation import gettext

from annotation.errors import Refusal
from annotation.models import Comparison, Project, Prompt, User
from annotation.services import jobs
from tests import factories
from tests.refusals import refused
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import behave, decide, do_steps_before, states
from training.choices import RoundState, StepKind, StepState
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.jobs import StepHeartbeat
from training.services.rounds import executor
from training.services.rounds.controls import (
    cancel_round,
    open_first_round,
    reopen_round,
    start_again,
    start_round,
)
from training.services.rounds.executor import advance_round, rounds_with_work, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def following(round_: Round) -> Round:
    """The round after a decided one, with its prompts answered."""
    opened = Round.objects.get(number=round_.number + 1)
    advance_round(opened.pk)
    opened.refresh_from_db()
    return opened


def test_a_round_goes_once_around(labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch):
    decide(monkeypatch, ready=True, promote=True, reason="enough")
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)

    labelled.refresh_from_db()
    assert labelled.state == RoundState.PROMOTED
    assert labelled.finished_at is not None
    assert states(labelled) == ["finished"] * 7
    reward = Checkpoint.objects.get(name="tea-round-1-reward")
    policy = Checkpoint.objects.get(name="tea-round-1-policy")
    assert (reward.kind, policy.kind) == ("reward", "policy")
    assert reward.source is None
    assert policy.source.name == "tea-round-1-policy"
    assert (policy.path / "manifest.json").is_file()
    second = Round.objects.get(number=2)
    assert (second.state, second.policy) == (RoundState.SAMPLING, policy)
    assert rounds_with_work() == [second.pk]
    assert following(labelled).state == RoundState.LABELLING


def test_the_next_round_sets_new_answers_beside_those_of_the_checkpoint_before(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    following(labelled)
    comparisons = Comparison.objects.filter(round_number=2).order_by("prompt_id")
    # Pair, ranking, pair, ranking: half of each by either checkpoint.
    assert [comparison.size for comparison in comparisons] == [2, 4, 2, 4]
    for comparison in comparisons:
        writers = sorted(comparison.completions.values_list("source__name", flat=True))
        half = comparison.size // 2
        assert writers == ["SmolLM2-135M-Instruct"] * half + ["tea-round-1-policy"] * half


def test_the_second_round_continues_the_policy_of_the_first(
    labelled: Round, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
):
    decide(monkeypatch, ready=True, promote=True, reason="enough")
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    second = following(labelled)
    judge_all(labelled.project, alice)
    start_round(round_=second, started_by=carol)
    advance_round(second.pk)
    policy = Checkpoint.objects.get(name="tea-round-2-policy")
    first = Checkpoint.objects.get(name="tea-round-1-policy")
    assert policy.parent == first
    assert policy.run.spec["parent"] == str(first.path)
    assert policy.run.spec["parent_digest"] == first.digest
    assert Checkpoint.objects.get(name="tea-round-2-reward").parent is None
    frozen = Round.objects.get(number=2).snapshot
    assert frozen.rounds == [1, 2]
    assert frozen.counts["judgments"] == 8


def test_opening_the_first_round_twice_is_opening_it_once(project: Project, carol: User):
    first = open_first_round(project=project, started_by=carol)
    again = open_first_round(project=project)
    assert first == again
    assert RoundStep.objects.count() == 1
    assert first.policy.kind == "starter"
    assert first.created_by == carol


@pytest.mark.django_db(transaction=True)
def test_a_worker_is_told_only_once_the_round_is_committed(project: Project, rings: list[int]):
    round_ = open_first_round(project=project)
    assert rings == [round_.pk]


@pytest.mark.django_db(transaction=True)
def test_a_broker_that_is_down_loses_nothing(project: Project, monkeypatch: pytest.MonkeyPatch):
    class DeadBroker:
        def send_task(self, *args: object, **kwargs: object) -> None:
            raise ConnectionRefusedError("no broker")

    monkeypatch.setattr("annotation.services.jobs.current_app", DeadBroker())
    monkeypatch.setattr("annotation.services.jobs._quiet_until", 0.0)
    round_ = open_first_round(project=project)
    assert rounds_with_work() == [round_.pk]


def test_training_does_not_start_without_a_decided_pair(project: Project, carol: User):
    round_ = open_first_round(project=project)
    with refused("no_judgments"):
        start_round(round_=round_, started_by=carol)
    round_.refresh_from_db()
    assert round_.state == RoundState.SAMPLING
    assert states(round_) == ["waiting"]


def test_a_round_is_started_once(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    with refused("round_not_labelling"):
        start_round(round_=labelled, started_by=carol)
    assert RoundStep.objects.filter(round=labelled, position__gt=0).count() == 6


def test_a_project_trains_one_round_at_a_time(labelled: Round, carol: User):
    second = Round.objects.create(
        project=labelled.project, number=2, policy=labelled.policy, state=RoundState.LABELLING
    )
    start_round(round_=labelled, started_by=carol)
    with refused("another_round_trains", project="Tea"):
        start_round(round_=second, started_by=carol)


def test_starting_ends_an_answering_that_still_goes_on(
    project: Project, prompts: list[Prompt], alice: User, carol: User, fake_server: FakeServer
):
    round_ = open_first_round(project=project)
    factories.make_comparison(project, prompt=prompts[0])
    judge_all(project, alice)
    opening = jobs.claim(RoundStep.objects.all(), round_.steps.get().pk)
    assert opening is not None
    start_round(round_=round_, started_by=carol)
    with pytest.raises(jobs.ClaimLostError):
        StepHeartbeat(opening).write()
    advance_round(round_.pk)
    assert states(round_) == ["cancelled"] + ["finished"] * 6


def test_a_message_that_comes_twice_does_the_work_once(
    labelled: Round, carol: User, fake_server: FakeServer, rondo_home: Path
):
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    request_count = len(fake_server.asked)
    advance_round(labelled.pk)
    advance_round(labelled.pk)
    assert len(fake_server.asked) == request_count
    assert Run.objects.count() == 2
    starts = [(run.path / "starts").read_text().splitlines() for run in Run.objects.all()]
    assert [len(lines) for lines in starts] == [1, 1]


def test_a_trainer_that_fails_fails_the_round_with_its_own_words(
    labelled: Round, carol: User, rondo_home: Path
):
    behave(rondo_home, fail_at=2)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.FAILED
    step = labelled.steps.get(kind="train_reward_model")
    assert step.error == "Loss was not finite at step 2. Lower the learning rate."
    assert step.run.error == step.error
    assert step.run.state == "failed"
    assert states(labelled) == ["finished", "finished", "failed", *["waiting"] * 4]


def test_starting_again_goes_on_from_the_last_saved_step(labelled: Round, carol: User, rondo_home: Path):
    behave(rondo_home, fail_at=2)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    behave(rondo_home)
    snapshot = Snapshot.objects.get()
    start_again(round_=labelled, actor=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert labelled.snapshot == snapshot
    run = Run.objects.get(name="tea-round-1-reward")
    starts = (run.path / "starts").read_text().splitlines()
    assert [line.split(" from ")[1] for line in starts] == ["0", "2"]


@pytest.mark.usefixtures("fake_trainer")
def test_a_cancel_stops_the_trainer_and_a_new_start_takes_it_up_again(
    labelled: Round, carol: User, rondo_home: Path, monkeypatch: pytest.MonkeyPatch
):
    behave(rondo_home, steps=100_000, seconds=0.02)
    start_round(round_=labelled, started_by=carol)
    original = StepHeartbeat.__call__

    def cancel_at_step_two(heartbeat, *, current=None, **progress):
        if heartbeat.job.kind == "train_reward_model" and (current or 0) >= 2:
            Round.objects.filter(pk=labelled.pk).update(cancel_requested=True)
        return original(heartbeat, current=current, **progress)

    monkeypatch.setattr(StepHeartbeat, "__call__", cancel_at_step_two)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.CANCELLED
    assert not labelled.cancel_requested
    run = Run.objects.get()
    assert run.state == "stopped"
    reached = int((run.path / "state" / "step").read_text())
    assert 2 <= reached < 100_000

    monkeypatch.setattr(StepHeartbeat, "__call__", original)
    behave(rondo_home, steps=reached + 1)
    start_again(round_=labelled, actor=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert f"from {reached}" in (run.path / "starts").read_text()


def test_a_trainer_that_was_stopped_from_outside_is_started_again_by_the_next_who_looks(
    labelled: Round, carol: User, rondo_home: Path
):
    behave(rondo_home, interrupted_at=1)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.TRAINING_REWARD_MODELS
    assert rounds_with_work() == [labelled.pk]
    while rounds_with_work() == [labelled.pk]:
        advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    starts = (rondo_home / "runs/tea-round-1-reward/starts").read_text().splitlines()
    assert [line.split(" from ")[1] for line in starts] == ["0", "1"]


def test_a_round_that_nobody_works_on_is_cancelled_at_once(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    cancel_round(round_=labelled, actor=carol)
    assert labelled.state == RoundState.CANCELLED
    assert states(labelled) == ["finished"] + ["cancelled"] * 6
    advance_round(labelled.pk)
    assert Snapshot.objects.count() == 0


def test_what_has_ended_is_not_cancelled_and_what_goes_on_is_not_started_again(labelled: Round, carol: User):
    with refused("nothing_to_restart"):
        start_again(round_=labelled, actor=carol)
    cancel_round(round_=labelled, actor=carol)
    with refused("nothing_to_cancel"):
        cancel_round(round_=labelled, actor=carol)
    labelled.refresh_from_db()
    assert (labelled.state, labelled.cancel_requested) == (RoundState.CANCELLED, False)
    start_again(round_=labelled, actor=carol)
    assert labelled.state == RoundState.LABELLING


def test_a_round_taken_back_to_labelling_trains_anew_under_new_names(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, StepKind.TRAIN_POLICY)
    cancel_round(round_=labelled, actor=carol)
    reopen_round(round_=labelled, actor=carol)
    assert (labelled.state, labelled.snapshot) == (RoundState.LABELLING, None)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    assert set(Run.objects.values_list("name", flat=True)) == {
        "tea-round-1-reward",
        "tea-round-1-reward-2",
        "tea-round-1-policy",
    }
    with refused("next_round_open"):
        reopen_round(round_=labelled, actor=carol)


def test_a_worker_that_ends_gives_its_step_back_at_once(labelled: Round, carol: User):
    start_round(round_=labelled, started_by=carol)
    jobs.worker_is_stopping.set()
    advance_round(labelled.pk)
    assert states(labelled)[1] == "waiting"
    assert rounds_with_work() == [labelled.pk]
    jobs.worker_is_stopping.clear()
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE


def test_a_round_whose_worker_died_after_the_last_step_is_decided_by_the_sweep(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch
):
    start_round(round_=labelled, started_by=carol)
    with monkeypatch.context() as patch:
        patch.setattr(executor, "settle_decisions", lambda round_id: None)
        advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.DECIDING
    sweep()
    labelled.refresh_from_db()
    assert labelled.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert Round.objects.filter(number=2).count() == 1


def test_an_error_that_nobody_foresaw_fails_the_step_and_says_so(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch
):
    def broken(*args: object) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(executor, "do_step", broken)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    step = labelled.steps.get(position=1)
    assert step.state == StepState.FAILED
    assert "by zero" in step.error


def test_a_step_fails_in_the_language_of_who_started_the_round(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch
):
    def refusing(*args: object) -> str:
        raise Refusal("file_empty", gettext("The file has no rows."))

    carol.language = "de"
    carol.save()
    monkeypatch.setattr(executor, "do_step", refusing)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    assert labelled.steps.get(position=1).error == "Die Datei hat keine Zeilen."


def test_a_damaged_checkpoint_is_not_registered(labelled: Round, carol: User, rondo_home: Path):
    start_round(round_=labelled, started_by=carol)
    do_steps_before(labelled, StepKind.REGISTER_CHECKPOINTS)
    weights = rondo_home / "runs/tea-round-1-policy/checkpoint/adapter_model.safetensors"
    weights.write_text("something else")
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert labelled.state == RoundState.FAILED
    assert "is damaged" in labelled.steps.get(kind="register_checkpoints").error
    assert not Checkpoint.objects.filter(name="tea-round-1-policy").exists()
    assert [entry.name for entry in (rondo_home / "checkpoints").iterdir()] == ["tea-round-1-reward"]
