from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("annotation", "0060_answers_of_parts_and_response_metadata"),
    ]

    operations = [
        migrations.AddField(
            model_name="judgment",
            name="in_bulk",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Whether it was given to several comparisons at once, from the table of comparisons.",
            ),
        ),
        migrations.AddField(
            model_name="projectquestion",
            name="categories",
            field=models.JSONField(
                blank=True,
                default=list,
                help_text="Of a question about spans: keys of the categories that it is asked of; none for all.",
            ),
        ),
    ]
