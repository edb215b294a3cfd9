"""A round trains its policy by the method that its recipe names."""

from typing import Any

import pytest
from django.db import IntegrityError

from annotation.models import Prompt, User
from tests.training.conftest import judge_all
from tests.training.fake_server import FakeServer
from training.models import Checkpoint, Round, Run
from training.services.rounds import advance_round, open_first_round, start_round

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("quick_trainer")]


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ({}, "policy by DPO"),
        ({"method": "kto", "sources": ["ranks"]}, "policy by KTO"),
        ({"method": "sft", "sources": ["preferred"]}, "policy by supervised fine-tuning"),
    ],
)
def test_a_rounds_policy_is_trained_as_its_recipe_says(
    prompts: list[Prompt],
    alice: User,
    carol: User,
    fake_server: FakeServer,
    policy: dict[str, Any],
    label: str,
):
    project = prompts[0].project
    round_ = open_first_round(project=project)
    Round.objects.update(recipe={"policy": policy})
    advance_round(round_.pk)
    judge_all(project, alice)
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    trained = Checkpoint.objects.get(name="tea-round-1-policy")
    assert trained.kind == "policy"
    assert trained.run.method == policy.get("method", "preference")
    assert trained.run.get_method_display() == label
    assert trained.run.spec["method"] == trained.run.method
    if policy:
        assert trained.run.spec["settings"]["sources"] == policy["sources"]


def test_the_database_knows_the_methods_there_are(
    prompts: list[Prompt], alice: User, carol: User, fake_server: FakeServer
):
    round_ = open_first_round(project=prompts[0].project)
    advance_round(round_.pk)
    judge_all(round_.project, alice)
    start_round(round_=round_, started_by=carol)
    advance_round(round_.pk)
    with pytest.raises(IntegrityError, match="run_method_known"):
        Run.objects.update(method="ppo")
