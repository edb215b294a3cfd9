"""Whether a reward model may stand in for a person, on its page and as its selector says it."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Split
from annotation.models import Comparison, CompletionScore, Project, User
from tests import factories
from tests.training.registry.registry_rows import make_snapshot, make_trained
from training.choices import CheckpointKind
from training.models import Checkpoint
from training.selectors.judges import stand_in_by_scores

pytestmark = pytest.mark.django_db

PAIRS = 30


@pytest.fixture
def reward_model(project: Project) -> Checkpoint:
    """It learned from round 1."""
    snapshot = make_snapshot(project, rounds=[1])
    return make_trained("tea-reward", project, kind=CheckpointKind.REWARD, snapshot=snapshot)


def judged_pairs(
    project: Project, people: list[User], *, split: Split, round_number: int = 1
) -> list[Comparison]:
    """Pairs of which everybody prefers the first response."""
    project.overlap = len(people)
    project.save()
    pairs = []
    for number in range(PAIRS):
        prompt = factories.make_prompt(project, f"{split} {round_number} {number}", split=split)
        pair = factories.make_comparison(project, prompt=prompt, round_number=round_number)
        for person in people:
            factories.make_judgment(pair, person)
        pairs.append(pair)
    return pairs


def score(reward_model: Checkpoint, pairs: list[Comparison], *, first: float, second: float) -> None:
    for pair in pairs:
        for candidate, value in zip(pair.candidates.order_by("index"), (first, second), strict=True):
            CompletionScore.objects.create(
                completion=candidate.completion, scorer=reward_model.name, value=value
            )


@pytest.mark.parametrize(("first", "may_replace"), [(2.0, True), (-2.0, False)])
def test_a_reward_model_stands_in_where_it_says_what_people_say(
    reward_model: Checkpoint,
    project: Project,
    alice: User,
    bob: User,
    carol: User,
    client_of: Callable[[User], Client],
    first: float,
    may_replace: bool,
):
    score(
        reward_model,
        judged_pairs(project, [alice, bob, carol], split=Split.HELD_OUT),
        first=first,
        second=0.0,
    )
    found = stand_in_by_scores(reward_model)
    assert (found.people, found.may_replace) == (3, may_replace)
    page = client_of(carol).get(reverse("checkpoint", args=[reward_model.name])).content.decode()
    assert 'id="stand-in"' in page


def test_what_it_learned_from_does_not_count_and_later_rounds_do(
    reward_model: Checkpoint, project: Project, alice: User, bob: User, carol: User
):
    people = [alice, bob, carol]
    score(reward_model, judged_pairs(project, people, split=Split.TRAIN), first=1.0, second=0.0)
    assert stand_in_by_scores(reward_model).people == 0
    later = judged_pairs(project, people, split=Split.TRAIN, round_number=2)
    assert stand_in_by_scores(reward_model).people == 0
    score(reward_model, later, first=1.0, second=0.0)
    assert stand_in_by_scores(reward_model).may_replace is True
