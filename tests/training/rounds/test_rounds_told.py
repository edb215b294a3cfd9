"""Managers get one message for each failed round, decision that waits for them, and lack of evidence."""

import pytest

from annotation.choices import NotificationKind
from annotation.models import Notification, User
from training.choices import StepKind
from training.models import Round
from training.services.rounds import executor
from training.services.rounds.controls import retry_step, start_round
from training.services.rounds.deciding import _end_without_evidence
from training.services.rounds.executor import advance_round, sweep

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


def test_a_failed_step_reaches_the_managers_with_its_error_each_time(
    labelled: Round, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
):
    def broken(*args: object) -> str:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(executor, "do_step", broken)
    start_round(round_=labelled, started_by=carol)
    advance_round(labelled.pk)
    row = Notification.objects.get()
    assert (row.user, row.kind) == (carol, NotificationKind.ROUND_FAILED)
    assert "by zero" in row.excerpt
    assert row.address == "/projects/tea/rounds/1/"
    retry_step(round_=labelled, kind=StepKind.FREEZE_SNAPSHOT, actor=carol)
    advance_round(labelled.pk)
    assert Notification.objects.filter(kind=NotificationKind.ROUND_FAILED).count() == 2


def test_a_decision_that_waits_is_told_once_however_often_is_looked(deciding_round: Round, carol: User):
    for _ in range(3):
        sweep()
    row = Notification.objects.get()
    assert (row.user, row.kind) == (carol, NotificationKind.DECISION_WAITING)


def test_a_round_without_enough_evidence_is_told_of(deciding_round: Round, carol: User):
    _end_without_evidence(deciding_round)
    kinds = list(Notification.objects.values_list("user__username", "kind"))
    assert ("carol", NotificationKind.NOT_ENOUGH_EVIDENCE) in kinds
