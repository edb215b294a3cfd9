"""The effect of help: figures by hand, and a simulation of annotators whose true effect is known."""

import random
from collections.abc import Iterator

import pytest

from annotation.agreement.estimate import Missing
from annotation.models import HelpReveal, Judgment, Project, User
from annotation.statistics.help import (
    Decided,
    Passes,
    agreement_with,
    effect_of,
    help_report,
    passes_in,
    report_on,
)
from tests import factories
from tests.annotation.suggestions.help_scene import compare, finish, prefers, ranking, suggest, switch_on

ACCURACY = 0.7
"""Share of right first passes."""


def simulate(
    rng: random.Random, *, comparisons: int, annotators: int, planted: float, yields: float
) -> Iterator[tuple[Passes, Decided | None]]:
    """Annotators of known accuracy judge pairs whose answer is known, half of them without help.

    A suggestion is right unless it is planted. Who thinks as it says accepts it; else they give way with
    the chance `yields`, and reject it otherwise.
    """
    for comparison in range(comparisons):
        is_planted = rng.random() < planted
        for _annotator in range(annotators):
            first = rng.random() < ACCURACY
            if rng.random() < 0.5:
                yield Passes(comparison=comparison, helped=False, gold=first, first_gold=first), None
                continue
            agrees = first is not is_planted
            accepts = agrees or rng.random() < yields
            final = (not is_planted) if accepts else first
            yield (
                Passes(comparison=comparison, helped=True, gold=final, first_gold=first),
                Decided(
                    comparison=comparison,
                    planted=is_planted,
                    decision="accepted" if accepts else "rejected",
                    seconds=1.0 if accepts and not agrees else 5.0,
                ),
            )


def true_effect(*, planted: float, yields: float) -> float:
    """Wrong first passes that a right suggestion mends, less right ones that a planted one spoils."""
    return (1 - ACCURACY) * (1 - planted) * yields - ACCURACY * planted * yields


@pytest.mark.parametrize(("planted", "yields"), [(0.2, 0.5), (0.5, 0.9), (0.0, 0.0)])
def test_the_interval_covers_the_true_effect_as_often_as_it_says(planted: float, yields: float):
    rng = random.Random(17)
    truth = true_effect(planted=planted, yields=yields)
    covered, estimates = 0, []
    for _ in range(200):
        drawn = simulate(rng, comparisons=80, annotators=4, planted=planted, yields=yields)
        effect = effect_of([row for row, _decided in drawn], lambda row: row.gold, resamples=200).difference
        assert None not in (effect.value, effect.low, effect.high)
        estimates.append(effect.value)
        covered += effect.low <= truth <= effect.high
    # Of 200 intervals of 95 %, 190 are expected, with a deviation of 3.1; 200 resamples cost some.
    assert 180 <= covered <= 199
    # The mean of 200 estimates: each deviates by some 0.055, the mean by 0.004.
    assert sum(estimates) / len(estimates) == pytest.approx(truth, abs=0.016)


def test_the_report_recovers_what_annotators_do_with_planted_errors():
    drawn = list(simulate(random.Random(3), comparisons=600, annotators=6, planted=0.5, yields=0.9))
    report = report_on(
        [row for row, _ in drawn], [row for _, row in drawn if row], unread_seconds=2.0, resamples=200
    )
    # A planted error is rejected by who is right and does not give way: 0.7 · 0.1.
    assert report.planted_rejected.low < 0.07 < report.planted_rejected.high
    # A right suggestion is accepted by who is right, and by who is wrong and gives way: 0.7 + 0.3 · 0.9.
    assert report.accepted.low < 0.97 < report.accepted.high
    # Who gives way does so within a second: 0.9 · (0.5 · 0.3 + 0.5 · 0.7) = 0.45 of all, of which
    # 0.5 · 0.97 + 0.5 · 0.93 = 0.95 are accepted.
    assert report.accepted_unread.low < 0.45 / 0.95 < report.accepted_unread.high
    # (1 − 0.7) · 0.5 · 0.9 − 0.7 · 0.5 · 0.9 = −0.18: help lowers accuracy, which both ways of looking show.
    assert report.gold.difference.low < -0.18 < report.gold.difference.high
    assert report.gold_change.low < -0.18 < report.gold_change.high
    assert report.lowers == ("gold",)
    assert report.helped + report.control == 3600
    assert report.helped == len([row for _, row in drawn if row])


