"""A round on a disk that is nearly full: it waits, says so, and goes on by itself."""

import pytest
from pytest_django import Settings

from annotation.models import Project, User
from tests import factories
from training.choices import RoundState, StepState
from training.models import Round, RoundStep
from training.services.rounds.controls import draft_first_round, open_round
from training.services.rounds.executor import advance_round, rounds_with_work

pytestmark = pytest.mark.django_db

MORE_THAN_ANY_DISK = 1 << 40


@pytest.mark.usefixtures("fake_server")
def test_sampling_waits_says_so_and_goes_on_once_there_is_room(
    project: Project, carol: User, settings: Settings
):
    settings.RONDO_LEAST_FREE_MB = MORE_THAN_ANY_DISK
    factories.make_prompt(project, "Tea?", split="train")
    round_ = draft_first_round(project=project, created_by=carol)
    open_round(round_=round_, opened_by=carol)
    advance_round(round_.pk)
    step = RoundStep.objects.get()
    assert step.state == StepState.WAITING
    assert "disk" in step.message
    assert rounds_with_work() == [round_.pk]
    settings.RONDO_LEAST_FREE_MB = 0
    advance_round(round_.pk)
    assert RoundStep.objects.get().state == StepState.FINISHED
    assert Round.objects.get().state == RoundState.LABELLING
