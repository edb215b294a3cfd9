"""Entries to conversations: home and the overview of a project."""

from collections.abc import Callable

import pytest
from django.test import Client

from annotation.models import Project, User
from training.models import ConversationSettings

SignIn = Callable[[User], Client]
ADDRESS = "/projects/tea/conversations/"


@pytest.mark.django_db
@pytest.mark.parametrize(("is_open", "times"), [(True, 1), (False, 0), (None, 0)])
@pytest.mark.parametrize("page", ["/", "/projects/tea/"])
def test_conversations_are_offered_where_they_are_open(
    project: Project,
    alice: User,
    client_of: Callable[[User], Client],
    page: str,
    is_open: bool | None,
    times: int,
):
    if is_open is not None:
        ConversationSettings.objects.create(project=project, is_open=is_open)
    main = client_of(alice).get(page).content.decode().partition("<main")[2]
    assert main.count(f'href="{ADDRESS}"') == times
