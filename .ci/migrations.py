"""Ask whether new migrations can be applied while the previous release still serves: a test of `make test`.

    DATABASE_URL=postgres://… .venv/bin/python .ci/migrations.py

The statements are those for PostgreSQL, read by django-migration-linter: columns and tables that go or
change their name while somebody still asks for them, columns that must be filled and have no default in the
database, indexes and constraints that lock a table while it is read through, types that change, data that
cannot go back. Fails on every new migration that .ci/accepted_migrations.txt does not accept by name, with
the reason.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ACCEPTED = Path(__file__).parent / "accepted_migrations.txt"
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from audit import excuses  # noqa: E402 - it lies beside this file

OURS = ("annotation", "training")
# Conventions for names inside a function, which no running release is hurt by.
_HARMLESS = {"RUNPYTHON_ARGS_NAMING_CONVENTION", "RUNPYTHON_MODEL_VARIABLE_NAME"}
_REMEDIES = {
    "NOT_NULL": "give the field a db_default, or add it with null=True and tighten it a release later",
    "DROP_COLUMN": "take the field out of the code first; drop the column in the release after",
    "DROP_TABLE": "take the model out of the code first; drop the table in the release after",
    "RENAME_COLUMN": "add the new one beside it, fill it, and drop the old one in the release after",
    "RENAME_TABLE": "keep the table's name with Meta.db_table",
    "ALTER_COLUMN": "add a column of the new type beside it, fill it, and drop the old one later",
    "ADD_UNIQUE": "build the unique index concurrently, in a migration with atomic = False",
    "CREATE_INDEX": "use AddIndexConcurrently, in a migration with atomic = False",
    "CREATE_INDEX_EXCLUSIVE": "put the index into a migration of its own, built concurrently",
    "DROP_INDEX": "use RemoveIndexConcurrently, in a migration with atomic = False",
    "ADD_CONSTRAINT": "use AddConstraintNotValid, and ValidateConstraint in the next migration",
    "RUNPYTHON_REVERSIBLE": "give RunPython a reverse_code, if only RunPython.noop",
    "RUNSQL_REVERSIBLE": "give RunSQL a reverse_sql",
    "DATA_UNDER_LOCK": "put the data into a migration of its own, after that of the schema",
}


def main() -> None:
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    django.setup()
    if found := faults(excuses(ACCEPTED.read_text(encoding="utf-8"))):
        sys.exit("\n".join(found))
    print("Every new migration can be applied while the previous release serves.")


def faults(accepted: dict[str, str], apps: tuple[str, ...] = OURS) -> list[str]:
    """What has to be done, one line each: migrations to change or to accept, acceptances to take out."""
    from django_migration_linter import MigrationLinter

    linter = MigrationLinter(no_cache=True, no_output=True, analyser_string="postgresql")
    on_disk = linter.migration_loader.disk_migrations
    # One that replaces others is for new installations alone, and what it replaces was asked when it came.
    replaced = {name for migration in on_disk.values() for name in migration.replaces}
    ours = {
        f"{app}.{name}": migration
        for (app, name), migration in sorted(on_disk.items())
        if app in apps and not migration.replaces and (app, name) not in replaced
    }
    found = [
        f"{ACCEPTED.name}: {name} is no migration. Take the line out."
        for name in accepted
        if name not in ours
    ]
    for name, migration in ours.items():
        if name not in accepted:
            found += [f"{name}: {code}: {_said(code, what)}." for code, what in _issues(linter, migration)]
    return found


def _issues(linter: Any, migration: Any) -> list[tuple[str, str]]:
    """Code and description of everything about one migration that is not safe."""
    try:
        statements = _statements(linter.migration_loader, migration)
    except Exception as error:  # the database stands where the migration was applied already
        return [("UNKNOWN", f"its statements cannot be told ({error}); look at them by hand and accept it")]
    analyser = linter.sql_analyser_class([])
    analyser.analyse(statements)
    errors, _, warnings = linter.analyse_data_migration(migration)
    told = [*analyser.errors, *analyser.warnings, *errors, *warnings]
    issues = {one.code: f"{one.message}{f' ({one.table})' if one.table else ''}" for one in told}
    if table := _constrained_table(statements):
        issues["ADD_CONSTRAINT"] = f"ADDING a constraint reads {table} through under a lock"
    if _moves_data_under_lock(migration):
        issues["DATA_UNDER_LOCK"] = "RunPython or RunSQL in one transaction with changes of the schema"
    return [(code, what) for code, what in issues.items() if code not in _HARMLESS]


def _statements(loader: Any, migration: Any) -> list[str]:
    """What `sqlmigrate` prints, without reading all migrations anew for each."""
    told: list[str] = loader.collect_sql([(loader.graph.nodes[migration.app_label, migration.name], False)])
    return ["BEGIN;", *told, "COMMIT;"] if migration.atomic else told


def _constrained_table(statements: list[str]) -> str:
    """A table that is not new and gets a constraint which is checked at once; "" where there is none."""
    new = {found[1] for one in statements if (found := re.match(r'CREATE TABLE "(.+?)"', one))}
    for one in statements:
        found = re.match(r'ALTER TABLE "(.+?)" ADD CONSTRAINT .*?(?:CHECK|FOREIGN KEY)', one)
        if found and found[1] not in new and "NOT VALID" not in one:
            return found[1]
    return ""


def _moves_data_under_lock(migration: Any) -> bool:
    from django.db.migrations import RunPython, RunSQL

    moves = [isinstance(one, RunPython | RunSQL) for one in migration.operations]
    return migration.atomic and any(moves) and not all(moves)


def _said(code: str, what: str) -> str:
    return f"{what}; {_REMEDIES[code]}" if code in _REMEDIES else what


if __name__ == "__main__":
    main()
