"""The recipe page: who may save what and when, and that what is wrong is said where it is."""

import json
from collections.abc import Callable

import pytest
from django.test import Client

from annotation.models import AuditEntry, Project, User
from tests import factories
from training.choices import RoundState, StepKind, StepState
from training.contract.methods.policy import PolicyGradientSettings
from training.models import Round, RoundStep
from training.recipe.form import flattened, with_policy
from training.recipe.recipe import Recipe
from training.services.checkpoints import register_starter

pytestmark = pytest.mark.django_db

ADDRESS = "/projects/tea/rounds/1/recipe/"


@pytest.fixture
def round_(project: Project) -> Round:
    factories.make_prompt(project, "How long?", split="train")
    return Round.objects.create(project=project, policy=register_starter(), recipe=Recipe().to_json())


@pytest.fixture
def browser(carol: User, client_of: Callable[[User], Client], round_: Round) -> Client:
    return client_of(carol)


def test_a_manager_saves_a_recipe_and_it_is_written_down(browser: Client, round_: Round, carol: User):
    answer = browser.post(ADDRESS, {**flattened(Recipe()), "seed": ["7"], "sampling-temperature": ["1.5"]})
    assert answer.status_code == 302
    round_.refresh_from_db()
    assert round_.parsed_recipe.seed == 7
    assert round_.parsed_recipe.sampling.temperature == 1.5
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor, entry.project) == ("round.recipe", carol, round_.project)
    assert entry.details == {"changed": ["sampling.temperature", "seed"]}


def test_saving_what_is_there_changes_nothing_and_writes_nothing_down(browser: Client):
    assert browser.post(ADDRESS, flattened(Recipe())).status_code == 302
    assert not AuditEntry.objects.exists()


def test_what_is_wrong_is_said_at_its_field_and_nothing_is_saved(browser: Client, round_: Round):
    answer = browser.post(ADDRESS, {**flattened(Recipe()), "reward-lora-rank": ["0"], "seed": ["5"]})
    assert answer.status_code == 422
    page = answer.content.decode()
    assert '<a href="#reward-lora-rank">' in page
    assert "must be at least 1" in page
    # What was typed is still there.
    assert 'name="seed" value="5"' in page
    round_.refresh_from_db()
    assert round_.parsed_recipe.seed == 0


def test_another_method_is_shown_and_not_saved(browser: Client, round_: Round):
    sent = {**flattened(Recipe()), "policy-choice": ["ppo"], "show": ["1"]}
    answer = browser.post(ADDRESS, sent)
    assert answer.status_code == 200
    assert 'name="policy-advantage-kind"' in answer.content.decode()
    round_.refresh_from_db()
    assert round_.parsed_recipe.policy.method == "preference"
    # Saved without a look at its settings: they are shown first.
    del sent["show"]
    assert browser.post(ADDRESS, sent).status_code == 200
    assert browser.post(ADDRESS, with_policy(sent, "ppo")).status_code == 302
    round_.refresh_from_db()
    policy = round_.parsed_recipe.policy
    assert isinstance(policy, PolicyGradientSettings)
    assert policy.advantage.kind == "gae"


def test_json_goes_in_as_it_comes_out(browser: Client, round_: Round):
    browser.post(ADDRESS, {"json": json.dumps({"seed": 3, "samplers": [{"completions": 2}]})})
    round_.refresh_from_db()
    recipe = round_.parsed_recipe
    assert (recipe.seed, recipe.samplers[0].completions) == (3, 2)
    shown = browser.get(ADDRESS).context["text"]
    browser.post(ADDRESS, {"json": shown})
    round_.refresh_from_db()
    assert round_.parsed_recipe == recipe


@pytest.mark.parametrize("text", ["{", "[]", '{"seeed": 1}', '{"sampling": {"temperature": 9}}'])
def test_json_that_is_no_recipe_is_refused_with_why(browser: Client, text: str):
    answer = browser.post(ADDRESS, {"json": text})
    assert answer.status_code == 422
    assert answer.context["text_error"]
    assert answer.context["text"] == text


@pytest.mark.parametrize("state", [RoundState.TRAINING_POLICY, RoundState.PROMOTED, RoundState.FAILED])
def test_what_a_round_trained_with_stays_as_it_was(browser: Client, round_: Round, state: RoundState):
    Round.objects.update(state=state)
    answer = browser.post(ADDRESS, {**flattened(Recipe()), "seed": ["7"]})
    assert answer.status_code == 422
    assert "cannot change any more" in answer.content.decode()
    for button in ("Save recipe", "Save JSON", "Show its settings"):
        assert button not in answer.content.decode()
    round_.refresh_from_db()
    assert round_.parsed_recipe.seed == 0


def test_a_draft_is_opened_on_the_page_of_its_recipe(browser: Client, round_: Round):
    page = browser.get("/projects/tea/rounds/1/open/", follow=True).content.decode()
    assert 'id="confirm" form="recipe-form" name="open"' in page
    assert (
        browser.post(ADDRESS, {**flattened(Recipe()), "open": "1"})["Location"] == "/projects/tea/rounds/1/"
    )
    round_.refresh_from_db()
    assert round_.state == RoundState.SAMPLING


def test_the_page_says_that_starting_cancels_the_sampling(browser: Client, round_: Round):
    Round.objects.update(state=RoundState.LABELLING)
    step = RoundStep.objects.create(
        round=round_, position=0, kind=StepKind.ANSWER_PROMPTS, state=StepState.WAITING, current=3, total=8
    )
    assert browser.get(ADDRESS).context["sampling"] == step
    RoundStep.objects.update(state=StepState.FINISHED)
    answer = browser.get(ADDRESS)
    assert answer.context["sampling"] is None
    assert 'id="confirm" form="recipe-form" name="start"' in answer.content.decode()


def test_changed_settings_are_saved_and_shown_before_anything_starts(browser: Client, round_: Round):
    sent = {**flattened(Recipe()), "seed": ["7"], "open": "1"}
    assert browser.post(ADDRESS, sent)["Location"] == f"{ADDRESS}#begin"
    round_.refresh_from_db()
    assert (round_.state, round_.parsed_recipe.seed) == (RoundState.DRAFT, 7)
    browser.post(ADDRESS, sent)
    round_.refresh_from_db()
    assert round_.state == RoundState.SAMPLING


def test_a_start_that_is_refused_leaves_the_page_with_what_was_typed(browser: Client, round_: Round):
    Round.objects.update(state=RoundState.LABELLING)
    answer = browser.post(ADDRESS, {**flattened(Recipe()), "start": "1"})
    assert answer.status_code == 422
    assert [str(message) for message in answer.context["messages"]]
    round_.refresh_from_db()
    assert round_.state == RoundState.LABELLING


def test_a_round_that_trained_offers_no_start(browser: Client, round_: Round):
    Round.objects.update(state=RoundState.TRAINING_POLICY)
    answer = browser.get(ADDRESS)
    assert "action" not in answer.context
    assert 'id="confirm"' not in answer.content.decode()


def test_annotators_neither_see_nor_save_recipes(
    round_: Round, alice: User, oscar: User, client_of: Callable[[User], Client]
):
    assert client_of(alice).get(ADDRESS).status_code == 403
    assert client_of(alice).post(ADDRESS, flattened(Recipe())).status_code == 403
    assert client_of(oscar).get(ADDRESS).status_code == 404


def test_the_page_shows_what_would_happen(browser: Client):
    page = browser.get(ADDRESS).content.decode()
    assert "Estimate" in page
    assert "The project has no held-out prompts" in page
