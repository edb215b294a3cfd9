"""The gain of a strategy over chance, as a manager sees it."""

import math
from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from annotation.acquisition.gain import ArmReport, gain_of_strategy
from annotation.choices import AcquisitionArm, Verdict
from annotation.models import Assignment, CompletionScore, Project, User
from tests import factories
from tests.annotation.judgments.answers import completions_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def judged(project: Project, alice: User) -> Project:
    """By strategy an even pair and an unscored one, by chance a pair at σ(log 3) = ¾ that tied."""
    project.acquisition = "uncertainty"
    project.save()
    for arm, lead, answer in (
        (AcquisitionArm.STRATEGY, 0.0, {"ranks": (1, 2)}),
        (AcquisitionArm.STRATEGY, None, {"ranks": (2, 1)}),
        (AcquisitionArm.CONTROL, math.log(3), {"ranks": (), "verdict": Verdict.EQUAL}),
    ):
        comparison = factories.make_comparison(project)
        judgment = factories.make_judgment(comparison, alice, **answer)
        Assignment.objects.filter(pk=judgment.assignment_id).update(arm=arm)
        if lead is not None:
            for completion, value in zip(completions_of(comparison), (lead, 0.0), strict=True):
                CompletionScore.objects.create(completion=completion, scorer="reward-1", value=value)
    return project


def test_both_arms_are_told_apart(judged: Project):
    strategy, control = gain_of_strategy(judged, 1)
    assert strategy == ArmReport(arm=AcquisitionArm.STRATEGY, judged=2, uncertainty=1.0, decided=1.0)
    assert (control.arm, control.judged, control.decided) == (AcquisitionArm.CONTROL, 1, 0.0)
    # H(¾) = ¾ log2(4/3) + ¼ log2 4.
    assert control.uncertainty == pytest.approx(0.8112781244591328)


def test_before_anything_is_judged_there_is_nothing_to_tell(project: Project):
    assert [(arm.judged, arm.uncertainty, arm.decided) for arm in gain_of_strategy(project, 1)] == [
        (0, None, None),
        (0, None, None),
    ]


def test_the_manager_sees_the_arms_where_a_strategy_is_followed(
    judged: Project, alice: User, carol: User, client_of: Callable[[User], Client]
):
    home = reverse("project", args=[judged.slug])
    shown = client_of(carol).get(home).content.decode()
    assert "Which to ask next" in shown
    assert "0.811" in shown
    assert "Which to ask next" not in client_of(alice).get(home).content.decode()
    judged.acquisition = "age"
    judged.save()
    assert "Which to ask next" not in client_of(carol).get(home).content.decode()
