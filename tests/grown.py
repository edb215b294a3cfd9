"""Installations that took the migrations one by one: those older than the ones that replace all of them.

    python -m tests.grown [APP MIGRATION]...

applies them to the database of the environment, up to the ones named, or all.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from django.db.migrations.loader import MigrationLoader


@contextmanager
def one_by_one() -> Iterator[None]:
    """Within it, Django finds every migration but those that replace others."""
    load_disk = MigrationLoader.load_disk

    def load(loader: Any) -> None:
        load_disk(loader)
        found = loader.disk_migrations
        last = {name: migration.replaces[-1] for name, migration in found.items() if migration.replaces}
        loader.disk_migrations = {name: migration for name, migration in found.items() if name not in last}
        for migration in loader.disk_migrations.values():
            # What comes after one that replaces others comes after the last of those.
            migration.dependencies = [last.get(name, name) for name in migration.dependencies]

    with patch.object(MigrationLoader, "load_disk", load):
        yield


def main() -> None:
    import django
    from django.core.management import call_command

    os.environ["DJANGO_SETTINGS_MODULE"] = "webapp.settings"
    django.setup()
    targets: list[tuple[str, ...]] = [*zip(sys.argv[1::2], sys.argv[2::2], strict=True)] or [()]
    with one_by_one():
        for target in targets:
            call_command("migrate", *target, verbosity=0, skip_checks=True)


if __name__ == "__main__":
    main()
