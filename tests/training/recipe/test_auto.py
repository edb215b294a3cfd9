"""A recipe that leaves the reward model and the policy's method to the data."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client

from annotation.models import Project, Prompt, User
from tests import factories
from tests.training.conftest import judge_all
from tests.training.engine.fake_server import FakeServer
from training.contract.methods.policy import PolicyGradientSettings, PreferenceSettings
from training.contract.run import EvaluationReport, write_evaluation
from training.figures.held_out import choice_of
from training.models import Round, Run
from training.recipe.auto import POLICY_ROWS, row_for, row_of, with_chosen_policy
from training.recipe.form import AUTO, RecipeForm, flattened, with_policy
from training.recipe.recipe import Recipe, default_recipe
from training.selectors.rounds import chosen_settings, recipe_to_train
from training.services.rounds.controls import (
    cancel_round,
    draft_first_round,
    open_first_round,
    reopen_round,
    start_round,
)
from training.services.rounds.dry_run import dry_run
from training.services.rounds.executor import advance_round

DEFAULT = Recipe.from_json(default_recipe())


FIGURES = {"value": 0.5, "low": 0.4, "high": 0.6}
CANDIDATES = [
    {"name": "frozen", "log_loss": FIGURES, "accuracy": FIGURES, "layer": 18, "mean": True},
    {"name": "length", "log_loss": {"value": 0.7, "low": 0.6, "high": 0.8}, "accuracy": FIGURES},
]
CHOICE = {
    "chosen": "frozen",
    "candidates": CANDIDATES,
    "measured_on": "cross_validation",
    "judgments": 34,
    "prompts": 30,
}
REPORT = EvaluationReport(step=1, figures={}, details={"choice": CHOICE})


# ── The table ──


def test_rows_begin_at_nothing_and_rise() -> None:
    bounds = [row.least for row in POLICY_ROWS]
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    assert len({row.key for row in POLICY_ROWS}) == len(POLICY_ROWS)


@pytest.mark.parametrize("row", POLICY_ROWS, ids=lambda row: row.key)
def test_a_row_is_taken_from_its_bound_on_and_known_by_its_settings(row: Any) -> None:
    chosen = with_chosen_policy(DEFAULT, judgments=row.least, prompts=500)
    assert row_for(row.least) is row
    assert row.least == 0 or row_for(row.least - 1) is not row
    assert row_of(chosen.policy) is row
    assert row.reason


def test_settings_by_hand_are_no_row_and_stay() -> None:
    fixed = Recipe.from_json({"policy": {"method": "preference", "beta": 0.7}})
    assert row_of(fixed.policy) is None
    assert with_chosen_policy(fixed, judgments=0, prompts=500) == fixed


def test_with_few_prompts_a_run_on_samples_is_shorter() -> None:
    """Eight prompts a step, each visited three times at most: 16 prompts make six steps."""
    few, many = (with_chosen_policy(DEFAULT, judgments=0, prompts=count).policy for count in (16, 500))
    assert few.optimiser.max_steps == 6
    assert many.optimiser.max_steps == POLICY_ROWS[0].make().optimiser.max_steps


def test_samples_are_as_long_as_the_responses_that_people_judge() -> None:
    recipe = Recipe.from_json({**default_recipe(), "sampling": {"max_tokens": 77}})
    policy = with_chosen_policy(recipe, judgments=0, prompts=9).policy
    assert isinstance(policy, PolicyGradientSettings)
    assert policy.rollout.max_tokens == 77
    assert row_of(policy) is POLICY_ROWS[0]
    longest = Recipe.from_json({**default_recipe(), "sampling": {"max_tokens": 5000}})
    # Not longer than the rows that the policy learns from.
    chosen = with_chosen_policy(longest, judgments=0, prompts=9).policy
    assert isinstance(chosen, PolicyGradientSettings)
    assert chosen.rollout.max_tokens < chosen.max_tokens


def test_a_policy_reads_prompts_as_the_reward_model_does() -> None:
    recipe = Recipe.from_json({**default_recipe(), "reward": {"features": "auto", "context": False}})
    assert with_chosen_policy(recipe, judgments=0, prompts=9).policy.context is False


# ── Rounds ──


@pytest.fixture
def round_(prompts: list[Prompt], fake_server: FakeServer) -> Round:
    """A first round with the default recipe, whose prompts are answered."""
    opened = open_first_round(project=prompts[0].project)
    advance_round(opened.pk)
    opened.refresh_from_db()
    return opened


@pytest.mark.django_db
def test_before_the_start_the_stored_recipe_stays_and_the_estimate_is_of_what_would_be_chosen(
    round_: Round, alice: User
) -> None:
    judge_all(round_.project, alice)
    before = round_.recipe
    estimate = dry_run(round_=round_)
    assert [run.method for run in estimate.runs] == ["reward", "policy_gradient"]
    round_.refresh_from_db()
    assert round_.recipe == before
    reward, policy = chosen_settings(round_)
    assert not reward.address
    assert policy.title == str(POLICY_ROWS[0].title)
    # The next row is told, with the annotations that it takes.
    assert str(POLICY_ROWS[1].least) in policy.reason


@pytest.mark.django_db
def test_the_start_writes_down_what_was_chosen_and_a_later_start_chooses_anew(
    round_: Round, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_all(round_.project, alice)
    start_round(round_=round_, started_by=carol)
    round_.refresh_from_db()
    assert isinstance(round_.parsed_recipe.policy, PolicyGradientSettings)
    assert round_.parsed_recipe.policy.update.loss == "dpo"
    assert round_.parsed_recipe.policy_method == "auto"
    # While it trains, nothing is chosen any more.
    monkeypatch.setattr("training.recipe.auto.POLICY_ROWS", (replace(POLICY_ROWS[1], least=0),))
    assert recipe_to_train(round_) == round_.parsed_recipe
    cancel_round(round_=round_, actor=carol)
    reopen_round(round_=round_, actor=carol)
    start_round(round_=round_, started_by=carol)
    round_.refresh_from_db()
    assert isinstance(round_.parsed_recipe.policy, PreferenceSettings)


@pytest.mark.django_db
@pytest.mark.usefixtures("quick_trainer")
def test_a_round_by_the_default_recipe_trains_and_shows_what_was_chosen(
    round_: Round, alice: User, carol: User, client_of: Callable[[User], Client]
) -> None:
    judge_all(round_.project, alice)
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    reward, policy = (Run.objects.get(name=f"tea-round-1-{role}") for role in ("reward", "policy"))
    assert (reward.state, policy.state) == ("finished", "finished")
    assert reward.spec["settings"]["features"] == "auto"
    assert policy.spec["settings"]["update"]["loss"] == "dpo"
    browser = client_of(carol)
    page = browser.get(round_.get_absolute_url()).content.decode()
    assert str(POLICY_ROWS[0].title) in page
    # Without a held-out judgment there is nothing to validate; the choice is shown all the same.
    write_evaluation(reward.path, REPORT)
    for address in (round_.get_absolute_url(), reward.get_absolute_url()):
        page = browser.get(address).content.decode()
        assert "mean of layer 18" in page, address
        assert "0.700 (0.600 – 0.800)" in page, address


def test_a_choice_is_told_with_its_figures_and_the_runner_up() -> None:
    choice = choice_of(REPORT)
    assert choice is not None
    assert [row.is_chosen for row in choice.rows] == [True, False]
    for figure in ("34", "30", "18", "0.500", "0.700"):
        assert figure in choice.summary
    assert choice_of(EvaluationReport(step=1, figures={}, details={})) is None
    assert choice_of(None) is None


# ── The page ──


def test_the_form_keeps_the_choice_and_a_method_by_hand_ends_it() -> None:
    data = flattened(DEFAULT)
    assert data["policy-choice"] == [AUTO]
    assert RecipeForm(data).recipe == DEFAULT
    by_hand = RecipeForm(with_policy(data, "grpo")).recipe
    assert by_hand is not None
    assert by_hand.policy_method == "fixed"
    assert isinstance(by_hand.policy, PolicyGradientSettings)
    again = RecipeForm(with_policy(flattened(by_hand), AUTO)).recipe
    assert again is not None
    assert again.policy_method == "auto"


@pytest.mark.django_db
def test_a_manager_chooses_a_method_and_goes_back_to_the_choice_on_the_page(
    project: Project, carol: User, client_of: Callable[[User], Client]
) -> None:
    factories.make_prompt(project, "How long?", split="train")
    round_ = draft_first_round(project=project, created_by=carol)
    browser, address = client_of(carol), f"/projects/{project.slug}/rounds/1/recipe/"
    page = browser.get(address).content.decode()
    assert str(POLICY_ROWS[0].title) in page
    data = {**flattened(DEFAULT), "policy-choice": ["preference"], "show": ["1"]}
    shown = browser.post(address, data).content.decode()
    assert 'name="policy_method" value="fixed"' in shown
    assert browser.post(address, with_policy(flattened(DEFAULT), "preference")).status_code == 302
    round_.refresh_from_db()
    saved = [round_.recipe["policy_method"]]
    assert browser.post(address, flattened(DEFAULT)).status_code == 302
    round_.refresh_from_db()
    assert [*saved, round_.recipe["policy_method"]] == ["fixed", "auto"]


@pytest.mark.django_db
def test_settings_of_a_policy_that_are_written_into_the_json_count(
    project: Project, carol: User, client_of: Callable[[User], Client]
) -> None:
    factories.make_prompt(project, "How long?", split="train")
    round_ = draft_first_round(project=project, created_by=carol)
    browser, address = client_of(carol), f"/projects/{project.slug}/rounds/1/recipe/"

    def saved(**changes: Any) -> Recipe:
        text = json.dumps({**round_.parsed_recipe.to_json(), **changes})
        assert browser.post(address, {"json": text}).status_code == 302
        round_.refresh_from_db()
        return round_.parsed_recipe

    assert saved(seed=7).policy_method == "auto"
    by_hand = saved(policy={"method": "kto", "context": True})
    assert (by_hand.policy_method, by_hand.policy.method) == ("fixed", "kto")
    assert saved(policy_method="auto").policy_method == "auto"
