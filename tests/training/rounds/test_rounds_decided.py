"""A round is promoted or rejected, rolled back, and its steps are done again."""

import threading
from collections.abc import Callable

import pytest
from django.db import connections
from django.utils import timezone

from annotation.errors import Refusal
from annotation.models import AuditEntry, Comparison, Completion, Prompt, User
from annotation.services import jobs
from tests import factories
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from tests.training.rounds.round_scenes import decide, deeds, states
from training.choices import STATE_OF_STEP, RoundState, StepKind
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot
from training.services.rounds.controls import cancel_round, retry_step, start_round
from training.services.rounds.deciding import promote_round, reject_round, roll_back
from training.services.rounds.executor import advance_round, rounds_with_work, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def test_a_round_waits_for_a_manager_where_its_recipe_says_so(
    deciding_round: Round, carol: User, rings: list[int]
):
    sweep()
    advance_round(deciding_round.pk)
    deciding_round.refresh_from_db()
    assert (deciding_round.state, rounds_with_work(), rings) == (RoundState.DECIDING, [], [])
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    assert deciding_round.state == RoundState.PROMOTED
    second = Round.objects.get(number=2)
    assert second.policy.name == "tea-round-1-policy"
    assert second.parsed_recipe.promotion.by_hand
    assert deeds(deciding_round)[-1] == ("round.promote", "carol")
    assert AuditEntry.objects.get(action="round.promote").details["checkpoint"] == "tea-round-1-policy"


def test_after_a_rejection_the_next_round_goes_on_from_the_old_policy_with_new_answers(
    deciding_round: Round, carol: User
):
    reject_round(round_=deciding_round, actor=carol, note="Read them all.")
    assert deciding_round.state == RoundState.REJECTED
    second = Round.objects.get(number=2)
    assert second.policy == deciding_round.policy
    # The same checkpoint with the same seed would say the same again.
    assert (deciding_round.parsed_recipe.seed, second.parsed_recipe.seed) == (0, 1)
    first = set(Comparison.objects.filter(round_number=1).values_list("completion_set", flat=True))
    advance_round(second.pk)
    comparisons = Comparison.objects.filter(round_number=2)
    assert [comparison.size for comparison in comparisons.order_by("prompt_id")] == [2, 4, 2, 4]
    assert not first & set(comparisons.values_list("completion_set", flat=True))
    # Its checkpoint stays, for whoever wants it after all.
    assert Checkpoint.objects.filter(name="tea-round-1-policy").exists()
    assert deeds(deciding_round)[-1] == ("round.reject", "carol")


@pytest.mark.parametrize(("promote", "verdict"), [(True, "promoted"), (False, "rejected")])
def test_without_a_manager_the_conditions_decide_and_their_words_are_kept(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch, promote: bool, verdict: str
):
    decide(monkeypatch, ready=True, promote=promote, reason="win rate 0.31 [0.20, 0.44] of 60")
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    labelled.refresh_from_db()
    assert (labelled.state, labelled.reasons) == (verdict, ["win rate 0.31 [0.20, 0.44] of 60"])
    entry = AuditEntry.objects.filter(subject_id=labelled.pk).latest("pk")
    assert (entry.actor, entry.details["reasons"]) == (None, labelled.reasons)
    policy = Round.objects.get(number=2).policy
    assert (policy.name == "tea-round-1-policy") == promote


def test_a_decision_waits_for_evidence_and_is_made_once_that_is_in(
    labelled: Round, carol: User, monkeypatch: pytest.MonkeyPatch
):
    decide(monkeypatch, ready=False, promote=False, reason="12 of 30 judgments")
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    sweep()
    labelled.refresh_from_db()
    assert (labelled.state, labelled.reasons) == (RoundState.DECIDING, ["12 of 30 judgments"])
    decide(monkeypatch, ready=True, promote=True, reason="30 of 30 judgments")
    sweep()
    labelled.refresh_from_db()
    assert (labelled.state, labelled.reasons) == (RoundState.PROMOTED, ["30 of 30 judgments"])


