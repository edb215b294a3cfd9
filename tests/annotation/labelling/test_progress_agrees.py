"""Progress and round are the same on every page that names them: home, project, labelling screen."""

import re
import uuid
from collections.abc import Callable, Mapping

import pytest
from django.core.cache import cache
from django.test import Client
from django.urls import reverse

from annotation.choices import AssignmentState, Verdict
from annotation.models import Assignment, Project, User
from annotation.services.judgments.submission import submit_judgment
from tests import factories
from tests.records import judgment_record

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


def bar_in(page: str) -> tuple[int, int]:
    """Value and maximum of the first progress bar of a page."""
    (tag, *_more) = re.findall(r"<progress[^>]*>", page)
    attributes: Mapping[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', tag))
    return int(attributes["value"]), int(attributes["max"])


def left_in(page: str) -> int:
    """Return the number that a page shows after “Continue”; 0 where it shows none."""
    match = re.search(r"Continue: (\d+) left", page)
    return int(match[1]) if match else 0


def shown(client: Client, project: Project) -> tuple[int, tuple[int, int], int]:
    """Round, done of total, and what is left; refuse pages that differ. Leases what the screen shows."""
    screen = client.get(reverse("label", args=[project.slug])).content.decode()
    overview = client.get(reverse("project", args=[project.slug])).content.decode()
    home = client.get(reverse("projects")).content.decode()
    (on_screen,) = set(re.findall(r"Round (\d+)", screen))
    assert f"Your work in round {on_screen}" in overview
    assert bar_in(screen) == bar_in(overview)
    done, total = bar_in(screen)
    assert left_in(home) == total - done
    # Before the first annotation the project's page says “Start labelling”.
    assert left_in(overview) == (total - done if done else 0)
    return int(on_screen), (done, total), total - done


def judge(annotator: User) -> None:
    """Submit what the screen shows to this person."""
    held = Assignment.objects.get(annotator=annotator, state=AssignmentState.LEASED)
    first, second = held.display_order
    submit_judgment(
        assignment=held,
        annotator=annotator,
        answer=judgment_record(verdict=Verdict.RANKED, ranks={first: 1, second: 2}),
        idempotency_key=uuid.uuid4(),
    )


def test_pages_agree_from_the_first_annotation_to_the_next_round(
    project: Project, alice: User, bob: User, client_of: ClientOf
):
    project.retest_share = 0.0
    project.save()
    comparisons = [factories.make_comparison(project) for _ in range(4)]
    client = client_of(alice)
    assert shown(client, project) == (1, (0, 4), 4)
    judge(alice)
    assert shown(client, project) == (1, (1, 4), 3)
    # What others have filled is no part of her total.
    factories.make_judgment(comparisons[3], bob)
    cache.clear()
    assert shown(client, project) == (1, (1, 3), 2)
    # A new round opens; what she holds is still of the one before, on every page.
    factories.make_comparison(project, round_number=2)
    assert shown(client, project) == (1, (1, 3), 2)
    judge(alice)
    assert shown(client, project) == (2, (0, 1), 1)
    judge(alice)
    # Back to what the first round has left.
    assert shown(client, project) == (1, (2, 3), 1)
