"""A policy that is trained for a reward that can be hacked asks people; its run goes back by their answers.

The real trainer as a process of its own, the real services, and annotators who prefer short lists.
"""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from annotation.models import Comparison, Project, Prompt, User
from annotation.services.assignments.next import assign_next
from annotation.services.jobs import claim
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.benchmarks.guard import TRUTH
from tests.benchmarks.loop.grammar import prompts as write_prompts
from tests.records import judgment_record
from training.choices import QuestionOutcome, RoundState, RunState, StepKind, StepState
from training.contract import read_manifest, read_metrics
from training.contract.guard import GUARD_FOLDER
from training.contract.snapshot import Message, SnapshotPrompt, read_snapshot_header, write_snapshot
from training.models import QuestionPair, Round, RoundStep, Run, RunQuestion, Snapshot
from training.selectors.rounds import questions_of
from training.services.checkpoints import register_starter
from training.services.rounds import executor
from training.services.rounds.guarding import watch_questions

WRITER, STEPS = "writer", 20
RECIPE: dict[str, Any] = {
    "policy": {
        "method": "policy_gradient",
        # Pays for every word up to forty, whatever is written.
        "rewards": [{"name": "long", "kind": "length", "options": {"least": 40, "most": 99, "slack": 40}}],
        "rollout": {"samples": 8, "max_tokens": 48, "unfinished": "score"},
        "lora": {"rank": 16, "alpha": 32.0},
        "optimiser": {
            **{"batch_size": 8, "learning_rate": 3e-3, "max_steps": STEPS, "epochs": 1000, "save_every": 5},
            **{"evaluate_every": 0, "keep_best": False},
        },
        "evaluation_prompts": 0,
        "guard": {"kl": 2.0, "minutes": 10},
    }
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Both databases read this module: torch comes only with the test.
    from tests.benchmarks.loop.writer import build

    folder = tmp_path_factory.mktemp("models")
    build(folder / WRITER, steps=80)
    return folder


@pytest.fixture
def step(project: Project, models: Path, rondo_home: Path, settings: Settings) -> RoundStep:
    """Training of a round's policy, which waits for a worker."""
    settings.RONDO_MODELS = models
    settings.RONDO_STARTER_MODEL_NAME = WRITER
    settings.RONDO_HEARTBEAT_SECONDS = 0
    prompts = [factories.make_prompt(project, text, split="train") for text in write_prompts(60, seed=1)]
    folder = rondo_home / "snapshots" / "prompts"
    rows = [
        SnapshotPrompt(
            id=str(prompt.pk),
            split="train",
            messages=(Message(role="user", content=prompt.messages[0]["content"]),),
        )
        for prompt in prompts
    ]
    write_snapshot(folder, [], project=project.slug, rounds=(1,), prompts=rows)
    snapshot = Snapshot.objects.create(
        project=project,
        digest=read_snapshot_header(folder).digest,
        folder=str(folder.relative_to(rondo_home)),
        rounds=[1],
        counts={},
    )
    round_ = Round.objects.create(
        project=project,
        number=1,
        state=RoundState.TRAINING_POLICY,
        policy=register_starter(),
        snapshot=snapshot,
        recipe=RECIPE,
    )
    return RoundStep.objects.create(round=round_, position=3, kind=StepKind.TRAIN_POLICY)


def answer_all(project: Project, annotator: User) -> int:
    """Judge what is open by the truth; return how many."""
    count = 0
    while assignment := assign_next(project=project, annotator=annotator):
        comparison = assignment.comparison
        prompt = comparison.prompt.messages[0]["content"]
        better = {
            completion.pk: TRUTH(prompt, completion.text) for completion in comparison.completions.all()
        }
        (first, value), (second, other) = better.items()
        if value == other:
            record = judgment_record(verdict="equal", ranks={})
        else:
            ranks = {first: 1 if value > other else 2, second: 2 if value > other else 1}
            record = judgment_record(verdict="ranked", ranks=ranks)
        submit_judgment(
            assignment=assignment, annotator=annotator, answer=record, idempotency_key=uuid.uuid4()
        )
        count += 1
    return count


class DiedError(BaseException):
    """The worker is gone where it stands."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.django_db
def test_a_hacked_run_whose_worker_dies_asks_once_and_goes_back_by_peoples_answers(
    project: Project, step: RoundStep, alice: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def dies_once_it_has_asked(held: RoundStep) -> None:
        watch_questions(held)
        if QuestionPair.objects.exists():
            raise DiedError

    def people_answer(held: RoundStep) -> None:
        watch_questions(held)
        answer_all(project, alice)

    related = RoundStep.objects.select_related("round__project", "round__policy", "run")
    monkeypatch.setattr(executor, "watch_questions", dies_once_it_has_asked)
    claimed = claim(related, step.pk)
    assert claimed is not None
    with pytest.raises(DiedError):
        executor._carry_out(claimed)
    first = list(QuestionPair.objects.values_list("question", "position", "comparison"))
    assert len(first) == 8
    assert all(comparison.prompt.split == "train" for comparison in Comparison.objects.all())

    # Another worker finds the step of the dead one.
    RoundStep.objects.update(heartbeat_at=timezone.now() - timedelta(days=1))
    monkeypatch.setattr(executor, "watch_questions", people_answer)
    claimed = claim(related, step.pk)
    assert claimed is not None
    assert executor._carry_out(claimed)
    run = Run.objects.get()
    assert run.state == RunState.FINISHED
    assert list(QuestionPair.objects.values_list("question", "position", "comparison"))[:8] == first
    assert QuestionPair.objects.count() <= 40

    # People found it worse: the result is the state that they compared with.
    asked = questions_of(step.round)
    assert asked[-1].outcome == QuestionOutcome.WORSE
    assert read_manifest(run.path / "checkpoint").steps == asked[-1].then_step < STEPS
    # Every step was taken once, none after the run had to wait.
    taken = [row["step"] for row in read_metrics(run.path)]
    assert taken == list(range(1, len(taken) + 1))
    assert len(taken) <= asked[-1].step + 5
    assert len(list((run.path / GUARD_FOLDER).glob("question-*"))) == RunQuestion.objects.count()
    assert not Comparison.objects.filter(open_slots__gt=0).exists()
    assert step.round.steps.get().state == StepState.FINISHED
    assert Prompt.objects.filter(split="held-out").count() == 0
