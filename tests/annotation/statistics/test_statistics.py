"""From rows to figures: what counts for what, worked out by hand on small projects."""

from datetime import timedelta

import pytest
from django.utils import timezone

from annotation.agreement.estimate import Missing
from annotation.agreement.records import Selection
from annotation.choices import Purpose, Shown, Verdict
from annotation.models import Judgment, Project, User
from annotation.selectors.comparisons import items_behind
from annotation.services.quality import record_agreement
from annotation.statistics.compute import compute_report
from annotation.statistics.page import progress_by_round
from annotation.statistics.report import Report
from tests import factories
from tests.annotation.statistics.statistics_scene import ids_of, item, say


def figure(report: Report, key: str):
    return next(row.estimate for row in report.figures if row.key == key)


@pytest.fixture
def dora(project: Project) -> User:
    """The third annotator."""
    return factories.make_user("dora")


def test_pairs_count_with_ties_as_a_category(project: Project, alice: User, bob: User, dora: User):
    """
    Item 1: a a a → 1. Item 2: a, tie → 0. Item 3: a a b → 1/3. Mean 4/9.
    """
    first, second, third = (item(project) for _ in range(3))
    for annotator in (alice, bob, dora):
        say(first, annotator, [1, 2])
    say(second, alice, [1, 2])
    say(second, bob, [1, 1])
    say(third, alice, [1, 2])
    say(third, bob, [1, 2])
    say(third, dora, [2, 1])
    report = compute_report(project, Selection())
    assert figure(report, "pair-percent").value == pytest.approx(4 / 9)
    assert (report.judgments, report.comparisons) == (8, 3)
    record_agreement(comparisons=[first.pk, second.pk, third.pk])
    assert items_behind(project, Selection(), Shown.DISAGREE) == [third.pk, second.pk]
    assert items_behind(project, Selection(), Shown.AGREE) == [first.pk]
    assert items_behind(project, Selection(), Shown.NO_WINNER) == [second.pk]


def test_what_replaced_an_answer_counts_and_what_was_replaced_does_not(
    project: Project, alice: User, bob: User
):
    comparison = item(project)
    say(comparison, bob, [1, 2])
    before = say(comparison, alice, [2, 1])
    report = compute_report(project, Selection())
    assert figure(report, "pair-percent").value == 0
    after = Judgment.objects.create(
        assignment=before.assignment,
        comparison=comparison,
        annotator=alice,
        verdict=Verdict.RANKED,
        supersedes=before,
        idempotency_key="7d3ecb24-0000-4000-8000-000000000001",
    )
    for rank, pk in enumerate(ids_of(comparison), start=1):
        after.ranks.create(completion_id=pk, rank=rank)
    report = compute_report(project, Selection())
    assert figure(report, "pair-percent").value == 1
    assert report.judgments == 2


def test_gold_and_what_is_asked_again_do_not_count_for_agreement(project: Project, alice: User, bob: User):
    work = item(project)
    say(work, bob, [1, 2])
    first = say(work, alice, [1, 2])
    say(work, alice, [2, 1], again=first, order=[1, 0])
    gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
    say(gold, alice, [1, 2])
    say(gold, bob, [2, 1])
    report = compute_report(project, Selection())
    assert figure(report, "pair-percent").value == 1
    assert figure(report, "retest").value == 0
    assert figure(report, "gold").value == 0.5
    assert items_behind(project, Selection(), Shown.RETEST_CHANGED) == [work.pk]
    assert items_behind(project, Selection(), Shown.RETEST_SAME) == []
    assert items_behind(project, Selection(), Shown.GOLD_WRONG) == [gold.pk]
    assert items_behind(project, Selection(annotator_id=alice.pk), Shown.GOLD_WRONG) == []
    assert items_behind(project, Selection(annotator_id=alice.pk), Shown.GOLD_RIGHT) == [gold.pk]


