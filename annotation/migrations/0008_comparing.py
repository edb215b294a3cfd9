"""Votes between checkpoints."""

from typing import ClassVar

from django.db import migrations, models
from django.db.models import Q

_PURPOSES = [
    ("work", "work"),
    ("gold", "gold: its answer is known, and it is mixed in unseen"),
    ("qualification", "qualification: to be passed before real work"),
    ("arena", "arena: voted on outside the queue"),
]


class Migration(migrations.Migration):
    dependencies: ClassVar = [("annotation", "0007_the_round")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="user",
            name="is_guest",
            field=models.BooleanField(
                default=False,
                editable=False,
                help_text="Stands for a visitor of an arena, who cannot sign in.",
            ),
        ),
        migrations.AlterField(
            model_name="comparison",
            name="purpose",
            field=models.CharField(choices=_PURPOSES, default="work", max_length=15),
        ),
        migrations.RemoveConstraint(model_name="comparison", name="comparison_purpose_known"),
        migrations.AddConstraint(
            model_name="comparison",
            constraint=models.CheckConstraint(
                condition=Q(purpose__in=[key for key, _ in _PURPOSES]), name="comparison_purpose_known"
            ),
        ),
    ]
