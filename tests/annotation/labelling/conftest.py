"""Fixtures of the labelling page: a project that asks every question, and Alice at work in it."""

import pytest
from django.test import Client

from annotation.choices import RatingScale
from annotation.models import Assignment, Criterion, Project, User
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.annotation.labelling.questions_scene import CRLF, ClientOf


@pytest.fixture
def browser(alice: User, client_of: ClientOf) -> Client:
    """A client in which Alice is signed in."""
    return client_of(alice)


@pytest.fixture
def asks(project: Project) -> Project:
    """The project asks everything, on two scales."""
    Project.objects.filter(pk=project.pk).update(
        ask_correction=True, ask_critique=True, ask_demonstration=True
    )
    for place, (key, scale) in enumerate([("helpful", RatingScale.FIVE), ("tone", RatingScale.THUMBS)]):
        Criterion.objects.create(project=project, key=key, label=key.title(), scale=scale, position=place)
    return project


@pytest.fixture
def held(asks: Project, alice: User) -> Assignment:
    """A pair in Alice's hands, one answer of it with line breaks of both kinds."""
    prompt = factories.make_prompt(asks, context=[("Tea", ["Hot.", "Wet."]), ("Water", ["Cold."])])
    factories.make_comparison(asks, [CRLF, "No."], prompt=prompt)
    assignment = assign_next(project=asks, annotator=alice)
    assert assignment is not None
    return assignment
