"""Indexes of full-text search on PostgreSQL (annotation/selectors/tables/search.py). SQLite has none.

They are built concurrently, as the previous release may be serving. A build that was cut off leaves an index
that is not valid: it is dropped first, so that the migration can be run again.
"""

from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

INDEXES = {
    "annotation_prompt_words": ("annotation_prompt", "messages"),
    "annotation_completion_words": ("annotation_completion", "text"),
    "annotation_judgment_words": ("annotation_judgment", "comment"),
}


def add(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        drop(apps, schema_editor)
        for name, (table, column) in INDEXES.items():
            schema_editor.execute(
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} USING gin (to_tsvector('simple', {column}))"
            )


def drop(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    if schema_editor.connection.vendor == "postgresql":
        for name in INDEXES:
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("annotation", "0020_people_inbox")]

    operations = [migrations.RunPython(add, drop, atomic=False, elidable=False)]
