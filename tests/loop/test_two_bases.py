"""Two bases of different families in one installation: each trains a round, or one rewards the other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from annotation.exchange.prompts import import_prompts
from annotation.models import Project, Prompt, User
from annotation.services.people.accounts import create_token
from tests import factories
from tests.chat_templates import template
from tests.loop.recipe import TINY, tiny_recipe
from tests.model_server import RunningServer, running_model_server
from tests.tiny import tiny_model_folder, tiny_tokenizer
from tests.training.conftest import judge_all
from training.choices import BaseOrigin, CheckpointKind, RoundState
from training.contract import read_manifest, read_metrics
from training.contract.run import read_samples
from training.engine import Engine
from training.models import BaseModel, Checkpoint, Evaluation, Round
from training.selectors.projects import chat_of
from training.services.base_models import NewBaseModel, do_addition, request_base_model
from training.services.rounds.base_choice import choose_base
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.executor import advance_round
from training.services.side_by_side import SharedSampling, ask_side_by_side, write_answers
from training.views.responses import responses_of

QWEN = "tiny-qwen2"
QUESTIONS = ("Why is the sky blue?", "What is two and two?", "A line about tea?", "Who are you?", "How?")
MEMORY_BYTES = 24 * 2**30


@pytest.fixture
def models(rondo_home: Path) -> Path:
    """A tiny Llama among Rondo's models, and a tiny Qwen2 with a tokenizer and template of its own."""
    tiny_model_folder(rondo_home / "models" / TINY)
    # Both databases read this module: torch comes only with the test.
    from tests.rlhf.model.families import family_folder

    folder = family_folder(rondo_home / "elsewhere" / QWEN, "qwen2", seed=1, max_position_embeddings=2048)
    tokenizer = tiny_tokenizer(corpus=("pack my box with five dozen liquor jugs", "how vexingly quick"))
    tokenizer.chat_template = template("qwen2_5")
    tokenizer.save_pretrained(folder)
    return rondo_home / "models"


@pytest.fixture
def server(models: Path, rondo_home: Path, settings: Settings) -> Iterator[RunningServer]:
    """The model server of all bases, of which the first is awake."""
    settings.RONDO_STARTER_MODEL_NAME = TINY
    settings.RONDO_BASE_MODEL_FOLDERS = [str(rondo_home / "elsewhere")]
    with running_model_server(
        models,
        rondo_home / "checkpoints",
        module="training.serving.router",
        arguments=["--base", TINY, "--device", "cpu", "--memory-gib", "24", "--cache-tokens", "4096"],
    ) as running:
        settings.RONDO_MODEL_SERVER_URL = running.url
        settings.RONDO_MODEL_SERVER_KEY = running.key
        yield running


def trained(
    project: Project, annotator: User, manager: User, *, recipe: dict[str, Any] | None = None
) -> Checkpoint:
    """The policy of the project's first round."""
    lines = [json.dumps({"prompt": question}) for question in QUESTIONS]
    import_prompts(project=project, lines=lines, name="prompts.jsonl")
    round_ = open_first_round(project=project, started_by=manager, recipe=recipe or tiny_recipe(steps=3))
    advance_round(round_.pk)
    judge_all(project, annotator)
    start_round(round_=round_, started_by=manager)
    advance_round(round_.pk)
    round_.refresh_from_db()
    assert [step.error for step in round_.steps.order_by("position")] == [""] * 7
    assert round_.state == RoundState.NOT_ENOUGH_EVIDENCE
    return Checkpoint.objects.get(name=f"{project.slug}-round-1-policy")


