"""Rounds of the days when a round was finished or not are carried over to their states of now."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from tests.grown import one_by_one

BEFORE = [("training", "0004_the_round")]
AFTER = [("training", "0005_life_of_a_round")]
KINDS = ("freeze_snapshot", "train_reward_model", "train_policy", "register_checkpoints", "answer_prompts")

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(targets: list[tuple[str, str]]) -> Any:
    """Take `training` there; the models as they are then, `annotation` as it is now."""
    executor = MigrationExecutor(connection)
    executor.migrate(targets)
    loader = MigrationExecutor(connection).loader
    return loader.project_state([*targets, *loader.graph.leaf_nodes("annotation")]).apps


@pytest.fixture
def before() -> Iterator[Any]:
    """The models as they were; all migrations are there again afterwards."""
    with one_by_one():
        try:
            yield migrate(BEFORE)
        finally:
            executor = MigrationExecutor(connection)
            executor.migrate(executor.loader.graph.leaf_nodes())


def make_round(apps: Any, state: str, number: int = 1, done: int = 0) -> Any:
    """A round of a project of its own, with so many steps of training done."""
    project, _ = apps.get_model("annotation", "Project").objects.get_or_create(name=state, slug=state)
    source, _ = apps.get_model("annotation", "CompletionSource").objects.get_or_create(
        name="starter", kind="checkpoint"
    )
    policy, _ = apps.get_model("training", "Checkpoint").objects.get_or_create(
        name="starter", kind="starter", base_model="starter", folder="models/starter", source=source
    )
    round_ = apps.get_model("training", "Round").objects.create(
        project=project, number=number, state=state if number == 1 else "labelling", policy=policy, recipe={}
    )
    step = apps.get_model("training", "RoundStep")
    if number == 1:
        step.objects.create(round=round_, kind="answer_prompts", position=0, state="finished")
    if state != "labelling" and number == 1:
        for position, kind in enumerate(KINDS, start=1):
            done_or_not = "finished" if position <= done else "waiting"
            step.objects.create(round=round_, kind=kind, position=position, state=done_or_not)
    return round_


def test_every_old_round_has_a_state_of_now(before: Any):
    old = {
        "labelling": make_round(before, "labelling"),
        "finished": make_round(before, "finished", done=5),
        "training": make_round(before, "training", done=2),
        "failed": make_round(before, "failed", done=3),
        "cancelled": make_round(before, "cancelled", done=4),
    }
    # Its checkpoint answered the first prompts of the next round already.
    followed = make_round(before, "cancelled", number=2)
    apps = migrate(AFTER)
    rounds, steps = apps.get_model("training", "Round"), apps.get_model("training", "RoundStep")
    assert {name: rounds.objects.get(pk=round_.pk).state for name, round_ in old.items()} == {
        "labelling": "labelling",
        "finished": "promoted",
        "training": "training_policy",
        "failed": "failed",
        "cancelled": "promoted",
    }

    def kinds(name: str) -> list[str]:
        return list(
            steps.objects.filter(round_id=old[name].pk).order_by("position").values_list("kind", flat=True)
        )

    now = ["answer_prompts", *KINDS[:4], "evaluate", "decide"]
    assert kinds("training") == kinds("failed") == now
    # What a finished round did stays its record.
    assert kinds("finished") == ["answer_prompts", *KINDS]
    assert kinds("labelling") == ["answer_prompts"]
    assert steps.objects.get(round_id=followed.pk).kind == "answer_prompts"
