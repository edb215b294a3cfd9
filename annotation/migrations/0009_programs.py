"""Annotators that are programs, and how often a token is used."""

from typing import ClassVar

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies: ClassVar = [("annotation", "0008_comparing")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="user",
            name="is_machine",
            field=models.BooleanField(
                default=False, editable=False, help_text="A program that judges. It cannot sign in."
            ),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=Q(is_machine=False)
                | Q(is_active=False, is_staff=False, is_superuser=False),
                name="user_machine_cannot_sign_in",
            ),
        ),
        migrations.AddField(
            model_name="apitoken",
            name="used_in_minute",
            field=models.PositiveIntegerField(
                default=0, editable=False, help_text="Requests in the minute of its last use."
            ),
        ),
        migrations.AlterField(
            model_name="apitoken",
            name="scopes",
            field=models.JSONField(
                default=list, help_text="What it may be used for: names of `TokenScope`."
            ),
        ),
    ]