def add_second_base(home: Path, admin: User) -> BaseModel:
    """The Qwen2, added as an administrator adds it."""
    source = NewBaseModel(origin=BaseOrigin.FOLDER, folder=str(home / "elsewhere" / QWEN))
    addition = request_base_model(new_base=source, requested_by=admin)
    do_addition(addition.pk)
    addition.refresh_from_db()
    assert addition.error == ""
    return BaseModel.objects.get(name=QWEN)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_two_projects_train_on_two_bases_are_compared_and_served_together(
    project: Project,
    alice: User,
    carol: User,
    admin: User,
    server: RunningServer,
    rondo_home: Path,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    second = factories.make_project(slug="coffee", annotators=[alice], managers=[carol])

    # An administrator adds the second base; a manager chooses it for the second project.
    choose_base(project=second, base=add_second_base(rondo_home, admin), chosen_by=carol)

    # Both train a round, each on its base.
    policies = {TINY: trained(project, alice, carol), QWEN: trained(second, alice, carol)}
    for base, policy in policies.items():
        assert policy.base == BaseModel.objects.get(name=base)
        assert read_manifest(policy.path, verify=True).base_model == base
        assert Round.objects.get(project=policy.project, number=1).policy == policy.base.starter

    # Side by side in one project: one response of each, and no divergence, since their tokens differ.
    shown = ask_side_by_side(
        project=project,
        created_by=carol,
        checkpoints=list(policies.values()),
        question="Why is the sky blue?",
        sampling=SharedSampling(max_tokens=8),
        seed=3,
        blind=False,
    )
    write_answers(shown=shown)
    responses = responses_of(shown)
    assert {response.name for response in responses} == {policy.name for policy in policies.values()}
    assert all(response.written for response in responses)
    assert [response.kl_sum for response in responses] == [None, None]

    # Both through /v1, from one address and within the memory that was given.
    token = create_token(user=carol, name="program", scopes=["read", "generate"]).secret
    for policy in policies.values():
        answer = client.post(
            "/v1/chat/completions",
            {"model": policy.name, "messages": [{"role": "user", "content": "Why?"}], "max_tokens": 8},
            content_type="application/json",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert answer.status_code == 200, answer.content
        assert answer.json()["model"] == policy.name
    states = {entry["name"]: entry for entry in server.health()["bases"]}
    assert {name: entry["state"] for name, entry in states.items()} == {TINY: "ready", QWEN: "ready"}
    assert 0 < sum(entry["memory_bytes"] for entry in states.values()) < MEMORY_BYTES


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_policy_is_trained_for_a_reward_model_on_another_base_whose_scores_come_over_http(
    project: Project,
    alice: User,
    carol: User,
    admin: User,
    server: RunningServer,
    rondo_home: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    qwen = add_second_base(rondo_home, admin)
    recipe = tiny_recipe(steps=2)
    recipe["reward"]["context"] = True
    recipe["reward_base"] = QWEN
    recipe["policy"] |= {
        "method": "policy_gradient",
        "context": True,
        "rollout": {"samples": 2, "max_tokens": 12},
    }
    policy = trained(project, alice, carol, recipe=recipe)

    reward = Checkpoint.objects.get(project=project, kind=CheckpointKind.REWARD)
    assert (policy.base_model, reward.base) == (TINY, qwen)
    manifests = [read_manifest(checkpoint.path, verify=True) for checkpoint in (policy, reward)]
    assert [manifest.base_model for manifest in manifests] == [TINY, QWEN]
    assert policy.run is not None
    [part] = policy.run.spec["settings"]["rewards"]
    assert (part["kind"], part["checkpoint"], part["checkpoint_digest"]) == (
        "served",
        reward.name,
        reward.digest,
    )
    assert server.key not in json.dumps(policy.run.spec)

    # What the samples earned is what the model server says of the same texts.
    samples = [row for step in (1, 2) for row in read_samples(policy.run.path, step)]
    scored = [row for row in samples if row.parts["people"] is not None]
    assert len(scored) >= 2
    prompts = {str(prompt.pk): prompt for prompt in Prompt.objects.filter(project=project)}
    with Engine() as engine:
        for sample in scored[:3]:
            [score] = engine.score(
                model=reward.name, messages=chat_of(prompts[sample.prompt]), completions=[sample.text]
            )
            assert sample.parts["people"] == pytest.approx(score, abs=1e-4)
    assert {row.get("reward") for row in read_metrics(policy.run.path)} != {None}
    # The evaluation asked the same reward model about the held-out responses of both policies.
    evaluation = Evaluation.objects.get(checkpoint=policy)
    assert evaluation.reward_model == reward
    states = {entry["name"]: entry["state"] for entry in server.health()["bases"]}
    assert states == {TINY: "ready", QWEN: "ready"}
