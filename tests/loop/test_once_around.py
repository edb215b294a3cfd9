"""Prompts → answers → judgments → snapshot → reward model → policy → checkpoint → answers, all of it real."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from annotation.exchange.prompts import import_prompts
from annotation.models import Comparison, Completion, Project, User
from tests.loop.recipe import TINY, tiny_recipe
from tests.model_server import RunningServer, running_model_server
from tests.training.conftest import judge_all
from training.choices import RoundState
from training.contract import read_manifest
from training.contract.snapshot import read_snapshot
from training.engine import Engine
from training.models import Checkpoint, Round
from training.selectors.projects import request_of
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.deciding import promote_round
from training.services.rounds.executor import advance_round

QUESTIONS = (
    "Why is the sky blue?",
    "What is two and two?",
    "Write a line about tea.",
    "Who are you?",
    "How?",
)


@pytest.fixture
def server(tiny_models: Path, rondo_home: Path, settings: Settings) -> Iterator[RunningServer]:
    """The real model server over the tiny model and this test's checkpoints."""
    settings.RONDO_MODELS = tiny_models
    settings.RONDO_STARTER_MODEL_NAME = TINY
    with running_model_server(
        tiny_models, rondo_home / "checkpoints", arguments=["--base", TINY, "--device", "cpu"]
    ) as running:
        settings.RONDO_MODEL_SERVER_URL = running.url
        settings.RONDO_MODEL_SERVER_KEY = running.key
        yield running


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("rounds", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_tiny_model_goes_around_the_loop(
    rounds: int,
    project: Project,
    alice: User,
    carol: User,
    server: RunningServer,
    rondo_home: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    # Prompts are imported, and the starter answers them.
    lines = [json.dumps({"prompt": question}) for question in QUESTIONS]
    assert import_prompts(project=project, lines=lines, name="prompts.jsonl").added == 5
    first = open_first_round(project=project, recipe=tiny_recipe())
    advance_round(first.pk)
    assert sorted(Comparison.objects.values_list("size", flat=True)) == [2, 2, 2, 4, 4]
    assert set(Completion.objects.values_list("source__name", flat=True)) == {TINY}

    # Alice judges all of them, Carol starts the training round.
    assert len(judge_all(project, alice)) == 5
    start_round(round_=first, started_by=carol)
    advance_round(first.pk)
    first.refresh_from_db()
    assert [step.error for step in first.steps.order_by("position")] == [""] * 7
    # A few judgments of tiny models show nothing, and a person may still decide.
    assert first.state == RoundState.NOT_ENOUGH_EVIDENCE
    promote_round(round_=first, actor=carol, note="The loop goes on.")

    # The snapshot holds what she said, and both checkpoints name it.
    rows = list(read_snapshot(first.snapshot.path))
    assert len(rows) == 5
    assert {row.annotator for row in rows} == {str(alice.pseudonym)}
    for kind in ("reward", "policy"):
        checkpoint = Checkpoint.objects.get(name=f"tea-round-1-{kind}")
        manifest = read_manifest(checkpoint.path, verify=True)
        assert (manifest.kind, manifest.name, manifest.base_model) == (kind, checkpoint.name, TINY)
        assert manifest.snapshot_digest == first.snapshot.digest
        assert manifest.steps == checkpoint.run.total_steps == checkpoint.run.step == 6

    # Round 2 is open: the new checkpoint's answers stand beside those of the starter.
    second = Round.objects.get(number=2)
    advance_round(second.pk)
    second.refresh_from_db()
    policy = Checkpoint.objects.get(name="tea-round-1-policy")
    assert (second.state, second.policy) == (RoundState.LABELLING, policy)
    for comparison in Comparison.objects.filter(round_number=2):
        writers = {completion.source.name for completion in comparison.completions.all()}
        assert writers == {TINY, policy.name}
    # Five prompts, and the two held-out ones once more: the pairs of the evaluation, closed by the decision.
    in_second = Comparison.objects.filter(round_number=2)
    assert (in_second.count(), in_second.filter(open_slots=0).count()) == (7, 2)

    # An answer's record gives the same answer again, and the reward model scores it.
    with Engine() as engine:
        for completion in Completion.objects.select_related("source"):
            [answer] = engine.complete(**request_of(completion))
            # PostgreSQL cannot store NUL: the record has the replacement character in its place.
            text = answer.text.replace("\x00", "\ufffd")
            assert (text, answer.finish_reason) == (completion.text, completion.finish_reason)
            assert answer.token_count == completion.token_count
        texts = [completion.text for completion in Comparison.objects.first().completions.all()]
        scores = engine.score(
            model="tea-round-1-reward",
            messages=Comparison.objects.first().prompt.messages,
            completions=texts,
        )
        assert len(set(scores)) == len(texts)

    if rounds == 1:
        return
    # Once more: the second round continues the first one's policy.
    judge_all(project, alice)
    start_round(round_=second, started_by=carol)
    advance_round(second.pk)
    second.refresh_from_db()
    assert second.state == RoundState.NOT_ENOUGH_EVIDENCE
    continued = Checkpoint.objects.get(name="tea-round-2-policy")
    assert continued.parent == policy
    assert read_manifest(continued.path).parent_digest == policy.digest
    # Five of each round. The pairs of the evaluation are asked of nobody once the round is decided.
    assert second.snapshot.counts["judgments"] == 10
