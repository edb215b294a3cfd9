"""The comparisons behind a figure are those that a plain reading of every judgment finds."""

import random
from collections.abc import Callable, Sequence

import pytest

from annotation.agreement import readings
from annotation.agreement.circles import circles_among
from annotation.agreement.records import Judged
from annotation.agreement.selection import Selection
from annotation.choices import Shown
from annotation.models import Assignment, Project, User
from annotation.selectors.comparisons import items_behind
from annotation.selectors.judged import judged_in, who_judged
from annotation.services.quality.agreement import record_agreement
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
                said = generator.choice(([1, 2], [2, 1], [1, 1], []))
                say(pair, annotator, [1, 2] if number == 0 and annotator == alice else said)
    once = Assignment.objects.filter(annotator=alice, slot__isnull=False, retests__isnull=True)
    for assignment in once.order_by("pk")[:8]:
        size = assignment.comparison.size
        ranks = generator.sample(range(1, size + 1), size)
        say(assignment.comparison, alice, ranks, again=assignment.judgments.get())
    record_agreement(comparisons=project.comparisons.values_list("pk", flat=True))
    return project, people


def best(one: Judged) -> set[int]:
    if len(set(one.ranks.values())) < 2:
        return set()
    return {place for place, completion in enumerate(one.shown) if one.ranks.get(completion) == 1}


def circles(own: Sequence[Judged]) -> set[int]:
    found = set()
    for said in readings.preferences_by_prompt(own):
        for three in circles_among(said.wins, said.asked_together).cyclic:
            judgments = {said.asked_together[pair] for pair in said.asked_together if set(pair) <= set(three)}
            found |= {one.comparison for one in own if one.pk in judgments}
    return found


def retests(own: Sequence[Judged], *, same: bool) -> set[int]:
    matches = readings.retest_matches(own)
    return {again.comparison for again, alike, pairs in matches if pairs and (alike == pairs) == same}


def wins(test: Callable[[Judged], bool]) -> Callable[[Sequence[Judged]], set[int]]:
    return lambda own: {one.comparison for one in own if one.is_first_work and test(one)}


PLAINLY: dict[Shown, Callable[[Sequence[Judged]], set[int]]] = {
    Shown.JUDGED: lambda own: {one.comparison for one in own},
    Shown.FIRST_WON: wins(lambda one: best(one) == {0}),
    Shown.LATER_WON: wins(lambda one: bool(best(one)) and 0 not in best(one)),
    Shown.NO_WINNER: wins(lambda one: bool(one.ranks) and not best(one)),
    Shown.RETEST_SAME: lambda own: retests(own, same=True),
    Shown.RETEST_CHANGED: lambda own: retests(own, same=False),
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
        own = [one for one in everyone if selection.is_of(one.annotator)]
        for shown, plain in PLAINLY.items():
            assert items_behind(project, selection, shown) == sorted(plain(own), reverse=True), shown
        for differ, shown in ((True, Shown.DISAGREE), (False, Shown.AGREE)):
            expected = set()
            for pk, said in readings.together(everyone, selection).items():
                shared = [set(unit.values()) for unit in readings.pair_units(said) if len(unit) > 1]
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
    assert [list(who_judged(one)) for one in (project, other)] == [[alice], [bob]]
