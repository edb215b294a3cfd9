"""How checkpoints are kept: exports, and how far reward models drift."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("annotation", "0007_the_round"),
        ("training", "0006_evaluations"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='CheckpointExport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('running', 'running'), ('finished', 'finished'), ('failed', 'failed')], default='waiting', max_length=10)),
                ('current', models.PositiveBigIntegerField(default=0)),
                ('total', models.PositiveBigIntegerField(default=0)),
                ('message', models.TextField(blank=True, help_text='What is being done, for people.')),
                ('error', models.TextField(blank=True, help_text='Why it failed, and what to do.')),
                ('worker', models.CharField(blank=True, help_text='Who holds the claim.', max_length=120)),
                ('heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('merged', models.BooleanField(default=False, help_text='A whole model instead of the adapter alone.')),
                ('repository', models.CharField(blank=True, help_text='Where on the hub it is pushed to; empty: it is fetched here.', max_length=200)),
                ('private', models.BooleanField(default=True, help_text='Whether a new repository is private.')),
                ('folder', models.CharField(blank=True, help_text='Where it lies; empty before and after.', max_length=200)),
                ('url', models.CharField(blank=True, help_text='Where it was pushed to.', max_length=300)),
                ('checkpoint', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='exports', to='training.checkpoint')),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ('waiting', 'running'))), fields=('checkpoint', 'merged', 'repository'), name='export_going_on_once'), models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'running', 'finished', 'failed'])), name='export_state_known')],
            },
        ),
        migrations.CreateModel(
            name='DriftFigure',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('round_number', models.PositiveIntegerField(help_text='Of the judgments.')),
                ('pairs', models.PositiveIntegerField(help_text='Decided pairs that both answers have a score in.')),
                ('held_out_pairs', models.PositiveIntegerField(help_text='Those of them on held-out prompts.')),
                ('agreeing', models.FloatField(help_text='Pairs that it orders as people do.')),
                ('prompts', models.PositiveIntegerField(help_text='How many prompts they are of.')),
                ('unscored', models.PositiveIntegerField(help_text='Pairs left out because a score is missing.')),
                ('trained_on', models.PositiveIntegerField(help_text='Pairs left out because it learned from them.')),
                ('low', models.FloatField(blank=True, help_text='Lower end of the 95 % interval of the share.', null=True)),
                ('high', models.FloatField(blank=True, null=True)),
                ('measured_at', models.DateTimeField(auto_now=True)),
                ('checkpoint', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='drift', to='training.checkpoint')),
            ],
            options={
                'ordering': ['checkpoint', 'round_number'],
                'constraints': [models.UniqueConstraint(fields=('checkpoint', 'round_number'), name='drift_figure_once'), models.CheckConstraint(condition=models.Q(('agreeing__gte', 0), ('agreeing__lte', models.F('pairs'))), name='drift_agreeing_of_pairs')],
            },
        ),
        migrations.CreateModel(
            name='DriftMeasurement',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('running', 'running'), ('finished', 'finished'), ('failed', 'failed')], default='waiting', max_length=10)),
                ('current', models.PositiveBigIntegerField(default=0)),
                ('total', models.PositiveBigIntegerField(default=0)),
                ('message', models.TextField(blank=True, help_text='What is being done, for people.')),
                ('error', models.TextField(blank=True, help_text='Why it failed, and what to do.')),
                ('worker', models.CharField(blank=True, help_text='Who holds the claim.', max_length=120)),
                ('heartbeat_at', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('started_at', models.DateTimeField(blank=True, null=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='drift_measurements', to='annotation.project')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [models.UniqueConstraint(condition=models.Q(('state__in', ('waiting', 'running'))), fields=('project',), name='drift_going_on_once'), models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'running', 'finished', 'failed'])), name='drift_state_known')],
            },
        ),
    ]
