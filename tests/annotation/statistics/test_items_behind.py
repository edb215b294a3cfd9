"""The comparisons behind a figure are those that a plain reading of every judgment finds."""

import random
from collections.abc import Callable, Sequence

import pytest

from annotation.agreement import records
from annotation.agreement.records import Judged, Selection, circles_among
from annotation.choices import Shown
from annotation.models import Assignment, Project, User
from annotation.selectors.comparisons import items_behind
from annotation.selectors.judged import judged_in, who_judged
from annotation.services.quality import record_agreement
from tests import factories
from tests.annotation.statistics.statistics_scene import busy_project, item, say


@pytest.fixture
def worked_in(project: Project, alice: User, bob: User) -> tuple[Project, list[User]]:
    """Pairs and rankings of three people, with ties, retests, and pairs of one prompt that go in circles."""
    people = [alice, bob, factories.make_user("dora")]
    busy_project(project, people, items=24)
    generator = random.Random(11)
    for number in range(6):
        prompt = factories.make_prompt(project, f"Which of three, {number}?")
        answers = factories.make_completions(prompt, ("One.", "Two.", "Three."))
        for left, right in ((0, 1), (1, 2), (2, 0)):
            pair = item(project, prompt=prompt, completions=[answers[left], answers[right]])
            for annotator in people:
                pair_ranks = generator.choice(([1, 2], [2, 1], [1, 1], []))
                say(pair, annotator, [1, 2] if number == 0 and annotator == alice else pair_ranks)
    once = Assignment.objects.filter(annotator=alice, slot__isnull=False, retests__isnull=True)
    for assignment in once.order_by("pk")[:8]:
        size = assignment.comparison.size
        ranks = generator.sample(range(1, size + 1), size)
        say(assignment.comparison, alice, ranks, again=assignment.judgments.get())
    record_agreement(comparisons=project.comparisons.values_list("pk", flat=True))
    return project, people


def best(row: Judged) -> set[int]:
    if len(set(row.ranks.values())) < 2:
        return set()
    return {place for place, completion in enumerate(row.shown) if row.ranks.get(completion) == 1}


def circles(rows: Sequence[Judged]) -> set[int]:
    comparisons = set()
    for preferences in records.preferences_by_prompt(rows):
        for three in circles_among(preferences.wins, preferences.asked_together).cyclic:
            judgments = {
                preferences.asked_together[pair]
                for pair in preferences.asked_together
                if set(pair) <= set(three)
            }
            comparisons |= {row.comparison for row in rows if row.pk in judgments}
    return comparisons


def retests(rows: Sequence[Judged], *, same: bool) -> set[int]:
    matches = records.retest_matches(rows)
    return {again.comparison for again, alike, pairs in matches if pairs and (alike == pairs) == same}


def wins(test: Callable[[Judged], bool]) -> Callable[[Sequence[Judged]], set[int]]:
    return lambda rows: {row.comparison for row in rows if row.is_first_work and test(row)}


PLAINLY: dict[Shown, Callable[[Sequence[Judged]], set[int]]] = {
    Shown.JUDGED: lambda rows: {row.comparison for row in rows},
    Shown.FIRST_WON: wins(lambda row: best(row) == {0}),
    Shown.LATER_WON: wins(lambda row: bool(best(row)) and 0 not in best(row)),
    Shown.NO_WINNER: wins(lambda row: bool(row.ranks) and not best(row)),
    Shown.RETEST_SAME: lambda rows: retests(rows, same=True),
    Shown.RETEST_CHANGED: lambda rows: retests(rows, same=False),
    Shown.CIRCLES: circles,
}


@pytest.mark.django_db
def test_a_figures_comparisons_are_those_that_every_judgment_read_plainly_gives(
    worked_in: tuple[Project, list[User]],
):
    project, (alice, bob, _) = worked_in
    for selection in (
        Selection(),
        Selection(round_number=2),
        Selection(annotator_id=bob.pk),
        Selection(annotator_id=alice.pk, other_id=bob.pk),
    ):
        everyone = judged_in(project, selection.rounds)
        selected = [row for row in everyone if selection.is_of(row.annotator)]
        for shown, plain in PLAINLY.items():
            assert items_behind(project, selection, shown) == sorted(plain(selected), reverse=True), shown
        for differ, shown in ((True, Shown.DISAGREE), (False, Shown.AGREE)):
            expected = set()
            for pk, judgments in records.together(everyone, selection).items():
                shared = [set(unit.values()) for unit in records.pair_units(judgments) if len(unit) > 1]
                if shared and any(len(values) > 1 for values in shared) == differ:
                    expected.add(pk)
            assert items_behind(project, selection, shown) == sorted(expected, reverse=True), shown
    # The scene holds some of each kind, or the test would show nothing.
    assert all(items_behind(project, Selection(), shown) for shown in [*PLAINLY, Shown.DISAGREE, Shown.AGREE])


@pytest.mark.django_db
def test_reading_them_costs_two_queries_at_most(
    worked_in: tuple[Project, list[User]], django_assert_max_num_queries
):
    project, (alice, bob, _) = worked_in
    for shown in [*PLAINLY, Shown.DISAGREE, Shown.AGREE]:
        with django_assert_max_num_queries(2):
            items_behind(project, Selection(annotator_id=alice.pk, other_id=bob.pk), shown)


@pytest.mark.django_db
def test_who_judged_are_those_with_a_judgment_in_the_project(project: Project, alice: User, bob: User):
    other = factories.make_project(slug="coffee", annotators=[bob])
    factories.make_judgment(factories.make_comparison(other), bob)
    assert not who_judged(project).exists()
    for _ in range(2):
        factories.make_judgment(factories.make_comparison(project), alice)
    assert [list(who_judged(judged_project)) for judged_project in (project, other)] == [[alice], [bob]]
