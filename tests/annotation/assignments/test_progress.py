"""Progress of an annotator in a round: exact where it matters, and cheap where there is much."""

import re
from collections.abc import Callable, Iterator

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from annotation.models import AnnotatorTally, Comparison, Project, User
from annotation.selectors.annotator_work import progress_and_pace
from annotation.selectors.progress import EXACT_UP_TO, KEPT_SECONDS, progress_of
from annotation.services.assignments.leases import release_assignment, skip_assignment
from tests import factories
from tests.annotation.labelling.work import answer, lease, reversed_order, work

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def standing(project: Project, annotator: User, round_number: int = 1) -> tuple[int, int]:
    progress = progress_of(project, annotator, round_number)
    return progress.done, progress.total


def many(project: Project, number: int) -> None:
    """Open comparisons without candidates: there only to be counted."""
    prompt = factories.make_prompt(project)
    Comparison.objects.bulk_create(
        Comparison(project=project, prompt=prompt, size=2, open_slots=1, completion_set=f"set {place}")
        for place in range(number)
    )


def test_every_step_is_counted_as_it_happens(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    for _ in range(4):
        factories.make_comparison(project)
    assert standing(project, alice) == (0, 4)
    assignment = lease(project, alice)
    assert standing(project, alice) == (0, 4)
    answer(assignment)
    assert standing(project, alice) == (1, 4)
    answer(assignment, reversed_order)  # a change of mind is no second one
    assert standing(project, alice) == (1, 4)
    skip_assignment(assignment=lease(project, alice), annotator=alice, reason="")
    assert standing(project, alice) == (1, 3)
    release_assignment(assignment=lease(project, alice), annotator=alice)
    assert standing(project, alice) == (1, 3)
    work(project, bob, 4)
    assert standing(project, bob) == (4, 4)
    assert standing(project, alice) == (1, 3)
    carl = factories.make_user("carl")
    assert standing(project, carl) == (0, 3)  # what Alice judged and Bob too is full


def test_rounds_are_counted_apart_also_when_one_goes_back(project: Project, alice: User):
    for round_number in (1, 1, 2):
        factories.make_comparison(project, round_number=round_number)
    work(project, alice, 2)  # the second round's, then one of the first
    factories.make_comparison(project, round_number=2)
    assert (standing(project, alice, 1), standing(project, alice, 2)) == ((1, 2), (1, 2))
    work(project, alice, 2)
    assert (standing(project, alice, 1), standing(project, alice, 2)) == ((2, 2), (2, 2))
    assert AnnotatorTally.objects.get().submitted == 4


def test_two_projects_are_counted_apart(project: Project, alice: User):
    other = factories.make_project(slug="coffee", annotators=[alice])
    for target_project in (project, project, other):
        factories.make_comparison(target_project)
    work(project, alice, 2)
    work(other, alice, 1)
    assert (standing(project, alice), standing(other, alice)) == ((2, 2), (1, 1))


def test_near_the_end_nothing_is_kept(project: Project, alice: User):
    many(project, EXACT_UP_TO)
    assert standing(project, alice) == (0, EXACT_UP_TO)
    Comparison.objects.filter(completion_set="set 0").update(open_slots=0)
    assert standing(project, alice) == (0, EXACT_UP_TO - 1)


def test_with_many_open_the_total_is_kept_for_a_while_and_done_is_exact(
    project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries
):
    for _ in range(2):
        factories.make_comparison(project, priority=1)
    many(project, EXACT_UP_TO)
    assert standing(project, alice) == (0, EXACT_UP_TO + 2)
    work(project, alice, 1)
    work(project, bob, 1)
    with django_assert_num_queries(1):
        assert standing(project, alice) == (1, EXACT_UP_TO + 2)
    # The kept number grows old, and is counted anew.
    now = timezone.now().timestamp()
    monkeypatch.setattr("time.time", lambda: now + KEPT_SECONDS + 1)
    assert standing(project, alice) == (1, EXACT_UP_TO + 1)


def test_the_total_that_pages_show_never_falls_while_there_is_work(project: Project, alice: User, bob: User):
    for _ in range(5):
        factories.make_comparison(project)

    def shown() -> tuple[int, int]:
        progress, _pace = progress_and_pace(project, alice, 1)
        return progress.shown_done, progress.shown_total

    assert shown() == (0, 5)
    work(project, alice, 1)
    # Bob takes one, Alice skips one: three are hers to judge, and the page goes on to count to five.
    work(project, bob, 1)
    skip_assignment(assignment=lease(project, alice), annotator=alice, reason="")
    assert standing(project, alice) == (1, 3)
    assert shown() == (1, 5)
    factories.make_comparison(project)
    factories.make_comparison(project)
    factories.make_comparison(project)
    assert shown() == (1, 6)
    work(project, alice, 5)
    # Nothing is left: what was judged is all there is.
    assert shown() == (6, 6)


def test_every_page_names_the_round_of_the_work_in_hand(
    project: Project, alice: User, client_of: Callable[[User], Client]
):
    for _ in range(3):
        factories.make_comparison(project, round_number=1)
    client = client_of(alice)

    def named() -> tuple[int, ...]:
        home = client.get(reverse("project", args=[project.slug]))
        screen = client.get(reverse("label", args=[project.slug])).content.decode()
        (number,) = re.findall(r"Round (\d)", screen.split("screen__where")[1][:300])[:1]
        return home.context["round_number"], int(number), home.context["progress"].shown_total

    assert named() == (1, 1, 3)
    # Round 1 was promoted and round 2 has begun; what Alice holds is still of round 1.
    factories.make_comparison(project, round_number=2)
    assert named() == (1, 1, 3)
    work(project, alice, 1)
    assert named() == (2, 2, 1)
    work(project, alice, 1)
    # Round 2 has nothing more for her: what comes is what round 1 left.
    assert named() == (1, 1, 3)