def test_a_verdict_is_given_once(deciding_round: Round, carol: User, labelled: Round):
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    for verdict in (promote_round, reject_round):
        with pytest.raises(Refusal, match="does not wait for a decision: it is promoted"):
            verdict(round_=deciding_round, actor=carol, note="Read them all.")
    assert Round.objects.count() == 2
    with pytest.raises(Refusal, match="nothing to cancel"):
        cancel_round(round_=deciding_round, actor=carol)


def test_a_round_that_is_not_trained_is_not_promoted(labelled: Round, carol: User):
    for verdict in (promote_round, reject_round):
        with pytest.raises(Refusal, match="it is labelling"):
            verdict(round_=labelled, actor=carol, note="Read them all.")
    assert Round.objects.count() == 1


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_of_two_managers_who_promote_and_reject_at_once_one_decides(
    deciding_round: Round, carol: User, admin: User
):
    outcomes: list[str] = []
    gate = threading.Barrier(8)

    def press(verdict: Callable[..., None], actor: User) -> None:
        round_ = Round.objects.get(pk=deciding_round.pk)
        gate.wait()
        try:
            verdict(round_=round_, actor=actor, note="Read them all.")
            outcomes.append(round_.state)
        except Refusal as refusal:
            outcomes.append(refusal.message)
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=press, args=(verdict, actor))
        for verdict, actor in ((promote_round, carol), (reject_round, admin)) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    deciding_round.refresh_from_db()
    assert len(outcomes) == 8
    assert [outcome for outcome in outcomes if outcome in ("promoted", "rejected")] == [deciding_round.state]
    assert Round.objects.count() == 2
    second = Round.objects.get(number=2)
    assert (second.policy == deciding_round.policy) == (deciding_round.state == RoundState.REJECTED)
    verdicts = [name for name, _ in deeds(deciding_round) if name in ("round.promote", "round.reject")]
    assert len(verdicts) == 1


def test_an_open_round_goes_back_to_an_earlier_checkpoint(
    deciding_round: Round, carol: User, alice: User, fake_server: FakeServer
):
    starter = deciding_round.policy
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    begun = Comparison.objects.filter(round_number=2).count()
    second.refresh_from_db()
    roll_back(round_=second, checkpoint=starter, actor=carol)
    assert (second.policy, second.state) == (starter, RoundState.SAMPLING)
    assert second.parsed_recipe.seed == 1
    advance_round(second.pk)
    second.refresh_from_db()
    assert second.state == RoundState.LABELLING
    comparisons = Comparison.objects.filter(round_number=2)
    assert comparisons.count() == 2 * begun
    # What the abandoned checkpoint said comes last.
    for comparison in comparisons:
        writers = set(comparison.completions.values_list("source__name", flat=True))
        assert (comparison.priority < 0) == ("tea-round-1-policy" in writers)
    entry = AuditEntry.objects.get(action="round.rollback")
    assert entry.details == {"from": "tea-round-1-policy", "to": starter.name}

    # Its training goes on from that checkpoint.
    judge_all(second.project, alice)
    start_round(round_=second, started_by=carol)
    advance_round(second.pk)
    assert Checkpoint.objects.get(name="tea-round-2-policy").parent is None


def test_only_an_open_round_goes_back_and_only_to_what_can_answer_for_it(deciding_round: Round, carol: User):
    reward = Checkpoint.objects.get(kind="reward")
    policy = Checkpoint.objects.get(kind="policy")
    with pytest.raises(Refusal, match="trains or has trained"):
        roll_back(round_=deciding_round, checkpoint=policy, actor=carol)
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    second = Round.objects.get(number=2)
    for wrong in (reward, policy):
        with pytest.raises(Refusal, match="choose another checkpoint"):
            roll_back(round_=second, checkpoint=wrong, actor=carol)
    Checkpoint.objects.filter(pk=deciding_round.policy_id).update(files_deleted_at=timezone.now())
    with pytest.raises(Refusal, match="choose another checkpoint"):
        roll_back(round_=second, checkpoint=deciding_round.policy, actor=carol)
    second.refresh_from_db()
    assert second.policy == policy


