"""Invitations, accounts that were deleted, and an audit log that no program changes."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q

from annotation.migrations._audit_guard import guard, unguard

ROLES = [("annotator", "annotator"), ("reviewer", "reviewer"), ("manager", "manager")]


class Migration(migrations.Migration):
    dependencies: ClassVar = [("annotation", "0009_programs")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="Invitation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("role", models.CharField(choices=ROLES, default="annotator", max_length=20)),
                (
                    "note",
                    models.CharField(
                        blank=True, help_text="Whom it is for, to tell one from another.", max_length=100
                    ),
                ),
                (
                    "digest",
                    models.CharField(
                        editable=False, help_text="SHA-256 of the secret.", max_length=64, unique=True
                    ),
                ),
                ("uses", models.PositiveIntegerField(default=0, help_text="How many people joined by it.")),
                ("most_uses", models.PositiveIntegerField(default=1, help_text="How many may.")),
                ("expires_at", models.DateTimeField()),
                ("revoked_at", models.DateTimeField(blank=True, null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="invitations",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="invitations",
                        to="annotation.project",
                    ),
                ),
            ],
            options={"ordering": ["-id"]},
        ),
        migrations.AddConstraint(
            model_name="invitation",
            constraint=models.CheckConstraint(
                condition=Q(uses__lte=F("most_uses"), most_uses__gte=1), name="invitation_not_overused"
            ),
        ),
        migrations.AddConstraint(
            model_name="invitation",
            constraint=models.CheckConstraint(
                condition=Q(role__in=["annotator", "reviewer", "manager"]), name="invitation_role_known"
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="erased_at",
            field=models.DateTimeField(
                blank=True,
                editable=False,
                help_text="When this person had their account deleted; the row stays as the author of judgments.",
                null=True,
            ),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=Q(erased_at__isnull=True)
                | Q(
                    is_active=False,
                    is_staff=False,
                    is_superuser=False,
                    first_name="",
                    last_name="",
                    email="",
                ),
                name="user_erased_has_no_name",
            ),
        ),
        migrations.AddField(
            model_name="auditentry",
            name="redacted_at",
            field=models.DateTimeField(
                blank=True,
                help_text="When a name in its words was replaced, since that person left.",
                null=True,
            ),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["action", "-id"], name="audit_by_action"),
        ),
        migrations.RunPython(guard, unguard),
    ]