def test_gold_is_right_when_every_pair_that_it_decides_is_decided_so(
    project: Project, alice: User, bob: User, dora: User
):
    """Known: A best, B and C alike. Alice puts A first (right), Bob ties A and B, Dora cannot judge."""
    gold = item(project, ["A", "B", "C"], purpose=Purpose.GOLD, known=[1, 2, 2])
    say(gold, alice, [1, 3, 2])
    say(gold, bob, [1, 1, 2])
    say(gold, dora, [])
    report = compute_report(project, Selection())
    assert figure(report, "gold").value == pytest.approx(1 / 3)
    by_person = {person.pk: person.gold.value for person in report.people}
    assert by_person == {alice.pk: 1.0, bob.pk: 0.0, dora.pk: 0.0}


def test_a_gold_item_without_a_winner_is_met_by_the_same_verdict_alone(
    project: Project, alice: User, bob: User, dora: User
):
    """Known: both good. Alice says so, Bob names a winner, Dora says equal: one of three."""
    gold = item(project, purpose=Purpose.GOLD, known=[1, 1])
    say(gold, alice, [1, 1], verdict=Verdict.BOTH_GOOD)
    say(gold, bob, [1, 2])
    say(gold, dora, [1, 1], verdict=Verdict.EQUAL)
    assert figure(compute_report(project, Selection()), "gold").value == pytest.approx(1 / 3)


def test_the_first_answer_to_a_gold_item_counts(project: Project, alice: User):
    """She may have seen the right answer before she changed hers."""
    gold = item(project, purpose=Purpose.GOLD, known=[1, 2])
    wrong = say(gold, alice, [2, 1])
    changed = Judgment.objects.create(
        assignment=wrong.assignment,
        comparison=gold,
        annotator=alice,
        verdict=Verdict.RANKED,
        supersedes=wrong,
        idempotency_key="7d3ecb24-0000-4000-8000-000000000002",
    )
    for rank, pk in enumerate(ids_of(gold), start=1):
        changed.ranks.create(completion_id=pk, rank=rank)
    assert figure(compute_report(project, Selection()), "gold").value == 0
    assert items_behind(project, Selection(), Shown.GOLD_WRONG) == [gold.pk]


def test_asked_again_counts_pairs_said_alike(project: Project, alice: User):
    """First A > B > C, then A > C > B: 2 of 3. Another: cannot judge, then A: 0 of 1. 2 of 4."""
    ranking = item(project, ["A", "B", "C"])
    say(ranking, alice, [1, 3, 2], again=say(ranking, alice, [1, 2, 3]))
    pair = item(project)
    say(pair, alice, [1, 2], again=say(pair, alice, []))
    unclear = item(project)
    say(unclear, alice, [], again=say(unclear, alice, []))
    assert figure(compute_report(project, Selection()), "retest").value == pytest.approx(2 / 4)


def test_the_place_is_that_of_each_persons_own_display(project: Project, alice: User, bob: User):
    """Both prefer the first candidate; Bob saw it second. One of two was won by what was shown first."""
    comparison = item(project)
    say(comparison, alice, [1, 2], order=[0, 1])
    say(comparison, bob, [1, 2], order=[1, 0])
    report = compute_report(project, Selection())
    assert (report.position.wins, report.position.decided) == (1, 2)
    alone = compute_report(project, Selection(annotator_id=alice.pk))
    assert (alone.position.wins, alone.position.decided) == (1, 1)
    assert items_behind(project, Selection(annotator_id=alice.pk), Shown.FIRST_WON) == [comparison.pk]
    assert items_behind(project, Selection(annotator_id=alice.pk), Shown.LATER_WON) == []
    assert items_behind(project, Selection(annotator_id=bob.pk), Shown.LATER_WON) == [comparison.pk]


def test_a_circle_spans_comparisons_of_one_prompt_and_one_person(project: Project, alice: User, bob: User):
    """Alice: A > B, B > C, C > A. Bob: A > B, B > C, A > C. One of two triples is cyclic."""
    prompt = factories.make_prompt(project)
    a, b, c = factories.make_completions(prompt, ["A", "B", "C"])
    items = [item(project, prompt=prompt, completions=pair) for pair in ((a, b), (b, c), (a, c))]
    for comparison, of_alice, of_bob in zip(items, ([1, 2], [1, 2], [2, 1]), ([1, 2],) * 3, strict=True):
        say(comparison, alice, of_alice)
        say(comparison, bob, of_bob)
    # A ranking of three cannot be cyclic, and is no test of it.
    say(item(project, ["X", "Y", "Z"]), alice, [1, 2, 3])
    report = compute_report(project, Selection())
    assert (report.circles, report.triples) == (1, 2)
    assert figure(report, "circles").value == 0.5
    assert items_behind(project, Selection(), Shown.CIRCLES) == sorted(
        (cyclic.pk for cyclic in items), reverse=True
    )
    assert items_behind(project, Selection(annotator_id=bob.pk), Shown.CIRCLES) == []


