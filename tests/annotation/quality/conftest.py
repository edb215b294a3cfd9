"""Fixtures of reviews: a reviewer, a project with two annotators per comparison, a disputed comparison."""

import pytest

from annotation.models import Comparison, Project, User
from tests import factories


@pytest.fixture
def doubled(project: Project) -> Project:
    """The project with two annotators per comparison, whose disagreements are reviewed."""
    project.overlap = 2
    project.review_disagreements = True
    project.save()
    return project


@pytest.fixture
def disputed(doubled: Project, alice: User, bob: User) -> Comparison:
    """Alice prefers the first answer, Bob the second."""
    comparison = factories.make_comparison(doubled)
    factories.make_judgment(comparison, alice, (1, 2), strength=4, comment="clear to me")
    factories.make_judgment(comparison, bob, (2, 1))
    return comparison
