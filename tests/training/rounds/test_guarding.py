"""A run that asks people: pairs in the queue, what their answers decide, and workers that die in between."""

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from annotation.models import Comparison, Completion, Project, Prompt, User
from annotation.services.assignments.next import assign_next
from annotation.services.jobs import ClaimLostError, claim
from annotation.services.judgments.submission import submit_judgment
from annotation.services.texts import create_comparison
from tests import factories
from tests.records import judgment_record
from tests.training.conftest import judge
from tests.training.rounds.round_scenes import behave
from training.choices import QuestionOutcome, RoundState, StepKind, StepState
from training.contract.guard import (
    GuardedPair,
    GuardQuestion,
    GuardSignal,
    SampledText,
    read_verdict,
    write_question,
)
from training.contract.run import EXIT_FINISHED, RunStatus, read_status
from training.models import QuestionPair, Round, RoundStep, Run, RunQuestion, Snapshot
from training.recipe.auto import POLICY_ROWS
from training.recipe.recipe import PRESETS, ComputeSettings, Recipe, default_recipe
from training.selectors.rounds import outcomes_of, questions_of, unanswered_pairs
from training.services.checkpoints import register_starter
from training.services.rounds import guarding
from training.services.rounds.controls import cancel_round, pause_round, retry_step, start_again
from training.services.rounds.guarding import end_questions, watch_questions
from training.services.rounds.recipes import with_guard
from training.services.runs import launcher

pytestmark = pytest.mark.django_db

NOW, THEN = "the answer of now", "an answer of then"


@pytest.fixture
def many(project: Project) -> list[Prompt]:
    return [factories.make_prompt(project, f"What is {n} and {n}?", split="train") for n in range(40)]


@pytest.fixture
def step(project: Project) -> RoundStep:
    """Training of round 1's policy, held by a worker, its run in a folder of its own."""
    round_ = Round.objects.create(
        project=project, number=1, state=RoundState.TRAINING_POLICY, policy=register_starter()
    )
    snapshot = Snapshot.objects.create(project=project, digest="d" * 64, folder="f", rounds=[1], counts={})
    run = Run.objects.create(
        name="tea-round-1-policy",
        method="policy_gradient",
        snapshot=snapshot,
        spec={"settings": {"guard": {"most_pairs": 40}}},
        folder="runs/tea-round-1-policy",
    )
    run.path.mkdir(parents=True)
    made = RoundStep.objects.create(round=round_, position=3, kind=StepKind.TRAIN_POLICY, run=run)
    claimed = claim(RoundStep.objects.select_related("round__project", "run"), made.pk)
    assert claimed is not None
    return claimed


