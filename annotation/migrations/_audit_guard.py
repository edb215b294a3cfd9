"""What holds the audit log in the database: triggers that refuse to change or delete an entry."""

from typing import Any

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


def guard(apps: Any, schema_editor: Any) -> None:
    """Refuse both from now on."""
    is_postgres = schema_editor.connection.vendor == "postgresql"
    if not is_postgres:
        # sqlite3 takes one statement at a time.
        for statement in _SQLITE.split("END;")[:-1]:
            schema_editor.execute(statement + "END;")
    else:
        schema_editor.execute(_POSTGRES)


def unguard(apps: Any, schema_editor: Any) -> None:
    """Take the refusal away."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("DROP TRIGGER audit_never_changed ON annotation_auditentry")
        schema_editor.execute("DROP FUNCTION annotation_audit_refuse()")
    else:
        schema_editor.execute("DROP TRIGGER audit_never_changed")
        schema_editor.execute("DROP TRIGGER audit_never_deleted")
