"""A second reward model, trained apart, evaluates the new policy where there are enough judgments."""

import pytest
from django.test import Client

from annotation.models import Project, Prompt, User
from tests import factories
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from training.choices import RoundState, StepKind
from training.contract import ContractError
from training.contract.snapshot import part_of_prompt
from training.models import Round
from training.recipe.recipe import Recipe
from training.selectors.evaluations import evaluation_of, evaluator_of
from training.services.evaluation import evaluating as evaluations
from training.services.rounds.controls import open_first_round, start_round
from training.services.rounds.dry_run import dry_run
from training.services.rounds.executor import advance_round
from training.services.scores import reward_models_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


@pytest.fixture
def in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put every other of the four prompts on the evaluator's part, whatever their hashes are."""
    halves = ["policy", "evaluator"]
    monkeypatch.setattr(evaluations, "part_of_prompt", lambda prompt: halves[int(prompt) % 2])


def labelled_with(project: Project, alice: User, evaluator: str) -> Round:
    factories.make_prompt(project, "What is held out?", split="held-out")
    round_ = open_first_round(project=project, recipe={"evaluation": {"evaluator": evaluator}})
    advance_round(round_.pk)
    judge_all(project, alice)
    round_.refresh_from_db()
    return round_


def train(round_: Round, carol: User) -> dict[str, dict[str, object]]:
    """Do the whole training; the spec of each run by the kind of its step."""
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    round_.refresh_from_db()
    return {step.kind: step.run.spec for step in round_.steps.select_related("run") if step.run}


def page_of(round_: Round, carol: User, client: Client) -> str:
    client.force_login(carol)
    return client.get(round_.get_absolute_url()).content.decode()


def codes(round_: Round) -> set[str]:
    return {reason["code"] for reason in round_.reasons}


def test_a_second_evaluator_learns_from_what_neither_policy_nor_reward_model_sees(
    project: Project,
    prompts: list[Prompt],
    alice: User,
    carol: User,
    fake_server: FakeServer,
    in_halves: None,
):
    round_ = labelled_with(project, alice, "second")

    specs = train(round_, carol)

    assert {kind: spec["judgments"] for kind, spec in specs.items()} == {
        StepKind.TRAIN_REWARD_MODEL: "policy",
        StepKind.TRAIN_EVALUATOR: "evaluator",
        StepKind.TRAIN_POLICY: "policy",
    }
    assert specs[StepKind.TRAIN_EVALUATOR]["seed"] != specs[StepKind.TRAIN_REWARD_MODEL]["seed"]
    assert specs[StepKind.TRAIN_EVALUATOR]["method"] == "reward"


def test_the_new_policy_is_evaluated_by_the_second_reward_model_alone(
    project: Project,
    prompts: list[Prompt],
    alice: User,
    carol: User,
    client: Client,
    fake_server: FakeServer,
    in_halves: None,
):
    round_ = labelled_with(project, alice, "second")
    train(round_, carol)

    evaluator = evaluator_of(round_)
    assert evaluator is not None
    assert evaluator.name == "tea-round-1-evaluator"
    assert evaluation_of(round_).reward_model == evaluator
    assert not codes(round_) & {"same_reward_model", "same_judgments"}
    assert "evaluates: a second reward model with another seed" in page_of(round_, carol, client)
    # Which comparisons are labelled next is not its choice.
    assert [model.name for model in reward_models_of(project)] == ["tea-round-1-reward"]


def test_with_few_judgments_the_rounds_reward_model_evaluates_and_the_round_says_so(
    project: Project,
    prompts: list[Prompt],
    alice: User,
    carol: User,
    client: Client,
    fake_server: FakeServer,
    in_halves: None,
):
    round_ = labelled_with(project, alice, "auto")

    specs = train(round_, carol)

    assert set(specs) == {StepKind.TRAIN_REWARD_MODEL, StepKind.TRAIN_POLICY}
    assert {spec["judgments"] for spec in specs.values()} == {"all"}
    assert evaluator_of(round_).name == "tea-round-1-reward"
    assert round_.state != RoundState.FAILED
    page = page_of(round_, carol, client)
    assert "evaluates: the only reward model of this round." in page
    assert "its win rate is not independent evidence" in page


def test_from_enough_judgments_on_a_second_one_is_trained_by_default(
    project: Project,
    prompts: list[Prompt],
    alice: User,
    fake_server: FakeServer,
    in_halves: None,
    monkeypatch: pytest.MonkeyPatch,
):
    round_ = labelled_with(project, alice, "auto")

    monkeypatch.setattr(evaluations, "ENOUGH_JUDGMENTS", 4)
    assert evaluations.trains_evaluator(round_)
    assert [run.title for run in dry_run(round_=round_).runs] == [
        "reward model",
        "second reward model",
        "policy",
    ]
    # Four judgments, two for each.
    assert dry_run(round_=round_).runs[1].examples == 2

    monkeypatch.setattr(evaluations, "ENOUGH_JUDGMENTS", 5)
    assert not evaluations.trains_evaluator(round_)
    assert len(dry_run(round_=round_).runs) == 2


@pytest.mark.parametrize("setting", ["same", "second"])
def test_no_second_one_is_trained_where_it_is_not_wanted_or_would_learn_nothing(
    project: Project,
    prompts: list[Prompt],
    alice: User,
    fake_server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
):
    monkeypatch.setattr(evaluations, "part_of_prompt", lambda prompt: "policy")

    assert not evaluations.trains_evaluator(labelled_with(project, alice, setting))


def test_about_half_of_all_prompts_are_on_each_part_and_stay_there():
    parts = [part_of_prompt(str(number)) for number in range(1000)]
    # Binomial(1000, ½): 500 ± 5 standard deviations of 15.8.
    assert 421 <= parts.count("policy") <= 579
    assert parts == [part_of_prompt(str(number)) for number in range(1000)]


def test_a_recipe_knows_three_evaluators():
    assert Recipe().evaluation.evaluator == "auto"
    with pytest.raises(ContractError, match="evaluation, evaluator: must be 'auto', 'second' or 'same'"):
        Recipe.from_json({"evaluation": {"evaluator": "third"}})
