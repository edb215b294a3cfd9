"""Live learning: judgments become updates while people label, whatever dies in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import IntegrityError, transaction

from annotation.choices import JobState, Split
from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Comparison, Judgment, Project, Prompt, User
from annotation.services.jobs import ClaimLostError
from tests.refusals import refused
from tests.training.live.live_scene import EVERY, label, sources_of, waiting, work
from tests.training.rounds.round_scenes import behave
from training.choices import LiveState
from training.contract.run import STATE_FOLDER
from training.contract.snapshot import read_snapshot
from training.models import Checkpoint, LiveLearning, LiveUpdate, Run, Snapshot
from training.selectors.live import live_view, policy_now
from training.services import live
from training.services.live import do_live, set_live, sweep_live
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round
from training.services.runs import launcher

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]

# ── Off and on ──


def test_without_live_learning_the_round_answers_all_prompts_and_nothing_is_updated(
    project: Project, many: list[Prompt], alice: User
):
    advance_round(open_first_round(project=project).pk)
    assert Comparison.objects.filter(project=project).count() == len(many)
    label(project, alice, 12)
    sweep_live()
    assert LiveUpdate.objects.count() == 0


def test_with_live_learning_the_round_answers_its_held_out_prompts_and_few_others(
    project: Project, learning: LiveLearning
):
    by_split = {split: Comparison.objects.filter(prompt__split=split).count() for split in Split.values}
    assert by_split == {Split.HELD_OUT: 6, Split.TRAIN: EVERY + 4}


def test_a_round_answers_the_rest_once_live_learning_is_switched_off(
    project: Project, learning: LiveLearning, many: list[Prompt], carol: User
):
    set_live(project=project, by=carol, is_active=False)
    advance_round(project.rounds.get().pk)
    assert Comparison.objects.filter(project=project).count() == len(many)


@pytest.mark.parametrize(("field", "value"), [("every", 1), ("every", 201), ("ahead", 1), ("ahead", 101)])
def test_a_number_out_of_range_is_refused(project: Project, carol: User, field: str, value: int):
    values: dict[str, Any] = {field: value}
    with refused("number_out_of_range", field=field):
        set_live(project=project, by=carol, is_active=True, **values)
    assert not LiveLearning.objects.exists()


def test_settings_that_no_trainer_takes_are_refused(project: Project, carol: User):
    with refused("invalid_live_policy", field="policy"):
        set_live(project=project, by=carol, is_active=True, policy={"beta": -1})
    with refused("invalid_live_policy", field="policy"):
        set_live(project=project, by=carol, is_active=True, policy={"optimiser": {"max_steps": None}})


def test_annotators_do_not_switch_it(project: Project, alice: User):
    with pytest.raises(NotAllowed):
        set_live(project=project, by=alice, is_active=True)


def test_who_switched_it_is_in_the_log(project: Project, learning: LiveLearning, carol: User):
    entry = AuditEntry.objects.get(action="project.live_learning")
    assert entry.actor == carol
    assert entry.details == {"is_active": True, "every": EVERY, "ahead": 4}


# ── Updates ──


def test_nothing_is_updated_before_enough_judgments_are_in(
    project: Project, learning: LiveLearning, alice: User
):
    label(project, alice, EVERY - 1)
    assert work(learning).state == JobState.FINISHED
    assert LiveUpdate.objects.count() == 0


def test_enough_judgments_make_a_snapshot_a_run_and_a_checkpoint_which_answers_next(
    project: Project, learning: LiveLearning, alice: User
):
    label(project, alice, EVERY)
    work(learning)
    update = LiveUpdate.objects.get()
    assert (update.number, update.state, update.judgments, update.behind) == (1, LiveState.SERVED, EVERY, 0)
    assert update.run is not None
    assert update.run.name == "tea-live-1"
    assert update.run.method == "preference"
    assert update.run.spec["snapshot_digest"] == update.snapshot.digest
    assert update.run.spec["settings"]["optimiser"]["max_steps"] == 6
    assert update.checkpoint is not None
    assert policy_now(project.rounds.get()) == update.checkpoint
    assert update.answered_at >= update.served_at >= update.judged_at
    assert sources_of(label(project, alice, 1)[0]) == {"tea-live-1"}
    assert waiting(project, "tea-live-1") == 3


def test_an_update_learns_from_preferences_on_training_prompts_alone(
    project: Project, learning: LiveLearning, alice: User
):
    label(project, alice, EVERY)
    assert Judgment.objects.filter(comparison__prompt__split=Split.HELD_OUT).exists()
    work(learning)
    snapshot = Snapshot.objects.get()
    rows = list(read_snapshot(snapshot.path))
    assert {row.split for row in rows} == {"train"}
    assert len(rows) == EVERY == snapshot.judgments.count()


def test_the_next_update_continues_the_last_and_learns_from_the_judgments_since(
    project: Project, learning: LiveLearning, alice: User
):
    for _ in range(2):
        label(project, alice, EVERY)
        work(learning)
    second, first = LiveUpdate.objects.all()
    assert second.run.parent == first.checkpoint
    assert second.run.spec["parent_digest"] == first.checkpoint.digest
    assert second.run.spec["settings"]["lora"] == first.run.spec["settings"]["lora"]
    assert second.judgments == second.snapshot.judgments.count() == EVERY
    learned = [set(update.snapshot.judgments.values_list("pk", flat=True)) for update in (first, second)]
    assert not learned[0] & learned[1]


def test_judgments_that_come_in_meanwhile_count_to_the_next_update(
    project: Project, learning: LiveLearning, alice: User, monkeypatch: pytest.MonkeyPatch
):
    label(project, alice, EVERY)
    train = launcher.run_trainer

    def meanwhile(folder: Path, **options: Any) -> launcher.TrainerExit:
        if folder.name == "tea-live-1":
            label(project, alice, 3)
        return train(folder, **options)

    monkeypatch.setattr(launcher, "run_trainer", meanwhile)
    work(learning)
    update = LiveUpdate.objects.get()
    assert update.behind == 3
    view = live_view(project)
    assert (view.version, view.judgments_ago, view.behind) == (1, 0, 3)
    label(project, alice, 1)
    work(learning)
    assert LiveUpdate.objects.get(number=2).judgments == EVERY


def test_what_waits_is_of_the_newest_policy_and_no_more_than_so_many(
    project: Project, learning: LiveLearning, alice: User
):
    for _ in range(2):
        label(project, alice, EVERY)
        work(learning)
    assert waiting(project, "tea-live-1") == 0
    assert waiting(project, "tea-live-2") == 4


def test_an_empty_queue_is_filled_by_the_policy_of_now(project: Project, learning: LiveLearning, alice: User):
    label(project, alice, EVERY)
    work(learning)
    label(project, alice, 3)
    assert waiting(project, "tea-live-1") == 1
    work(learning)
    assert waiting(project, "tea-live-1") == 4
    assert LiveUpdate.objects.count() == 1


def test_held_out_prompts_are_answered_by_the_rounds_policy_and_still_asked(
    project: Project, learning: LiveLearning, alice: User
):
    for _ in range(4):
        label(project, alice, EVERY)
        work(learning)
    held_out = Comparison.objects.filter(prompt__split=Split.HELD_OUT)
    starter = project.rounds.get().policy.name
    assert {name for comparison in held_out for name in sources_of(comparison)} == {starter}
    # One of six prompts is held out: with sixteen judgments on others about three.
    assert Judgment.objects.filter(comparison__in=held_out).count() >= 3


def test_one_update_at_a_time(project: Project, learning: LiveLearning):
    values = {
        "project": project,
        "round": project.rounds.get(),
        "judgments": 4,
        "last_judgment": 4,
        "judged_at": learning.created_at,
    }
    LiveUpdate.objects.create(number=1, **values)
    with pytest.raises(IntegrityError), transaction.atomic():
        LiveUpdate.objects.create(number=2, **values)


def test_superseded_updates_keep_their_rows_and_each_fifth_its_files(
    project: Project, learning: LiveLearning, alice: User
):
    for _ in range(7):
        label(project, alice, EVERY)
        work(learning)
    assert LiveUpdate.objects.filter(state=LiveState.SERVED).count() == 7
    kept = Checkpoint.objects.filter(run__live_update__isnull=False, files_deleted_at__isnull=True)
    assert sorted(checkpoint.name for checkpoint in kept) == ["tea-live-5", "tea-live-7"]
    assert Checkpoint.objects.filter(run__live_update__isnull=False).count() == 7
    assert not [run for run in Run.objects.all() if (run.path / STATE_FOLDER).exists()]


# ── Rounds ──


def test_a_round_trains_from_its_own_policy_and_decides_as_without_updates(
    project: Project, learning: LiveLearning, alice: User, carol: User
):
    label(project, alice, EVERY)
    work(learning)
    round_ = project.rounds.get()
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    round_.refresh_from_db()
    assert round_.policy.kind == "starter"
    run = Run.objects.get(round_step__kind="train_policy")
    assert run.parent is None
    evaluated = round_.evaluations.get()
    assert evaluated.checkpoint.run == run
    assert evaluated.parent == round_.policy


def test_nothing_is_updated_while_a_round_trains(
    project: Project, learning: LiveLearning, alice: User, carol: User
):
    label(project, alice, 2 * EVERY)
    start_round(round_=project.rounds.get(), started_by=carol)
    work(learning)
    assert LiveUpdate.objects.count() == 0
    assert learning.state == JobState.FINISHED


# ── Kills ──


class Killed(BaseException):
    """As SIGKILL: nothing after it is done."""


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, *, before: bool) -> None:
    """Have the worker die the first time that it comes to a function of the service."""
    function = getattr(live, name)
    died: list[bool] = []

    def dies(*args: object, **options: object) -> object:
        if died:
            return function(*args, **options)
        if not before:
            function(*args, **options)
        died.append(True)
        raise Killed

    monkeypatch.setattr(live, name, dies)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    "name",
    ["_begin", "freeze_snapshot", "create_run", "drive_run", "register_checkpoint", "answer_pairs", "_thin"],
)
def test_a_worker_that_is_killed_anywhere_leaves_one_update_that_the_next_one_finishes(
    project: Project,
    learning: LiveLearning,
    alice: User,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    before: bool,
):
    label(project, alice, EVERY)
    kill_at(monkeypatch, name, before=before)
    sweep_live()
    with pytest.raises(Killed):
        do_live(learning.pk)
    # Its heartbeat has stopped long ago.
    LiveLearning.objects.update(heartbeat_at="2020-01-01T00:00:00Z")
    Run.objects.update(heartbeat_at="2020-01-01T00:00:00Z")
    work(learning)
    assert learning.state == JobState.FINISHED
    update = LiveUpdate.objects.get()
    assert (update.state, update.judgments) == (LiveState.SERVED, EVERY)
    assert Run.objects.count() == Checkpoint.objects.filter(run__isnull=False).count() == 1
    assert update.snapshot.judgments.count() == EVERY
    assert waiting(project, update.run.name) == 4


def test_a_worker_whose_claim_was_taken_writes_nothing(
    project: Project, learning: LiveLearning, alice: User, monkeypatch: pytest.MonkeyPatch
):
    label(project, alice, EVERY)

    def loses(**_: object) -> None:
        LiveLearning.objects.update(worker="another:1:a")
        raise ClaimLostError

    sweep_live()
    monkeypatch.setattr(live, "freeze_snapshot", loses)
    do_live(learning.pk)
    update = LiveUpdate.objects.get()
    assert (update.state, update.snapshot, update.run) == (LiveState.TRAINING, None, None)


def test_an_update_that_fails_says_why_and_its_judgments_count_to_the_next(
    project: Project, learning: LiveLearning, alice: User, carol: User
):
    behave(Path(settings.RONDO_HOME), fail_at=1)
    label(project, alice, EVERY)
    assert work(learning).state == JobState.FAILED
    failed = LiveUpdate.objects.get()
    assert failed.state == LiveState.FAILED
    assert "Lower the learning rate" in failed.error
    assert work(learning).state == JobState.FAILED, "it goes on only when somebody says so"
    behave(Path(settings.RONDO_HOME))
    set_live(project=project, by=carol, is_active=True, every=EVERY, ahead=4)
    work(learning)
    assert LiveUpdate.objects.get(number=2).state == LiveState.SERVED
    assert LiveUpdate.objects.get(number=2).judgments == EVERY


def test_what_is_switched_off_while_it_trains_stops_and_goes_on_later(
    project: Project, learning: LiveLearning, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
):
    label(project, alice, EVERY)
    train = launcher.run_trainer

    def stopped(folder: Path, *, watch: Callable[..., bool], **_: object) -> launcher.TrainerExit:
        set_live(project=project, by=carol, is_active=False)
        assert watch(None), "the trainer is told to stop"
        return launcher.TrainerExit(code=3, status=None, output_tail="")

    monkeypatch.setattr(launcher, "run_trainer", stopped)
    work(learning)
    assert LiveUpdate.objects.get().state == LiveState.TRAINING
    monkeypatch.setattr(launcher, "run_trainer", train)
    set_live(project=project, by=carol, is_active=True, every=EVERY, ahead=4)
    work(learning)
    assert LiveUpdate.objects.get().state == LiveState.SERVED
