"""Invitations, accounts that were deleted, and an audit log that no program changes."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.db.models import F, Q

# What an UPDATE must leave as it is, and what it may do: empty the project, or replace words and say so.
# {same} is the comparison that takes NULL for a value.
_KEPT = """
    NEW.id = OLD.id AND NEW.action = OLD.action AND NEW.created_at = OLD.created_at
    AND NEW.actor_id {same} OLD.actor_id AND NEW.subject_id {same} OLD.subject_id
    AND (
        (
            NEW.redacted_at {same} OLD.redacted_at AND NEW.subject = OLD.subject
            AND NEW.details = OLD.details
            AND (NEW.project_id {same} OLD.project_id OR NEW.project_id IS NULL)
        ) OR (
            NEW.redacted_at IS NOT NULL
            AND (OLD.redacted_at IS NULL OR NEW.redacted_at > OLD.redacted_at)
            AND NEW.project_id {same} OLD.project_id
        )
    )
"""
_WHY = "An entry of the audit log is never changed or deleted."

_SQLITE = f"""
CREATE TRIGGER audit_never_changed BEFORE UPDATE ON annotation_auditentry
WHEN NOT ({_KEPT.format(same="IS")}) BEGIN SELECT RAISE(ABORT, '{_WHY}'); END;
CREATE TRIGGER audit_never_deleted BEFORE DELETE ON annotation_auditentry
BEGIN SELECT RAISE(ABORT, '{_WHY}'); END;
"""
_POSTGRES = f"""
CREATE FUNCTION annotation_audit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND ({_KEPT.format(same="IS NOT DISTINCT FROM")}) THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '{_WHY}' USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER audit_never_changed BEFORE UPDATE OR DELETE ON annotation_auditentry
FOR EACH ROW EXECUTE FUNCTION annotation_audit_refuse();
"""


def _guard(apps, schema_editor):
    is_postgres = schema_editor.connection.vendor == "postgresql"
    if not is_postgres:
        # sqlite3 takes one statement at a time.
        for statement in _SQLITE.split("END;")[:-1]:
            schema_editor.execute(statement + "END;")
    else:
        schema_editor.execute(_POSTGRES)


def _unguard(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER audit_never_changed ON annotation_auditentry")
        schema_editor.execute("DROP FUNCTION annotation_audit_refuse()")
    else:
        schema_editor.execute("DROP TRIGGER audit_never_changed")
        schema_editor.execute("DROP TRIGGER audit_never_deleted")


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
        migrations.RunPython(_guard, _unguard),
    ]
