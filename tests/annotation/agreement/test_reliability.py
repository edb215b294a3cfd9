"""Crowd-BT finds out who can be relied on."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.optimize import check_grad

from annotation.agreement.reliability import Preference, _PreferenceMatrix, annotator_reliability
from annotation.models import Project, User
from annotation.selectors.judged import reliability_weights
from tests import factories

TRUTH = {"ann": 0.95, "ben": 0.9, "cat": 0.8, "dan": 0.7, "spammer": 0.5, "adversary": 0.2}


def simulated(
    items: int, *, overlap: int, size: int = 2, spread: float = 2.0, seed: int = 7
) -> list[Preference]:
    """Judgments drawn from the model itself: scores are normal, each item goes to `overlap` people."""
    generator = np.random.default_rng(seed)
    names = list(TRUTH)
    preferences = []
    for item in range(items):
        scores = generator.normal(0, spread, size)
        for place in generator.choice(len(names), overlap, replace=False):
            name = names[place]
            for left in range(size):
                for right in range(left + 1, size):
                    chance = 1 / (1 + math.exp(scores[right] - scores[left]))
                    chance = TRUTH[name] * chance + (1 - TRUTH[name]) * (1 - chance)
                    preferences.append(
                        Preference(
                            item=item,
                            annotator=name,
                            left=(item, left),
                            right=(item, right),
                            outcome=1 if generator.random() < chance else -1,
                        )
                    )
    return preferences


@pytest.mark.parametrize(("items", "overlap", "size"), [(2000, 3, 2), (300, 3, 4), (1200, 6, 2)])
def test_known_reliabilities_are_found_again(items: int, overlap: int, size: int):
    reliability = annotator_reliability(simulated(items, overlap=overlap, size=size))
    for name, truth in TRUTH.items():
        assert reliability[name].value == pytest.approx(truth, abs=0.11), name
    order = sorted(reliability, key=lambda name: -reliability[name].value)
    assert set(order[:2]) == {"ann", "ben"}
    assert order[2:] == ["cat", "dan", "spammer", "adversary"]
    assert (
        reliability["spammer"].low < 0.5 < reliability["spammer"].high
        or abs(reliability["spammer"].value - 0.5) < 0.1
    )
    assert reliability["adversary"].high < 0.5


def test_the_interval_holds_the_truth_in_most_of_many_simulations():
    """95 % intervals, 20 simulations of 6 people: 114 of 120 are expected; 100 leaves room for chance."""
    held = 0
    for seed in range(20):
        reliability = annotator_reliability(simulated(300, overlap=3, seed=seed))
        held += sum(reliability[name].low <= truth <= reliability[name].high for name, truth in TRUTH.items())
    assert held >= 100


def votes_of_few() -> _PreferenceMatrix:
    preferences = simulated(12, overlap=3, size=3)
    preferences[0] = Preference(item=0, annotator="ann", left=(0, 0), right=(0, 1), outcome=0)
    return _PreferenceMatrix(preferences)


def test_the_gradient_is_that_of_the_loss():
    votes = votes_of_few()
    at = np.random.default_rng(3).normal(0.5, 0.7, votes.people + 1)
    error = check_grad(
        lambda x: votes.loss_and_gradient(x)[0], lambda x: votes.loss_and_gradient(x)[1], at, epsilon=1e-6
    )
    assert error < 1e-3


def test_the_shares_of_items_add_up_to_the_gradient():
    votes = votes_of_few()
    at = np.random.default_rng(4).normal(0.5, 0.7, votes.people + 1)
    whole = votes.loss_and_gradient(at)[1]
    logits, log_spread = at[:-1], at[-1]
    # The slope of the priors, by hand: (4 + 1) η − 4 for each logit, and (x − log 2.5) / 0.25².
    prior = np.append(5 / (1 + np.exp(-logits)) - 4, (log_spread - math.log(2.5)) / 0.0625)
    assert -votes._scores(at).sum(axis=0) + prior == pytest.approx(whole, abs=1e-9)


def by_hand(votes: Sequence[tuple[float, int]], spread: float) -> float:
    """The marginal likelihood of votes on one pair, by a fine sum over d in place of quadrature."""
    grid = np.linspace(-12 * spread, 12 * spread, 200_001)
    density = np.exp(-((grid / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))
    value = np.ones_like(grid)
    for ability, sign in votes:
        wins = 1 / (1 + np.exp(-sign * grid))
        value *= ability * wins + (1 - ability) * (1 - wins)
    return float(np.trapezoid(value * density, grid))


def test_the_loss_is_the_integral_that_the_model_states():
    """Three votes on one pair: ann and ben for the first, cat for the second. η and spread are given."""
    preferences = [
        Preference(item=0, annotator=name, left="a", right="b", outcome=outcome)
        for name, outcome in (("ann", 1), ("ben", 1), ("cat", -1))
    ]
    votes = _PreferenceMatrix(preferences)
    abilities = np.array([0.9, 0.7, 0.6])
    at = np.append(np.log(abilities / (1 - abilities)), math.log(2.0))
    likelihood = math.log(by_hand([(0.9, 1), (0.7, 1), (0.6, -1)], 2.0))
    priors = sum(4 * math.log(ability) + math.log(1 - ability) for ability in abilities)
    priors -= (math.log(2.0 / 2.5) / 0.25) ** 2 / 2
    assert votes.loss_and_gradient(at)[0] == pytest.approx(-likelihood - priors, abs=1e-6)


def test_what_one_person_alone_judged_tells_nothing():
    preferences = [
        Preference(item=item, annotator="ann", left=(item, 0), right=(item, 1), outcome=1)
        for item in range(50)
    ]
    reliability = annotator_reliability(preferences)["ann"]
    assert reliability.value == pytest.approx(0.8, abs=1e-6)  # the prior: 4 hits, 1 miss
    assert (reliability.pairs, reliability.shared_pairs) == (50, 0)
    assert reliability.low < 0.4
    assert reliability.high > 0.95


def test_nothing_judged_gives_nobody():
    assert annotator_reliability([]) == {}


def test_which_completion_is_called_left_plays_no_part():
    preferences = simulated(60, overlap=3)
    turned = [
        Preference(item=p.item, annotator=p.annotator, left=p.right, right=p.left, outcome=-p.outcome)
        for p in preferences
    ]
    straight, mirrored = annotator_reliability(preferences), annotator_reliability(turned)
    for name in straight:
        assert mirrored[name].value == pytest.approx(straight[name].value, abs=1e-4)


def test_a_tie_counts_as_half_a_win_each_way():
    ties = [Preference(item=i, annotator=n, left=i, right=-1, outcome=0) for i in range(3) for n in "ab"]
    counts = _PreferenceMatrix(ties).counts.toarray()
    assert counts.tolist() == [[0.5, 0.5, 0.5, 0.5]] * 3


def test_the_weights_of_a_project_are_those_of_its_rounds(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    for number in range(12):
        comparison = factories.make_comparison(project, round_number=1 if number < 8 else 2)
        factories.make_judgment(comparison, alice, (1, 2))
        factories.make_judgment(comparison, bob, (1, 2) if number < 8 else (2, 1))
    first, both = reliability_weights(project, [1]), reliability_weights(project)
    assert set(first) == set(both) == {alice.pk, bob.pk}
    # In round 1 they always agree, in round 2 never: what is known of both gets worse.
    assert 0.6 < first[alice.pk] < 1
    assert both[alice.pk] < first[alice.pk]
    assert reliability_weights(project, [3]) == {}