def test_rankings_agree_by_tau_b_and_by_rank(project: Project, alice: User, bob: User):
    """A > B > C and A > C > B: two of three pairs alike, τ-b = 1/3."""
    ranking = item(project, ["A", "B", "C"])
    say(ranking, alice, [1, 2, 3])
    say(ranking, bob, [1, 3, 2])
    report = compute_report(project, Selection())
    assert figure(report, "tau").value == pytest.approx(1 / 3)
    assert figure(report, "rank-alpha").value is not None
    assert figure(report, "verdict-alpha").missing == Missing.NOBODY_SHARED


def test_non_wins_are_kept_apart_in_verdicts_and_together_in_pairs(project: Project, alice: User, bob: User):
    for verdict in (Verdict.BOTH_GOOD, Verdict.BOTH_BAD):
        comparison = item(project)
        say(comparison, alice, [1, 1], verdict=verdict)
        say(comparison, bob, [1, 1], verdict=Verdict.EQUAL)
    report = compute_report(project, Selection())
    assert figure(report, "pair-percent").value == 1
    assert figure(report, "pair-alpha").missing == Missing.ONE_VALUE
    # Values good, equal, bad, equal: never alike within, so α is below 0.
    assert figure(report, "verdict-alpha").value < 0


def test_strength_has_a_sign_and_a_tie_is_nought(project: Project, alice: User, bob: User):
    """
    Item 1: +4 and +2. Item 2: −1 and 0. Interval α by hand, pool 4, 2, −1, 0 (n = 4):
    D_o = (4·2 + 1·2) / 4 = 2.5. D_e = 2 (4 + 25 + 16 + 9 + 4 + 1) / (4·3) = 118/12. α = 1 − 30/118.
    """
    first, second = item(project), item(project)
    say(first, alice, [1, 2], strength=4)
    say(first, bob, [1, 2], strength=2)
    say(second, alice, [2, 1], strength=1)
    say(second, bob, [1, 1])
    report = compute_report(project, Selection())
    assert figure(report, "strength-interval").value == pytest.approx(1 - 30 / 118, abs=1e-9)


def test_marks_agree_where_two_people_looked(project: Project, alice: User, bob: User, dora: User):
    """Alice marks 0–3 untruthful, Bob 0–3 irrelevant: same place, another category."""
    shared = item(project)
    say(shared, alice, [1, 2], marks=[(0, 0, 3, "untruthful")])
    say(shared, bob, [1, 2], marks=[(0, 0, 3, "irrelevant")])
    say(item(project), dora, [1, 2], marks=[(1, 0, 2, "untruthful")])
    report = compute_report(project, Selection())
    assert figure(report, "span-exact").value == 1
    assert figure(report, "span-category").value == 0
    assert figure(report, "span-alpha").value < 0.5
    untruthful = project.categories.get(key="untruthful")
    one_category = compute_report(project, Selection(category_id=untruthful.pk))
    assert figure(one_category, "span-exact").value == 0
    assert "span-category" not in {row.key for row in one_category.spans}
    assert len(items_behind(project, Selection(category_id=untruthful.pk), Shown.FLAGGED)) == 2
    irrelevant = project.categories.get(key="irrelevant")
    assert items_behind(project, Selection(category_id=irrelevant.pk), Shown.FLAGGED) == [shared.pk]


