"""A project chooses its base model; checkpoints stay on theirs, per-token figures in one tokenizer."""

import dataclasses
import importlib
import json
from pathlib import Path

import pytest
from django.apps import apps
from pytest_django import Settings

from annotation.errors import NotAllowed, Refusal
from annotation.models import AuditEntry, Project, User
from tests import factories
from tests.training.registry.registry_rows import make_snapshot, make_starter, make_trained
from training.choices import BaseOrigin, CheckpointKind, RoundState
from training.contract.methods.policy import PreferenceSettings
from training.models import BaseModel, Checkpoint, ProjectBase, Round, SideBySide
from training.recipe.recipe import Recipe
from training.selectors.base_models import base_of, same_tokenizer
from training.selectors.projects import comparable_checkpoints
from training.selectors.runs import comparison_of
from training.services.base_models import register_base_model
from training.services.checkpoints import register_starter
from training.services.rounds.base_choice import choose_base
from training.services.rounds.controls import draft_first_round
from training.services.rounds.deciding import promote_round, roll_back
from training.services.rounds.dry_run import dry_run
from training.services.runs.runs import create_run
from training.views.responses import responses_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def other() -> BaseModel:
    """A second base model with files here."""
    return register_base_model(name="other", origin=BaseOrigin.FOLDER, tokenizer_digest="b" * 64)


def on(checkpoint: Checkpoint, base: BaseModel) -> Checkpoint:
    """The checkpoint, standing on this base."""
    checkpoint.base, checkpoint.base_model = base, base.name
    checkpoint.save()
    return checkpoint


def test_a_project_without_a_choice_begins_from_the_default_of_the_installation(project: Project):
    assert base_of(project) is None
    round_ = draft_first_round(project=project, created_by=None)
    assert round_.policy == register_starter()
    assert base_of(project) == round_.policy.base


def test_a_draft_takes_the_base_that_its_manager_chooses_at_once(
    project: Project, carol: User, alice: User, other: BaseModel
):
    round_ = draft_first_round(project=project, created_by=carol)
    with pytest.raises(NotAllowed):
        choose_base(project=project, base=other, chosen_by=alice)
    choose_base(project=project, base=other, chosen_by=carol)
    round_.refresh_from_db()
    assert (round_.policy.name, base_of(project)) == ("other", other)
    details = AuditEntry.objects.get(action="project.base_model").details
    assert details == {"before": register_starter().name, "after": "other"}
    second = factories.make_project(slug="second", managers=[carol])
    choose_base(project=second, base=other, chosen_by=carol)
    assert draft_first_round(project=second, created_by=carol).policy.name == "other"


def test_a_base_of_another_server_is_refused_because_nothing_can_be_trained_from_it(
    project: Project, carol: User
):
    served = register_base_model(
        name="far", origin=BaseOrigin.SERVER, server_url="https://example.org", server_model="far"
    )
    with pytest.raises(Refusal, match="nothing can be trained"):
        choose_base(project=project, base=served, chosen_by=carol)
    assert not ProjectBase.objects.exists()


@pytest.mark.usefixtures("quick_trainer")
def test_the_round_after_a_change_begins_from_the_new_base_as_it_came(
    deciding_round: Round, carol: User, other: BaseModel
):
    before = deciding_round.policy
    choose_base(project=deciding_round.project, base=other, chosen_by=carol)
    deciding_round.refresh_from_db()
    assert deciding_round.policy == before
    promote_round(round_=deciding_round, actor=carol, note="Read them all.")
    second = Round.objects.get(number=2)
    assert second.policy == other.starter
    promoted = Checkpoint.objects.get(kind=CheckpointKind.POLICY)
    roll_back(round_=second, checkpoint=promoted, actor=carol)
    assert Round.objects.get(number=2).policy == promoted
    assert base_of(second.project) == promoted.base == before.base


def test_a_checkpoint_of_another_base_continues_no_run(project: Project, other: BaseModel):
    parent = on(make_trained("policy-1", project), other)
    with pytest.raises(Refusal, match="policy-1 stands on other"):
        create_run(
            name="policy-2",
            snapshot=make_snapshot(project),
            settings_of_method=PreferenceSettings(),
            base_model="base",
            parent=parent,
            seed=0,
        )


def test_a_recipe_whose_reference_is_a_checkpoint_of_another_base_cannot_start(
    project: Project, other: BaseModel
):
    on(make_trained("old", project), other)
    recipe = dataclasses.replace(Recipe(), policy=PreferenceSettings(reference="old"))
    round_ = draft_first_round(project=project, created_by=None)
    Round.objects.filter(pk=round_.pk).update(recipe=recipe.to_json())
    round_.refresh_from_db()
    problems = [problem for problem in dry_run(round_=round_).problems if "stands on other" in problem]
    assert len(problems) == 1