def ask(
    step: RoundStep, prompts: Sequence[Prompt], *, number: int = 1, now: Callable[[int], str] | None = None
) -> None:
    """Write a question as the trainer does."""
    assert step.run is not None
    pairs = tuple(
        GuardedPair(
            prompt=str(prompt.pk),
            then=SampledText(text=f"{THEN} {place}", seed=place, finish_reason="stop", tokens=4),
            now=SampledText(
                text=now(place) if now else f"{NOW} {place}", seed=place, finish_reason="length", tokens=4
            ),
        )
        for place, prompt in enumerate(prompts)
    )
    question = GuardQuestion(
        number=number,
        step=10 * number,
        then_step=10 * number - 5,
        signals=(GuardSignal(name="kl", value=7.5, bound=6.0),),
        sampling={"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 48},
        pairs=pairs,
    )
    write_question(step.run.path, question)


def answer(project: Project, annotator: User, wins: Sequence[bool | None]) -> None:
    """Judge what the queue gives: True where now wins, None for a tie."""
    for now_wins in wins:
        assignment = assign_next(project=project, annotator=annotator)
        assert assignment is not None
        completions = list(assignment.comparison.candidates.order_by("index").select_related("completion"))
        better = NOW if now_wins else THEN
        record = judgment_record(verdict="equal", ranks={})
        if now_wins is not None:
            ranks = {
                candidate.completion_id: 1 if candidate.completion.text.startswith(better) else 2
                for candidate in completions
            }
            record = judgment_record(verdict="ranked", ranks=ranks)
        submit_judgment(
            assignment=assignment, annotator=annotator, answer=record, idempotency_key=uuid.uuid4()
        )


def pairs_open(project: Project) -> int:
    return Comparison.objects.filter(project=project, question_pairs__isnull=False, open_slots__gt=0).count()


def the_question(number: int = 1) -> RunQuestion:
    return RunQuestion.objects.get(number=number)


def verdict_of(step: RoundStep, number: int = 1) -> tuple[str, int] | None:
    assert step.run is not None
    verdict = read_verdict(step.run.path, number)
    return None if verdict is None else (verdict.outcome, verdict.asked)


# ── Asked ──


def test_eight_pairs_come_to_the_head_of_the_queue_and_nothing_tells_them_apart(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    urgent = factories.make_comparison(project, priority=900)
    ask(step, many)
    watch_questions(step)
    assert pairs_open(project) == 8
    assert QuestionPair.objects.count() == 8
    assignment = assign_next(project=project, annotator=alice)
    assert assignment is not None
    assert assignment.comparison_id != urgent.pk
    assert assignment.comparison.purpose == "work"
    assert assignment.comparison.prompt.split == "train"
    assert assignment.comparison.round_number == 1
    texts = sorted(assignment.comparison.completions.values_list("text", flat=True))
    assert [text[:9] for text in texts] == ["an answer", "the answe"]


def test_responses_are_stored_with_run_step_seed_and_sampling(step: RoundStep, many: list[Prompt]):
    ask(step, many)
    watch_questions(step)
    stored = Completion.objects.get(text=f"{NOW} 3")
    assert stored.source.name == "tea-round-1-policy step 10"
    assert (stored.seed, stored.finish_reason, stored.token_count) == (3, "length", 4)
    assert stored.sampling["max_tokens"] == 48
    assert Completion.objects.get(text=f"{THEN} 3").source.name == "tea-round-1-policy step 5"


def test_looking_again_asks_nothing_twice(project: Project, step: RoundStep, many: list[Prompt]):
    ask(step, many)
    for _ in range(3):
        watch_questions(step)
    assert (RunQuestion.objects.count(), pairs_open(project)) == (1, 8)
    assert Completion.objects.count() == 16


def test_one_annotator_is_enough_whatever_the_overlap(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    Project.objects.filter(pk=project.pk).update(overlap=3)
    ask(step, many)
    watch_questions(step)
    assert set(Comparison.objects.values_list("overlap", "open_slots")) == {(1, 1)}


def test_a_pair_that_names_its_model_is_replaced_by_another(
    project: Project, step: RoundStep, many: list[Prompt]
):
    ask(step, many, now=lambda place: "As SmolLM2, I say so." if place < 2 else f"{NOW} {place}")
    watch_questions(step)
    assert pairs_open(project) == 8
    assert set(QuestionPair.objects.values_list("position", flat=True)) == set(range(2, 10))


def test_a_prompt_that_is_gone_is_passed_over(project: Project, step: RoundStep, many: list[Prompt]):
    ask(step, many)
    many[0].delete()
    watch_questions(step)
    assert set(QuestionPair.objects.values_list("position", flat=True)) == set(range(1, 9))


def test_a_run_without_a_guard_is_not_looked_at(step: RoundStep, many: list[Prompt]):
    assert step.run is not None
    step.run.spec = {"settings": {}}
    ask(step, many)
    watch_questions(step)
    assert not RunQuestion.objects.exists()


# ── Decided ──


def test_a_policy_that_loses_every_pair_is_called_worse_and_nobody_is_asked_further(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [False] * 8)
    watch_questions(step)
    # Eight losses have a capital of 57, and 100 is asked for: eight more pairs are open.
    assert (verdict_of(step), pairs_open(project)) == (None, 8)
    answer(project, alice, [False])
    watch_questions(step)
    assert verdict_of(step) == ("worse", 16)
    assert the_question().outcome == QuestionOutcome.WORSE
    assert pairs_open(project) == 0
    assert Comparison.objects.filter(judgments__isnull=False).count() == 9


def test_a_policy_that_wins_is_fine_after_few_pairs(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True] * 4)
    watch_questions(step)
    assert verdict_of(step) == ("fine", 8)
    assert pairs_open(project) == 0


def test_ties_count_one_half(project: Project, step: RoundStep, many: list[Prompt], alice: User):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [None, True, False, None])
    assert sorted(outcomes_of(the_question())) == [0.0, 0.5, 0.5, 1.0]


def test_a_question_that_stays_open_asks_forty_pairs_and_is_undecided(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    ask(step, many)
    for _ in range(5):
        watch_questions(step)
        answer(project, alice, [True, False, False, True, False, False, True, False])
    watch_questions(step)
    assert verdict_of(step) == ("undecided", 40)
    assert the_question().outcome == QuestionOutcome.UNDECIDED
    assert QuestionPair.objects.count() == 40


def test_the_pairs_of_all_questions_count_together(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    assert step.run is not None
    Run.objects.update(spec={"settings": {"guard": {"most_pairs": 20}}})
    step.run.refresh_from_db()
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True] * 4)
    watch_questions(step)
    ask(step, many[:12], number=2)
    for wins in ([True, False, False, False] * 2, [True, False, False, True]):
        watch_questions(step)
        answer(project, alice, wins)
    watch_questions(step)
    assert verdict_of(step, 2) == ("undecided", 20)


def test_what_a_guest_says_decides_nothing(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True] * 4)
    User.objects.filter(pk=alice.pk).update(is_guest=True)
    assert outcomes_of(the_question()) == []