def test_ratings_agree_by_criterion(project: Project, alice: User, bob: User):
    helpful = project.criteria.create(key="helpful", label="Helpful")
    comparison = item(project)
    for annotator, values in ((alice, (1, 5)), (bob, (2, 5))):
        judgment = say(comparison, annotator, [2, 1])
        for rank, value in zip(judgment.ranks.order_by("completion_id"), values, strict=True):
            judgment.ratings.create(completion_id=rank.completion_id, criterion=helpful, value=value)
    report = compute_report(project, Selection())
    # Units {1, 2} and {5, 5}: D_o = 2/4; D_e = 2 (1 + 16 + 16 + 9 + 9 + 0) / 12; α = 1 − 0.5 / 8.5.
    assert figure(report, "rating-interval").value == pytest.approx(1 - 0.5 / 8.5, abs=1e-9)
    assert {row.criterion for row in report.agreement} == {"", "Helpful"}


def test_a_selection_narrows_to_a_round_and_to_annotators(
    project: Project, alice: User, bob: User, dora: User
):
    """Round 1: alice and bob agree, dora differs. Round 2: alice and bob differ."""
    first, second = item(project), item(project, round_number=2)
    for annotator, ranks in ((alice, [1, 2]), (bob, [1, 2]), (dora, [2, 1])):
        say(first, annotator, ranks)
    say(second, alice, [1, 2])
    say(second, bob, [2, 1])
    everything = compute_report(project, Selection())
    assert figure(everything, "pair-percent").value == pytest.approx((1 / 3 + 0) / 2)
    assert [row.round_number for row in everything.rounds] == [1, 2]
    assert [row.percent.value for row in everything.rounds] == [pytest.approx(1 / 3), 0]
    of_round = compute_report(project, Selection(round_number=1))
    assert figure(of_round, "pair-percent").value == pytest.approx(1 / 3)
    two = compute_report(project, Selection(round_number=1, annotator_id=alice.pk, other_id=bob.pk))
    assert figure(two, "pair-percent").value == 1
    assert two.judgments == 2
    assert figure(two, "pair-cohen").missing == Missing.ONE_VALUE
    report_of_dora = compute_report(project, Selection(annotator_id=dora.pk))
    assert figure(report_of_dora, "pair-percent").value == pytest.approx(1 / 3)
    pairs = {frozenset((p.first, p.second)): p.percent.value for p in everything.people_pairs}
    assert pairs == {
        frozenset((alice.pk, bob.pk)): 0.5,
        frozenset((alice.pk, dora.pk)): 0.0,
        frozenset((bob.pk, dora.pk)): 0.0,
    }


def test_time_is_summed_over_what_was_measured(project: Project, alice: User, bob: User):
    """10, 20 and 60 s on two comparisons, one judgment not measured: 90 s, median 20, 45 a comparison."""
    first, second = item(project), item(project)
    say(first, alice, [1, 2], active_seconds=10)
    say(first, bob, [1, 2], active_seconds=20)
    say(second, alice, [1, 2], active_seconds=60)
    say(second, bob, [1, 2])
    cost = compute_report(project, Selection()).cost
    assert (cost.judgments, cost.measured) == (4, 3)
    assert (cost.total_seconds, cost.median_seconds, cost.seconds_per_item) == (90, 20, 45)


def test_days_without_work_stand_between_those_with_some(project: Project, alice: User):
    for days_ago in (0, 0, 3):
        say(item(project), alice, [1, 2], days_ago=days_ago)
    report = compute_report(project, Selection())
    today = timezone.localdate()
    assert [count for _, count in report.days] == [1, 0, 0, 2]
    assert report.days[0][0] == today - timedelta(days=3)
    assert sum(report.hours) == 3


def test_progress_counts_places_of_real_work(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    first, second = factories.make_comparison(project), factories.make_comparison(project, round_number=2)
    factories.make_judgment(first, alice)
    factories.lease_to(second, bob)
    item(project, purpose=Purpose.GOLD, known=[1, 2])
    rows = [
        (row.number, row.comparisons, row.wanted, row.done, row.held, row.open)
        for row in progress_by_round(project)
    ]
    assert rows == [(1, 1, 2, 1, 0, 1), (2, 1, 2, 0, 1, 1)]
    assert items_behind(project, Selection(round_number=1), Shown.OPEN) == [first.pk]


def test_an_empty_project_has_reasons_and_no_numbers(project: Project):
    report = compute_report(project, Selection())
    assert all(row.estimate.value is None and row.estimate.missing for row in report.figures)
    assert report.people == ()
    assert report.by_position == ()
