"""An operation that makes all tables of an app at once."""

from collections.abc import Sequence
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState


class CreateTables(Operation):
    """Create these models, whichever refers to whichever.

    After each `CreateModel` of its own Django would build the classes of all related models again: with a
    hundred models, ten seconds of an installation's first start.
    """

    reduces_to_sql = True
    reversible = True

    def __init__(self, models: Sequence[CreateModel]) -> None:
        self.models = models

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        """Return the name and the arguments that make this operation again."""
        return type(self).__name__, [], {"models": self.models}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """Add the models to `state`; their classes are built when somebody asks for them."""
        vars(state).pop("apps", None)
        for model in self.models:
            model.state_forwards(app_label, state)

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Create the tables. Foreign keys are added behind them all, where a database minds their order."""
        for model in self.models:
            created = to_state.apps.get_model(app_label, model.name)
            if self.allow_migrate_model(schema_editor.connection.alias, created):
                schema_editor.create_model(created)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Drop the tables, the last one first."""
        for model in reversed(self.models):
            dropped = from_state.apps.get_model(app_label, model.name)
            if self.allow_migrate_model(schema_editor.connection.alias, dropped):
                schema_editor.delete_model(dropped)

    def describe(self) -> str:
        """Name the models."""
        return f"Create {len(self.models)} models"