def test_a_step_done_anew_makes_what_follows_anew_and_keeps_the_records(deciding_round: Round, carol: User):
    snapshot = deciding_round.snapshot
    retry_step(round_=deciding_round, kind=StepKind.TRAIN_POLICY, actor=carol)
    assert deciding_round.state == RoundState.TRAINING_POLICY
    assert states(deciding_round) == ["finished"] * 3 + ["waiting"] * 4
    advance_round(deciding_round.pk)
    deciding_round.refresh_from_db()
    assert (deciding_round.state, deciding_round.snapshot) == (RoundState.DECIDING, snapshot)
    assert set(Run.objects.values_list("name", flat=True)) == {
        "tea-round-1-reward",
        "tea-round-1-policy",
        "tea-round-1-policy-2",
    }
    assert Checkpoint.objects.filter(name="tea-round-1-policy").exists()
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    assert Round.objects.get(number=2).policy.name == "tea-round-1-policy-2"
    entry = AuditEntry.objects.get(action="round.retry")
    assert (entry.actor, entry.details) == (carol, {"step": "train_policy", "runs": ["tea-round-1-policy"]})
    with pytest.raises(Refusal, match="is open already"):
        retry_step(round_=deciding_round, kind=StepKind.TRAIN_POLICY, actor=carol)


def test_a_snapshot_frozen_anew_has_the_judgments_of_now(
    deciding_round: Round, carol: User, alice: User, prompts: list[Prompt]
):
    before = deciding_round.snapshot
    assert before is not None
    factories.make_comparison(deciding_round.project, prompt=prompts[0])
    assert len(judge_all(deciding_round.project, alice)) == 1
    retry_step(round_=deciding_round, kind=StepKind.FREEZE_SNAPSHOT, actor=carol)
    assert deciding_round.snapshot is None
    advance_round(deciding_round.pk)
    deciding_round.refresh_from_db()
    after = deciding_round.snapshot
    assert after is not None
    assert (before.counts["judgments"], after.counts["judgments"]) == (4, 5)
    assert Run.objects.count() == 4
    assert Snapshot.objects.filter(pk=before.pk).exists()


@pytest.mark.parametrize("kind", [StepKind.EVALUATE, StepKind.DECIDE])
def test_evaluation_and_decision_are_done_anew_without_training(
    deciding_round: Round, carol: User, kind: StepKind
):
    Round.objects.update(recipe={})
    deciding_round.refresh_from_db()
    retry_step(round_=deciding_round, kind=kind, actor=carol)
    assert (deciding_round.state, deciding_round.reasons) == (STATE_OF_STEP[kind], [])
    advance_round(deciding_round.pk)
    deciding_round.refresh_from_db()
    assert deciding_round.state == RoundState.NOT_ENOUGH_EVIDENCE
    assert Run.objects.count() == 2


def test_no_step_is_done_anew_under_a_workers_hands(labelled: Round, carol: User):
    with pytest.raises(Refusal, match="pause or cancel the round first"):
        retry_step(round_=labelled, kind=StepKind.ANSWER_PROMPTS, actor=carol)
    start_round(round_=labelled, started_by=carol)
    jobs.claim(RoundStep.objects.all(), labelled.steps.get(position=1).pk)
    for kind in (StepKind.FREEZE_SNAPSHOT, StepKind.TRAIN_POLICY):
        with pytest.raises(Refusal, match="pause or cancel the round first"):
            retry_step(round_=labelled, kind=kind, actor=carol)
    assert states(labelled)[1] == "running"


def test_prompts_answered_anew_take_the_round_back_before_training(deciding_round: Round, carol: User):
    retry_step(round_=deciding_round, kind=StepKind.ANSWER_PROMPTS, actor=carol)
    assert (deciding_round.state, deciding_round.snapshot) == (RoundState.SAMPLING, None)
    assert states(deciding_round) == ["waiting"]
    before = Completion.objects.count()
    advance_round(deciding_round.pk)
    deciding_round.refresh_from_db()
    assert deciding_round.state == RoundState.LABELLING
    assert Completion.objects.count() == before
