"""Projects that have reserved comparisons say so."""

from django.db import migrations


def mark_projects(apps, schema_editor):
    reservations = apps.get_model("annotation", "Comparison").reserved_for.through.objects
    reserved = reservations.values("comparison__project").distinct()
    apps.get_model("annotation", "Project").objects.filter(pk__in=reserved).update(has_reservations=True)


class Migration(migrations.Migration):

    dependencies = [
        ('annotation', '0042_reservations'),
    ]

    operations = [
        migrations.RunPython(mark_projects, migrations.RunPython.noop),
    ]