def test_help_that_does_good_warns_of_nothing():
    drawn = list(simulate(random.Random(5), comparisons=300, annotators=6, planted=0.1, yields=0.9))
    report = report_on([row for row, _ in drawn], [], unread_seconds=2.0, resamples=200)
    # 0.3 · 0.9 · 0.9 − 0.7 · 0.1 · 0.9 = 0.18
    assert report.gold.difference.low > 0
    assert report.lowers == ()


def test_an_arm_with_few_items_says_so_and_shows_their_number():
    few = [Passes(comparison=pk, helped=pk < 9, seconds=30.0, gold=1.0) for pk in range(40)]
    report = report_on(few, [], unread_seconds=2.0)
    assert (report.gold.helped.missing, report.gold.helped.items) == (Missing.TOO_FEW, 9)
    assert (report.gold.control.value, report.gold.control.items) == (1.0, 31)
    assert (report.gold.difference.missing, report.gold.difference.items) == (Missing.TOO_FEW, 9)
    assert report.agreement.helped.missing == Missing.NO_DATA
    assert (report.planted_rejected.missing, report.planted_rejected.items) == (Missing.NO_DATA, 0)


def test_means_and_difference_by_hand():
    # With help 20 s and 40 s by turns, without 60 s: means of 30 s and 60 s, a difference of −30 s.
    passes = [Passes(comparison=pk, helped=True, seconds=20.0 + 20 * (pk % 2)) for pk in range(20)]
    passes += [Passes(comparison=pk, helped=False, seconds=60.0) for pk in range(20, 40)]
    effect = effect_of(passes, lambda row: row.seconds)
    assert (effect.helped.value, effect.control.value, effect.difference.value) == (30.0, 60.0, -30.0)
    assert (effect.control.low, effect.control.high) == (60.0, 60.0)
    assert effect.helped.low is not None
    assert 20.0 < effect.helped.low < 30.0


def test_agreement_counts_pairs_of_completions_over_all_others():
    mine = {1: 1, 2: 2, 3: 2}
    # Of the first one the pairs 1-2 and 1-3 are alike, and 2-3 (a tie for me) is not; of the second, which
    # leaves 3 below without an order, only 1-3.
    others = [{1: 1, 2: 2, 3: 3}, {1: 2, 2: 1}]
    assert agreement_with(mine, others, [1, 2, 3]) == pytest.approx(3 / 6)
    assert agreement_with(mine, [], [1, 2, 3]) is None


@pytest.mark.django_db
def test_the_report_of_a_project_reads_both_passes(project: Project, alice: User, bob: User, carol: User):
    project.overlap = 2
    project.save()
    switch_on(project, carol)
    comparison = compare(project)
    [better] = suggest(comparison, prefers(comparison, (2, 1)))
    factories.make_judgment(comparison, alice, (1, 2), active_seconds=30)
    factories.make_judgment(comparison, bob, (2, 1), active_seconds=50)
    hers = HelpReveal.objects.get(assignment__annotator=alice)
    finish(hers, alice, ranking(comparison, (2, 1), active_seconds=12), {better.pk: "accepted"})
    bobs, alices = passes_in(project)
    # Both are held against the other's first pass, which no suggestion touched: Bob's second was right for
    # Alice in the end, and her first said otherwise than he did.
    assert (alices.first_agreement, alices.agreement, alices.seconds) == (0.0, 1.0, 42.0)
    assert (bobs.first_agreement, bobs.agreement, bobs.seconds) == (0.0, 0.0, None)
    report = help_report(project)
    assert (report.helped, report.control, report.unfinished, report.decisions) == (2, 0, 1, 1)
    assert Judgment.objects.current().count() == 2
