"""Several checkpoints and sampling settings answer one prompt; recipes of before draw what they drew."""

import dataclasses
import hashlib
import json

import pytest

from annotation.choices import SourceKind
from annotation.models import CompletionSource, Project, Prompt
from tests import factories
from tests.refusals import refused
from training.contract import ContractError
from training.models import Checkpoint, Round
from training.recipe.recipe import Recipe, Sampler, SamplingSettings
from training.services.checkpoints import register_starter
from training.services.sampling import prompts_of, questions_of

pytestmark = pytest.mark.django_db

COLD = {"temperature": 0.0}


@pytest.fixture
def train_prompts(project: Project) -> list[Prompt]:
    return [factories.make_prompt(project, f"What is {n}?", split="train") for n in range(2)]


def a_round(project: Project, **recipe) -> Round:
    return Round.objects.create(project=project, policy=register_starter(), recipe=recipe)


def another(name: str = "other") -> Checkpoint:
    source = CompletionSource.objects.create(name=name, kind=SourceKind.CHECKPOINT)
    return Checkpoint.objects.create(name=name, kind="starter", base_model="b", folder=name, source=source)


def first_seed(prompt: Prompt, checkpoint: str, seed: int = 0) -> int:
    """As the first released version drew it."""
    named = f"{seed}/{prompt.project_id}/{prompt.content_hash}/{checkpoint}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "big") >> 2


def test_a_recipe_without_samplers_draws_the_seeds_of_before(project: Project, train_prompts: list[Prompt]):
    round_ = a_round(project)
    rival = another()
    pair, ranking = questions_of(round_, rival)
    starter = round_.policy.name
    assert [(draw.checkpoint.name, draw.seed) for draw in pair.draws] == [
        (starter, first_seed(train_prompts[0], starter)),
        ("other", first_seed(train_prompts[0], "other")),
    ]
    assert [draw.seed for draw in ranking.draws] == [
        first_seed(train_prompts[1], starter),
        first_seed(train_prompts[1], starter) + 1,
        first_seed(train_prompts[1], "other"),
        first_seed(train_prompts[1], "other") + 1,
    ]


def test_each_prompt_gets_the_answers_of_all_samplers(project: Project, train_prompts: list[Prompt]):
    round_ = a_round(
        project,
        samplers=[{"completions": 2}, {"checkpoint": "rival"}, {"completions": 1, "sampling": COLD}],
    )
    for question in questions_of(round_, another()):
        assert [draw.checkpoint.name for draw in question.draws] == [
            round_.policy.name,
            round_.policy.name,
            "other",
            round_.policy.name,
        ]
        assert [draw.sampling.temperature for draw in question.draws] == [0.8, 0.8, 0.8, 0.0]
        keys = [draw.key for draw in question.draws + question.spares]
        assert len(set(keys)) == len(keys)


def test_two_samplers_of_one_checkpoint_go_on_counting(project: Project, train_prompts: list[Prompt]):
    name = register_starter().name
    round_ = a_round(project, samplers=[{"checkpoint": "policy"}, {"checkpoint": "rival"}])
    question = next(questions_of(round_, None))
    seed = first_seed(train_prompts[0], name)
    # In a first round the rival is the policy itself.
    assert [draw.seed for draw in question.draws] == [seed, seed + 1]


def test_the_same_samplers_draw_the_same_again(project: Project, train_prompts: list[Prompt]):
    round_ = a_round(project, samplers=[{"completions": 2, "sampling": COLD}])
    once, again = ([question.draws for question in questions_of(round_, None)] for _ in range(2))
    assert once == again


def test_a_sampler_that_no_checkpoint_is_named_for_is_refused(project: Project, train_prompts: list[Prompt]):
    round_ = a_round(project, samplers=[{"checkpoint": "nobody", "completions": 2}])
    with refused("unknown_sampler", name="nobody"):
        list(questions_of(round_, None))


WRONG = [
    ({"samplers": [{}]}, "samplers: they give 1 answers"),
    ({"samplers": [{"completions": 9}, {}]}, "samplers: they give 10 answers"),
    ({"samplers": {}}, "samplers: must be a list"),
    (
        {"samplers": [{"checkpoint": "../etc", "completions": 2}]},
        "samplers, item 1, checkpoint: ",
    ),
    (
        {"samplers": [{"sampling": {"temperature": 3}}]},
        "samplers, item 1, sampling, temperature: ",
    ),
    ({"start": {"at": "2026-01-31T22:00"}}, "start, at: '2026-01-31T22:00' is no time with a zone"),
    ({"start": {"judgments": 0}}, "start, judgments"),
    ({"evaluation": {"prompts": 0}}, "evaluation, prompts"),
    ({"evaluation": {"rules": [{"name": "x", "kind": "judge"}]}}, "evaluation, rules: 'x' is of kind"),
    (
        {"evaluation": {"rules": [{"kind": "length"}]}},
        "evaluation, rules, item 1, name: the field is",
    ),
    ({"promotion": {"judged_by": "people"}}, "promotion, judged_by"),
    ({"promotion": {"rules": {"x": 1}}}, "promotion, rules: 'x' is no rule"),
    ({"promotion": {"least_win_rate": 1.5}}, "promotion, least_win_rate"),
    ({"budget": {"hours": 0}}, "budget, hours"),
    ({"ai_feedback": 1}, "ai_feedback: must be true or false"),
]


@pytest.mark.parametrize(("values", "message"), WRONG)
def test_what_cannot_be_is_refused_with_its_field(values, message: str):
    with pytest.raises(ContractError) as refusal:
        Recipe.from_json(values)
    assert str(refusal.value).startswith(message)


def test_a_recipe_with_everything_comes_back_from_json():
    recipe = dataclasses.replace(
        Recipe.from_json(
            {
                "evaluation": {"rules": [{"name": "brief", "kind": "length", "options": {"most": 9}}]},
                "promotion": {"rules": {"brief": 0.5}},
                "start": {"at": "2026-01-31T22:00+01:00"},
                "policy": {"method": "policy_gradient"},
                "reward": {"context": False},
            }
        ),
        samplers=(Sampler(checkpoint="other", completions=2, sampling=SamplingSettings(temperature=0.1)),),
    )
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_a_round_that_asks_some_prompts_asks_enough_held_out_ones(project: Project):
    held_out = {3, 12, 15, 18}
    prompts = [
        factories.make_prompt(project, f"What is {n}?", split="held-out" if n in held_out else "train")
        for n in range(20)
    ]
    round_ = a_round(project, prompts=10)
    # A fifth of 10 are 2: one is there already, and the next one takes the last training prompt's place.
    assert [prompts.index(prompt) for prompt in prompts_of(round_)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12]
    # A fifth of 15 are 3; 3 and 12 are there.
    round_.recipe = {"prompts": 15}
    assert [prompts.index(prompt) for prompt in prompts_of(round_)] == [*range(14), 15]
    # Half as many again as the decision wants: 2 of 1.
    round_.recipe = {"prompts": 15, "promotion": {"least_reward_model_judgments": 1}}
    assert [prompts.index(prompt) for prompt in prompts_of(round_)] == [*range(15)]
    round_.recipe = {"prompts": 10}
    round_.number = 2
    assert [prompts.index(prompt) for prompt in prompts_of(round_)] == [*range(10, 20)]
