"""Files that are brought into a project, and how far each has come."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("annotation", "0010_people"),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='FileImport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='What the file was called.', max_length=255)),
                ('digest', models.CharField(help_text='SHA-256 of its content.', max_length=64)),
                ('stored_as', models.CharField(blank=True, help_text='Its name in the folder of imports; empty where it is not kept.', max_length=80)),
                ('size', models.PositiveBigIntegerField(default=0, help_text='In bytes.')),
                ('format', models.CharField(blank=True, max_length=40)),
                ('mapping', models.JSONField(blank=True, default=dict, help_text='Column of the format → column of the file.')),
                ('skip_bad', models.BooleanField(default=False, help_text='Leave bad rows out and list them, in place of refusing the file.')),
                ('state', models.CharField(choices=[('uploaded', 'uploaded: look it through'), ('waiting', 'waiting for a worker'), ('running', 'running'), ('finished', 'finished'), ('failed', 'failed')], default='uploaded', max_length=10)),
                ('rows_total', models.PositiveBigIntegerField(default=0, help_text='As far as it has been looked through.')),
                ('rows_done', models.PositiveBigIntegerField(default=0, help_text='The last row that is in the database.')),
                ('counts', models.JSONField(blank=True, default=dict, help_text='What was added.')),
                ('errors', models.JSONField(blank=True, default=list, help_text='Rows that were left out, and why: the first.')),
                ('errors_total', models.PositiveBigIntegerField(default=0)),
                ('worker', models.CharField(blank=True, max_length=120)),
                ('heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(blank=True, help_text='Who brought it in; none for a command.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='file_imports', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='file_imports', to='annotation.project')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(fields=('project', 'digest'), name='file_import_once'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['uploaded', 'waiting', 'running', 'finished', 'failed'])), name='file_import_state_known'),
                ],
            },
        ),
    ]