def test_rows_longer_than_the_base_reads_are_refused_before_training(
    project: Project, settings: Settings, rondo_home: Path
):
    folder = rondo_home / "models" / register_starter().name
    folder.mkdir(parents=True)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(sizes | {"max_position_embeddings": 512}))
    round_ = draft_first_round(project=project, created_by=None)
    problems = [problem for problem in dry_run(round_=round_).problems if "reads 512" in problem]
    assert [problem.split()[0] for problem in problems] == ["reward", "policy"]


# ── Figures ───────────────────────────────────────────────────────────────────────────


def test_tokenizers_are_told_apart_by_their_files():
    bases = [
        register_base_model(name=name, origin=BaseOrigin.FOLDER, tokenizer_digest=digest)
        for name, digest in (("one", "a" * 64), ("two", "a" * 64), ("three", "b" * 64), ("four", ""))
    ]
    assert same_tokenizer(bases[0], bases[1])
    assert not same_tokenizer(bases[0], bases[2])
    assert not same_tokenizer(bases[0], bases[3])
    assert same_tokenizer(bases[3], bases[3])


def test_compare_shows_the_divergence_within_one_tokenizer_alone(
    project: Project, carol: User, other: BaseModel
):
    first = make_trained("first", project)
    second = make_trained("second", project)
    shown = SideBySide.objects.create(
        project=project,
        messages=[{"role": "user", "content": "Tea?"}],
        sampling={},
        seed=1,
        blind=False,
        created_by=carol,
    )
    for position, checkpoint in enumerate((first, second), start=1):
        shown.answers.create(
            position=position, checkpoint=checkpoint, messages=[], text="Yes.", token_kl=[[0, 4, 0.5]]
        )
    assert [response.kl_sum for response in responses_of(shown)] == [0.5, 0.5]
    on(second, other)
    divergences = [
        (response.kl_sum, response.kl_is_hidden, list(response.tokens)) for response in responses_of(shown)
    ]
    assert divergences == [(None, True, []), (None, True, [])]


def test_runs_of_different_tokenizers_are_compared_without_divergences(project: Project, other: BaseModel):
    runs = [make_trained(name, project).run for name in ("first", "second")]
    for run in runs:
        assert run is not None
        run.summary = {"reward": 1.0, "kl": 2.0, "log_ratio_base": 0.1}
        run.save()
    labels = [str(line.label) for line in comparison_of(runs, all_settings=False).metrics]
    assert len(labels) == 3
    on(Checkpoint.objects.get(name="second"), other)
    runs = [Checkpoint.objects.get(name=name).run for name in ("first", "second")]
    left = [str(line.label) for line in comparison_of(runs, all_settings=False).metrics]
    assert len(left) == 1
    assert left[0] in labels


def test_compare_offers_every_base_and_the_checkpoints_of_ones_other_projects(
    project: Project, carol: User, other: BaseModel
):
    elsewhere = factories.make_project(slug="elsewhere", managers=[carol])
    hidden = factories.make_project(slug="hidden")
    for name, owner in (("mine", project), ("theirs", elsewhere), ("secret", hidden)):
        make_trained(name, owner)
    assert [checkpoint.name for checkpoint in comparable_checkpoints(project, carol)] == [
        "mine",
        "theirs",
        "other",
    ]


# ── Installations of before ───────────────────────────────────────────────────────────


def test_the_starters_of_an_installation_of_before_become_its_base_models(project: Project):
    starter = make_starter("SmolLM2-135M-Instruct")
    served = make_starter("far")
    Checkpoint.objects.filter(pk=served.pk).update(server_url="https://example.org", base_model="org/far")
    policy = make_trained("policy-1", project)
    Checkpoint.objects.filter(pk=policy.pk).update(base_model=starter.name)
    migration = importlib.import_module("training.migrations.0024_bases_of_checkpoints")
    migration.register_bases(apps, None)
    migration.register_bases(apps, None)
    origins = dict(BaseModel.objects.values_list("name", "origin"))
    assert origins == {"SmolLM2-135M-Instruct": "starter", "far": "server"}
    policy.refresh_from_db()
    assert policy.base is not None
    assert policy.base.starter == starter
    assert register_starter() == starter
    assert draft_first_round(project=project, created_by=None).state == RoundState.DRAFT
