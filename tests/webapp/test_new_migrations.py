"""No new migration stops a release that still serves; each way to do so is found."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.postgres

_HEADER = """
from django.contrib.postgres.operations import AddConstraintNotValid, AddIndexConcurrently
from django.db import migrations, models
from django.db.models import Q

def move(apps, schema_editor):
    Tea = apps.get_model("{app}", "Tea")
    Tea.objects.update(minutes=2)
"""
_FIRST = """
class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel("Tea", [
            ("id", models.BigAutoField(primary_key=True)),
            ("minutes", models.IntegerField(null=True)),
            ("name", models.CharField(max_length=20)),
        ]),
    ]
"""
_SECOND = """
class Migration(migrations.Migration):
    atomic = {atomic}
    dependencies = [("{app}", "0001_initial")]
    operations = [{operations}]
"""

UNSAFE = {
    "NOT_NULL": 'migrations.AddField("Tea", "kind", models.CharField(max_length=9, default="green"))',
    "DROP_COLUMN": 'migrations.RemoveField("Tea", "name")',
    "RENAME_COLUMN": 'migrations.RenameField("Tea", "name", "title")',
    "ALTER_COLUMN": 'migrations.AlterField("Tea", "name", models.IntegerField())',
    "DROP_TABLE": 'migrations.DeleteModel("Tea")',
    "RENAME_TABLE": 'migrations.RenameModel("Tea", "Infusion")',
    "CREATE_INDEX": 'migrations.AddIndex("Tea", models.Index(fields=["name"], name="tea_name"))',
    "ADD_UNIQUE": (
        'migrations.AddConstraint("Tea", models.UniqueConstraint(fields=["name"], name="tea_once"))'
    ),
    "ADD_CONSTRAINT": (
        'migrations.AddConstraint("Tea", models.CheckConstraint(condition=Q(minutes__gt=0), name="brews"))'
    ),
    "RUNPYTHON_REVERSIBLE": "migrations.RunPython(move)",
    "RUNSQL_REVERSIBLE": 'migrations.RunSQL("UPDATE x SET y = 1")',
    "DATA_UNDER_LOCK": (
        'migrations.AddField("Tea", "cups", models.IntegerField(null=True)), '
        "migrations.RunPython(move, migrations.RunPython.noop)"
    ),
}
SAFE = [
    'migrations.AddField("Tea", "cups", models.IntegerField(null=True))',
    'migrations.AddField("Tea", "cups", models.IntegerField(db_default=1))',
    'migrations.CreateModel("Cup", [("id", models.BigAutoField(primary_key=True))])',
    'AddIndexConcurrently("Tea", models.Index(fields=["name"], name="tea_name"))',
    ('AddConstraintNotValid("Tea", models.CheckConstraint(condition=Q(minutes__gt=0), name="tea_brews"))'),
    "migrations.RunPython(move, migrations.RunPython.noop)",
]


@pytest.fixture(scope="module")
def migrations() -> ModuleType:
    spec = importlib.util.spec_from_file_location("new_migrations", ROOT / ".ci" / "migrations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_app(folder: Path, app: str, operations: str) -> None:
    """An app with a first migration that is safe, and a second with these operations."""
    package = folder / app / "migrations"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.touch()
    header = _HEADER.replace("{app}", app)
    (package / "0001_initial.py").write_text(header + _FIRST)
    atomic = "Concurrently" not in operations
    (package / "0002_second.py").write_text(
        header + _SECOND.format(app=app, atomic=atomic, operations=operations)
    )


@pytest.fixture(scope="module", autouse=True)
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """The database outside of any transaction, as migrations meet it. Nothing is written."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="module")
def faults(migrations: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The faults of all these apps, asked for at once."""
    folder = tmp_path_factory.mktemp("apps")
    apps = {f"unsafe_{code.lower()}": operations for code, operations in UNSAFE.items()}
    apps |= {f"safe_{number}": operations for number, operations in enumerate(SAFE)}
    for app, operations in apps.items():
        write_app(folder, app, operations)
    sys.path.insert(0, str(folder))
    try:
        with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, *apps]):
            messages: list[str] = migrations.faults({}, tuple(apps))
    finally:
        sys.path.remove(str(folder))
    return messages


def test_every_new_migration_can_be_applied_while_the_previous_release_serves(migrations: ModuleType):
    accepted = migrations.excuses(migrations.ACCEPTED.read_text(encoding="utf-8"))
    assert migrations.faults(accepted) == []


@pytest.mark.parametrize("code", UNSAFE)
def test_each_way_to_stop_it_is_found_with_its_remedy(migrations: ModuleType, faults: list[str], code: str):
    app = f"unsafe_{code.lower()}"
    messages = [fault for fault in faults if fault.startswith(f"{app}.0002_second: {code}: ")]
    assert len(messages) == 1
    assert migrations._REMEDIES[code] in messages[0]
    # What makes a table is safe: nobody asks for it yet.
    assert not any(fault.startswith(f"{app}.0001_initial") for fault in faults)


@pytest.mark.parametrize("number", range(len(SAFE)))
def test_what_hurts_nobody_passes(faults: list[str], number: int):
    assert [fault for fault in faults if fault.startswith(f"safe_{number}.")] == []


def test_an_acceptance_of_no_migration_is_found(migrations: ModuleType):
    (fault,) = migrations.faults({"tea.0999_gone": "it was dropped"}, ("tea",))
    assert "tea.0999_gone is no migration" in fault


def test_an_acceptance_needs_a_reason(migrations: ModuleType):
    with pytest.raises(SystemExit, match="no reason"):
        migrations.excuses("training.0011_workers\n")
