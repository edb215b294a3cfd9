"""Existing starter checkpoints become base models, and checkpoints know theirs."""

from django.db import migrations

_PACKAGE = "SmolLM2-135M-Instruct"


def register_bases(apps, schema_editor):
    """Write down the base of every starter checkpoint; its files are inspected by the next sweep."""
    Checkpoint = apps.get_model("training", "Checkpoint")
    BaseModel = apps.get_model("training", "BaseModel")
    for starter in Checkpoint.objects.filter(kind="starter", base=None):
        origin = "server" if starter.server_url else "starter" if starter.name == _PACKAGE else "folder"
        base, _ = BaseModel.objects.get_or_create(name=starter.name, defaults={"origin": origin})
        Checkpoint.objects.filter(pk=starter.pk).update(base=base)
        if origin != "server":
            trained = Checkpoint.objects.exclude(kind="starter").filter(base=None, base_model=starter.name)
            trained.update(base=base)


class Migration(migrations.Migration):

    dependencies = [("training", "0023_base_models")]

    operations = [migrations.RunPython(register_bases, migrations.RunPython.noop)]
