"""The states and steps of a round."""

from typing import Any, ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q

_ROUND_STATES = (
    ("draft", "draft"),
    ("sampling", "sampling"),
    ("labelling", "labelling"),
    ("training_reward_models", "training reward models"),
    ("training_policy", "training policy"),
    ("evaluating", "evaluating"),
    ("deciding", "deciding"),
    ("promoted", "promoted"),
    ("rejected", "rejected"),
    ("paused", "paused"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
)
_STEP_KINDS = (
    ("answer_prompts", "answer the prompts"),
    ("freeze_snapshot", "freeze snapshot"),
    ("train_reward_model", "train reward model"),
    ("train_policy", "train policy"),
    ("register_checkpoints", "register checkpoints"),
    ("evaluate", "evaluate"),
    ("decide", "decide"),
)
_TRAINS = ("training_reward_models", "training_policy", "evaluating", "deciding")
_LAST_STEPS = ((5, "evaluate"), (6, "decide"))


def carry_over(apps: Any, schema_editor: Any) -> None:
    """Finished rounds were promoted; those that were training also evaluate and decide."""
    rounds, steps = apps.get_model("training", "Round"), apps.get_model("training", "RoundStep")
    rounds.objects.filter(state="finished").update(state="promoted")
    for round_ in rounds.objects.filter(state__in=["training", "failed", "cancelled"]):
        following = rounds.objects.filter(project=round_.project_id, number=round_.number + 1).first()
        own = steps.objects.filter(round=round_)
        own.filter(position=5, kind="answer_prompts").exclude(state="finished").delete()
        if following is not None:
            # Its checkpoint answers the next round's prompts already; that round goes on with it.
            rounds.objects.filter(pk=round_.pk).update(state="promoted")
            steps.objects.get_or_create(round=following, position=0, defaults={"kind": "answer_prompts"})
            continue
        ended = "cancelled" if round_.state == "cancelled" else "waiting"
        for position, kind in _LAST_STEPS:
            steps.objects.create(round=round_, position=position, kind=kind, state=ended)
        if round_.state == "training":
            left = own.filter(position__gt=0).exclude(state="finished").order_by("position").first()
            begins = {
                "freeze_snapshot": "training_reward_models",
                "train_reward_model": "training_reward_models",
                "train_policy": "training_policy",
                "register_checkpoints": "training_policy",
            }
            rounds.objects.filter(pk=round_.pk).update(state=begins.get(left.kind, "evaluating"))
    if schema_editor.connection.vendor == "postgresql":
        # The constraints below alter tables that rows were just written to.
        schema_editor.execute("SET CONSTRAINTS ALL IMMEDIATE")


class Migration(migrations.Migration):
    dependencies: ClassVar = [("training", "0004_the_round")]

    operations: ClassVar = [
        migrations.RemoveConstraint(model_name="round", name="round_state_known"),
        migrations.RemoveConstraint(model_name="round", name="round_trains_one_at_a_time"),
        migrations.RemoveConstraint(model_name="roundstep", name="step_kind_known"),
        migrations.AlterField(
            model_name="round",
            name="state",
            field=models.CharField(choices=_ROUND_STATES, default="draft", max_length=24),
        ),
        migrations.AddField(
            model_name="round", name="pause_requested", field=models.BooleanField(default=False)
        ),
        migrations.AddField(
            model_name="round",
            name="starts_by_itself",
            field=models.BooleanField(
                default=True,
                help_text=(
                    "Whether the recipe's triggers may start it; not once it was taken back to labelling."
                ),
            ),
        ),
        migrations.AddField(
            model_name="round",
            name="reasons",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Every condition of the decision with its figure, held or not.",
            ),
        ),
        migrations.AlterField(
            model_name="round",
            name="started_by",
            field=models.ForeignKey(
                blank=True,
                help_text="None where its recipe's trigger started it.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AlterField(
            model_name="roundstep",
            name="kind",
            field=models.CharField(choices=_STEP_KINDS, max_length=24),
        ),
        migrations.AlterField(
            model_name="roundstep",
            name="position",
            field=models.PositiveSmallIntegerField(
                help_text="0 answers the round's prompts; training counts from 1."
            ),
        ),
        migrations.AddField(
            model_name="roundstep",
            name="seconds_worked",
            field=models.FloatField(
                default=0.0, help_text="How long workers were busy with it; the budget of hours counts it."
            ),
        ),
        migrations.RunPython(carry_over, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="round",
            constraint=models.CheckConstraint(
                condition=Q(state__in=[name for name, _ in _ROUND_STATES]), name="round_state_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="round",
            constraint=models.UniqueConstraint(
                condition=Q(state__in=_TRAINS), fields=("project",), name="round_trains_one_at_a_time"
            ),
        ),
        migrations.AddConstraint(
            model_name="roundstep",
            constraint=models.CheckConstraint(
                condition=Q(kind__in=[name for name, _ in _STEP_KINDS]), name="step_kind_known"
            ),
        ),
    ]
