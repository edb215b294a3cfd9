"""Mark the votes of side by sides that showed the models' names as unblinded; their projects are counted again."""

from typing import Any

from django.db import migrations


def mark_unblinded(apps: Any, schema_editor: Any) -> None:
    side_by_sides = apps.get_model("training", "SideBySide").objects.filter(
        blind=False, judgment__isnull=False
    )
    judgments = apps.get_model("annotation", "Judgment").objects
    # A revision of such a vote was made by somebody who had seen the names, too.
    marked = set(side_by_sides.values_list("judgment_id", flat=True))
    later = marked
    while later:
        judgments.filter(pk__in=later).update(blind=False)
        later = set(judgments.filter(supersedes__in=later).values_list("pk", flat=True)) - marked
        marked |= later
    projects = side_by_sides.order_by().values_list("project_id", flat=True).distinct()
    apps.get_model("training", "VoteTotals").objects.filter(project__in=list(projects)).update(stale=True)


class Migration(migrations.Migration):
    dependencies = [
        ("annotation", "0016_blind_judgments"),
        ("training", "0012_not_enough_evidence"),
    ]

    operations = [migrations.RunPython(mark_unblinded, migrations.RunPython.noop)]
