"""A pair with difficult text, and Alice's lease of it."""

import pytest

from annotation.models import Assignment, Comparison, Project, User
from annotation.services.assignments.next import assign_next
from tests import factories
from tests.annotation.judgments.answers import TEXT


@pytest.fixture
def pair(project: Project) -> Comparison:
    project.ask_correction = True
    project.save()
    prompt = factories.make_prompt(
        project, context=[("Tea", ["Tea is a drink.", "It is hot."]), ("Water", ["Water is wet."])]
    )
    return factories.make_comparison(project, [TEXT, "No."], prompt=prompt)


@pytest.fixture
def assignment(pair: Comparison, project: Project, alice: User) -> Assignment:
    leased = assign_next(project=project, annotator=alice)
    assert leased is not None
    return leased