def test_a_question_without_pairs_is_only_noted(step: RoundStep):
    ask(step, [])
    watch_questions(step)
    assert the_question().outcome == QuestionOutcome.SPENT
    assert verdict_of(step) is None


def test_a_question_that_is_open_when_the_run_has_ended_was_not_answered_in_time(
    project: Project, step: RoundStep, many: list[Prompt], alice: User
):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True, False])
    end_questions(step)
    assert the_question().outcome == QuestionOutcome.UNANSWERED
    assert pairs_open(project) == 0
    assert len(outcomes_of(the_question())) == 2


# ── Killed, cancelled, repeated ──


def test_a_worker_killed_before_it_told_the_trainer_tells_it_later(
    project: Project, step: RoundStep, many: list[Prompt], alice: User, monkeypatch: pytest.MonkeyPatch
):
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True] * 4)
    with monkeypatch.context() as patch:
        patch.setattr(guarding, "write_verdict", die)
        with pytest.raises(KeyboardInterrupt):
            watch_questions(step)
    assert verdict_of(step) is None
    watch_questions(step)
    assert verdict_of(step) == ("fine", 8)


def test_a_worker_killed_amid_asking_leaves_no_half_question(
    project: Project, step: RoundStep, many: list[Prompt], monkeypatch: pytest.MonkeyPatch
):
    calls = []

    def die(**values: Any) -> Comparison:
        calls.append(values)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return create_comparison(**values)

    ask(step, many)
    with monkeypatch.context() as patch:
        patch.setattr(guarding, "create_comparison", die)
        with pytest.raises(KeyboardInterrupt):
            watch_questions(step)
    assert pairs_open(project) == 0
    watch_questions(step)
    assert (pairs_open(project), QuestionPair.objects.count()) == (8, 8)


def test_a_worker_that_lost_its_claim_writes_nothing(project: Project, step: RoundStep, many: list[Prompt]):
    ask(step, many)
    RoundStep.objects.update(worker="somebody-else")
    with pytest.raises(ClaimLostError):
        watch_questions(step)
    assert not RunQuestion.objects.exists()


def test_a_cancelled_round_closes_its_pairs_and_one_that_goes_on_opens_those_without_an_answer(
    project: Project, step: RoundStep, many: list[Prompt], alice: User, carol: User
):
    ask(step, many)
    watch_questions(step)
    answer(project, alice, [True, False])
    RoundStep.objects.update(state=StepState.WAITING, worker="", heartbeat_at=None)
    cancel_round(round_=step.round, actor=carol)
    assert the_question().outcome == QuestionOutcome.WITHDRAWN
    assert pairs_open(project) == 0
    step.round.refresh_from_db()
    start_again(round_=step.round, actor=carol)
    claimed = claim(RoundStep.objects.select_related("round__project", "run"), step.pk)
    assert claimed is not None
    watch_questions(claimed)
    assert the_question().outcome == QuestionOutcome.OPEN
    assert (pairs_open(project), QuestionPair.objects.count()) == (6, 8)
    assert unanswered_pairs(the_question()).count() == 6


def test_a_paused_round_keeps_its_pairs_open(
    project: Project, step: RoundStep, many: list[Prompt], carol: User
):
    ask(step, many)
    watch_questions(step)
    RoundStep.objects.update(state=StepState.WAITING, worker="", heartbeat_at=None)
    pause_round(round_=step.round, actor=carol)
    assert pairs_open(project) == 8


