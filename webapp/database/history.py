"""Databases whose first migrations this release no longer brings.

Their migrations were put together into one. A database that had applied only some of the old ones would take
that one for applied and lack its tables.
"""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.recorder import MigrationRecorder

_FIRST_AND_LAST = {
    "annotation": ("0002_the_questions_and_the_work", "0015_display_lanes"),
    "training": ("0002_more_methods", "0011_workers"),
}
REMEDY = (
    "It is from before 1.0. Make a copy of it, check out commit 608ee0f in another folder, run "
    "`manage.py migrate --skip-checks` there with this database, and start this release again."
)


def unfinished_apps(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the apps of which a database has applied some of the old migrations and not all."""
    applied = set(MigrationRecorder(connection).applied_migrations())
    is_old = any((app, first) in applied for app, (first, _last) in _FIRST_AND_LAST.items())
    return [app for app, (_first, last) in _FIRST_AND_LAST.items() if is_old and (app, last) not in applied]
