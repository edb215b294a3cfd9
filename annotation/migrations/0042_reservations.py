from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('annotation', '0041_incomplete_projects'),
    ]

    operations = [
        migrations.AddField(
            model_name='project',
            name='has_reservations',
            field=models.BooleanField(db_default=False, default=False, editable=False, help_text='Whether comparisons were ever reserved for members: where none are, nobody pays for it.'),
        ),
    ]