def test_a_policy_that_is_trained_anew_asks_nothing_for_the_old_run(
    project: Project, step: RoundStep, many: list[Prompt], carol: User
):
    ask(step, many)
    watch_questions(step)
    RoundStep.objects.update(state=StepState.WAITING, worker="", heartbeat_at=None)
    pause_round(round_=step.round, actor=carol)
    retry_step(round_=step.round, kind=StepKind.TRAIN_POLICY, actor=carol)
    assert pairs_open(project) == 0
    assert questions_of(step.round) == []


# ── Recipes ──


def test_new_policy_gradients_have_a_guard_and_stored_recipes_have_none():
    guarded = {name for name, (_, make) in PRESETS.items() if getattr(make(), "guard", None) is not None}
    assert guarded == {"ppo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce"}
    assert {row.key for row in POLICY_ROWS if getattr(row.make(), "guard", None) is not None} == {"grpo"}
    stored = Recipe.from_json({"policy": {"method": "policy_gradient", "context": True}})
    assert stored.policy.guard is None
    assert "guard" not in json.dumps(default_recipe())


def test_a_guard_is_left_out_where_nobody_could_answer(settings: Any):
    policy = PRESETS["grpo"][1]()
    assert with_guard(policy, ComputeSettings()) == policy
    settings.RONDO_LAUNCHER = ["local", "ray"]
    far = ComputeSettings(launcher="ray")
    assert with_guard(policy, far) == policy
    settings.RONDO_STORE_URL = "s3://bucket"
    assert with_guard(policy, far).guard is None
    assert with_guard(policy, ComputeSettings(launcher="local")) == policy


# ── A whole round ──


@pytest.mark.usefixtures("fake_server")
def test_a_round_asks_while_it_trains_and_shows_it(
    labelled: Round, alice: User, carol: User, client: Client, monkeypatch: pytest.MonkeyPatch
):
    from tests.training.runs.fake_trainer import train
    from training.services.rounds.controls import start_round
    from training.services.rounds.executor import advance_round

    recipe = {"policy": {"method": "policy_gradient", "guard": {}, "context": True}}
    Round.objects.update(recipe=recipe)
    labelled.refresh_from_db()
    behave(labelled.policy.path.parents[1], steps=1)
    prompts = list(Prompt.objects.filter(split="train"))
    seen: list[str] = []

    def run_trainer(
        folder: Path, *, watch: Callable[[RunStatus | None], bool], gpus: Sequence[int] | None = None
    ) -> launcher.TrainerExit:
        train(folder)
        held = RoundStep.objects.filter(state=StepState.RUNNING, kind=StepKind.TRAIN_POLICY).first()
        if held is not None:
            held.run = Run.objects.get(round_step=held)
            ask(held, prompts)
            watch(read_status(folder))
            while (assignment := assign_next(project=labelled.project, annotator=alice)) is not None:
                judge(assignment.comparison, alice)
            watch(read_status(folder))
            seen.append((verdict_of(held) or ("", 0))[0])
        return launcher.TrainerExit(code=EXIT_FINISHED, status=read_status(folder), output_tail="")

    monkeypatch.setattr(launcher, "run_trainer", run_trainer)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    # The fixture's annotator prefers what is recorded first: the earlier response. Four pairs do not show it.
    assert seen == ["undecided"]
    [shown] = questions_of(labelled)
    assert (shown.pairs, shown.losses, shown.outcome) == (4, 4, "undecided")
    client.force_login(carol)
    page = client.get(labelled.get_absolute_url()).content.decode()
    assert "Step 10 against step 5" in page
    assert "4 of 4 pairs answered: 0 better, 4 worse, 0 equal" in page
    assert "7.5 nats per response" in page
    # Annotators see no word of it.
    client.force_login(alice)
    assert client.get(labelled.get_absolute_url()).status_code == 403
    client.force_login(carol)
    read = client.get(f"/api/v1/projects/{labelled.project.slug}/rounds/1/").json()
    [question] = read["questions"]
    assert (question["step"], question["then_step"], question["outcome"]) == (10, 5, "undecided")
    assert (question["pairs"], question["wins"], question["losses"], question["ties"]) == (4, 0, 4, 0)
