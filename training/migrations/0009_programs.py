"""Programs as annotators, and other servers."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("annotation", "0009_programs"),
        ("training", "0008_comparing"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='Judge',
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
                ('name', models.CharField(max_length=100)),
                ('template', models.TextField(help_text='What it is asked, with {guidelines}, {conversation}, {answers}.')),
                ('max_tokens', models.PositiveIntegerField(default=512, help_text='Its reply is cut off after so many.')),
                ('is_active', models.BooleanField(default=True, help_text='Whether it goes on when there is work.')),
                ('most_judgments', models.PositiveIntegerField(blank=True, help_text='It stops after so many judgments; empty sets no limit.', null=True)),
                ('most_tokens', models.PositiveBigIntegerField(blank=True, help_text='It stops once it read and wrote so many tokens; empty for no limit.', null=True)),
                ('questions', models.PositiveBigIntegerField(default=0, help_text='How often it was asked.')),
                ('prompt_tokens', models.PositiveBigIntegerField(default=0, help_text='How many tokens it read.')),
                ('completion_tokens', models.PositiveBigIntegerField(default=0, help_text='How many tokens it wrote.')),
                ('seconds', models.FloatField(default=0.0, help_text='How long its replies took.')),
            ],
            options={
                'ordering': ['-id'],
                'abstract': False,
            },
        ),
        migrations.CreateModel(
            name='JudgeVerdict',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('model', models.CharField(help_text='Its name on its server, then.', max_length=200)),
                ('template_digest', models.CharField(help_text='SHA-256 of the template.', max_length=64)),
                ('replies', models.JSONField(help_text='For each order: completion ids as shown, the reply, and its ranks or why none.')),
                ('orders_agree', models.BooleanField(help_text='Whether every order led to the same ranking.')),
                ('prompt_tokens', models.PositiveBigIntegerField(default=0)),
                ('completion_tokens', models.PositiveBigIntegerField(default=0)),
                ('seconds', models.FloatField(default=0.0)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddConstraint(
            model_name='checkpoint',
            constraint=models.CheckConstraint(
                condition=models.Q(("server_url", ""), _negated=True) | models.Q(("server_key", ""), ("server_model", "")),
                name="checkpoint_server_has_address",
            ),
        ),
        migrations.AddField(
            model_name='judge',
            name='checkpoint',
            field=models.ForeignKey(help_text='What answers for it: one of the model server, or one that names another server.', limit_choices_to={'kind__in': ('starter', 'policy')}, on_delete=django.db.models.deletion.PROTECT, related_name='judges', to='training.checkpoint'),
        ),
        migrations.AddField(
            model_name='judge',
            name='created_by',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='judge',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='judges', to='annotation.project'),
        ),
        migrations.AddField(
            model_name='judge',
            name='user',
            field=models.OneToOneField(help_text='In whose name it judges: a machine, which cannot sign in.', on_delete=django.db.models.deletion.PROTECT, related_name='judge', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddField(
            model_name='judgeverdict',
            name='checkpoint',
            field=models.ForeignKey(help_text='What answered.', on_delete=django.db.models.deletion.PROTECT, related_name='+', to='training.checkpoint'),
        ),
        migrations.AddField(
            model_name='judgeverdict',
            name='judge',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='verdicts', to='training.judge'),
        ),
        migrations.AddField(
            model_name='judgeverdict',
            name='judgment',
            field=models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, related_name='judge_verdict', to='annotation.judgment'),
        ),
        migrations.AddConstraint(
            model_name='judge',
            constraint=models.UniqueConstraint(fields=('project', 'name'), name='judge_name_once'),
        ),
        migrations.AddConstraint(
            model_name='judge',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'running', 'finished', 'failed'])), name='judge_state_known'),
        ),
        migrations.AddConstraint(
            model_name='judge',
            constraint=models.CheckConstraint(condition=models.Q(('max_tokens__gte', 1)), name='judge_may_write'),
        ),
    ]
