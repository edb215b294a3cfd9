"""A round that trained nothing is deleted with its comparisons; one that trained stays for the record."""

from collections.abc import Callable

import pytest
from django.test import Client

from annotation.choices import Purpose
from annotation.models import BulkChange, Comparison, Judgment, Project, User
from annotation.selectors.access import judgments_current
from annotation.services.assignments.next import assign_next
from annotation.services.changes import undo_change
from tests import factories
from tests.refusals import refused
from training.models import Round
from training.services.rounds.controls import discard_round, open_first_round, start_round

pytestmark = pytest.mark.django_db

ClientOf = Callable[[User], Client]


def test_the_page_shows_the_annotations_that_go_and_the_round_is_gone(
    labelled: Round, project: Project, carol: User, client_of: ClientOf
):
    annotations = Judgment.objects.count()
    page = client_of(carol).get("/projects/tea/rounds/1/discard/").content.decode()
    assert f'annotations by people: <strong class="number">{annotations}</strong>' in page
    answer = client_of(carol).post("/projects/tea/rounds/1/discard/")
    assert answer.headers["Location"] == "/projects/tea/rounds/"
    assert not Round.objects.exists()
    assert not Comparison.objects.filter(purpose=Purpose.WORK).exists()
    assert not judgments_current(project).exists()
    assert project.prompts.exists()
    # Work of people comes back for a day, and a new first round may be opened.
    undo_change(change=BulkChange.objects.get(), undone_by=carol)
    assert judgments_current(project).count() == annotations
    assert open_first_round(project=project).number == 1


def test_a_round_that_trains_or_is_labelled_stays(
    labelled: Round, project: Project, alice: User, carol: User
):
    later = Round.objects.create(project=project, number=2, policy=labelled.policy, recipe=labelled.recipe)
    with refused("round_is_followed"):
        discard_round(round_=labelled, actor=carol)
    discard_round(round_=later, actor=carol)
    factories.make_comparison(project)
    assert assign_next(project=project, annotator=alice) is not None
    with refused("round_in_annotation"):
        discard_round(round_=labelled, actor=carol)
    start_round(round_=labelled, started_by=carol)
    labelled.refresh_from_db()
    with refused("round_on_record"):
        discard_round(round_=labelled, actor=carol)
    assert Round.objects.get() == labelled
