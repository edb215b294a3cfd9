"""Rounds and runs of the launchers `slurm` and `kubernetes` are submitted by commands from now on.

Handles stay what they were, a job's number or name, so that the guide's programs find jobs that still run.
Runs that have finished and jobs that have ended keep the name of the launcher that ran them.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

_REMOVED = ("slurm", "kubernetes")
_LIVE = ("submitting", "waiting", "running")


def use_commands(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Set the launcher of recipes, of runs and of live jobs to `command`."""
    for round_ in apps.get_model("training", "Round").objects.filter(recipe__compute__launcher__in=_REMOVED):
        round_.recipe["compute"]["launcher"] = "command"
        round_.save(update_fields=["recipe"])
    runs = apps.get_model("training", "Run").objects.filter(resources__launcher__in=_REMOVED)
    for run in runs.exclude(state="finished"):
        run.resources["launcher"] = "command"
        run.save(update_fields=["resources"])
    launches = apps.get_model("training", "Launch").objects
    launches.filter(launcher__in=_REMOVED, state__in=_LIVE).update(launcher="command")


class Migration(migrations.Migration):
    dependencies = [("training", "0026_one_checkpoint_twice")]

    operations = [migrations.RunPython(use_commands, migrations.RunPython.noop, elidable=True)]
