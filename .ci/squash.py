"""Write one migration an app that makes all its tables at once: part of a release.

    .venv/bin/python .ci/squash.py

The tables are those of the models after the newest migration. What has to be done with data is not done, as
a new installation has none, but for `KEPT`. The last such migration of the app is removed: it was a shortcut
past migrations that the new one replaces, too.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

OURS = ("annotation", "training")
KEPT = {
    "annotation": (
        "from annotation.migrations._audit_guard import guard, unguard\n"
        "from annotation.migrations._search_indexes import add_search_indexes, drop_search_indexes\n",
        "        migrations.RunPython(guard, unguard),\n"
        "        migrations.RunPython(add_search_indexes, drop_search_indexes),\n",
    )
}
"""By app: imports and operations of what belongs to new tables and is in no model."""


def main() -> None:
    import django
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    django.setup()
    loader = MigrationLoader(connection, replace_migrations=False)
    for app in OURS:
        _write(app, loader)


def _write(app: str, loader: Any) -> None:
    from django.db import migrations
    from django.db.migrations.writer import MigrationWriter

    from annotation.migrations._tables import CreateTables

    folder = ROOT / app / "migrations"
    ours = {name for own, name in loader.disk_migrations if own == app}
    single = sorted(name for name in ours if "_tables_until_" not in name)
    state = loader.project_state((app, single[-1]))
    tables = [
        migrations.CreateModel(
            name=model.name,
            fields=list(model.fields.items()),
            options=model.options,
            bases=model.bases,
            managers=model.managers,
        )
        for (own, _name), model in sorted(state.models.items())
        if own == app
    ]
    elsewhere = sorted(
        {
            parent
            for name in single
            for parent in loader.disk_migrations[app, name].dependencies
            if parent[0] != app and parent[0] != "__setting__"
        }
    )
    last = {own: max(name for other, name in elsewhere if other == own) for own, _ in elsewhere}
    number = single[-1][:4]
    name = f"0001_tables_until_{number}"
    attributes = {
        "operations": [CreateTables(tables)],
        "replaces": [(app, replaced) for replaced in single],
        "initial": True,
        "dependencies": sorted(last.items()),
    }
    migration = type("Migration", (migrations.Migration,), attributes)(name, app)
    text = MigrationWriter(migration, include_header=False).as_string()
    imports, operations = KEPT.get(app, ("", ""))
    text = re.sub(r"annotation\.migrations\._tables\.CreateTables\(", "CreateTables(", text)
    text = text.replace("import annotation.migrations._tables\n", "")
    text = text.replace(
        "\n\nclass Migration",
        f"\n{imports}from annotation.migrations._tables import CreateTables\n\n\nclass Migration",
        1,
    )
    head, _, tail = text.rpartition("    ]\n")
    text = f"{head}{operations}    ]\n{tail}"
    docstring = (
        f'"""The tables of `{app}` up to {number}, made at once in a new installation.\n\n'
        "Its name comes after that of 0001_initial: Django takes the first of an app by name for the one\n"
        'that others of its apps depend on, also where those before are applied one by one.\n"""\n\n'
    )
    for earlier in folder.glob("0001_tables_until_*.py"):
        earlier.unlink()
    (folder / f"{name}.py").write_text(docstring + text, encoding="utf-8")


if __name__ == "__main__":
    main()
