"""Two indexes go that unique constraints have in them: every import wrote them for nothing."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("annotation", "0005_what_a_page_counts"),
    ]

    operations = [
        migrations.AlterField(
            model_name="completion",
            name="prompt",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="completions",
                to="annotation.prompt",
            ),
        ),
        migrations.AlterField(
            model_name="prompt",
            name="project",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="prompts",
                to="annotation.project",
            ),
        ),
    ]
