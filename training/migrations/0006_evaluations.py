"""What was found of a checkpoint."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("annotation", "0007_the_round"),
        ("training", "0005_life_of_a_round"),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='Evaluation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(help_text='SHA-256 of how both were asked and by what judged.', max_length=64)),
                ('settings', models.JSONField(help_text='What the digest is of.')),
                ('prompts', models.JSONField(help_text='Ids of the held-out prompts, as they were chosen at the beginning.')),
                ('figures', models.JSONField(blank=True, default=dict, help_text='What came of it; empty until finished.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('checkpoint', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='evaluations', to='training.checkpoint')),
                ('parent', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='evaluations_of_children', to='training.checkpoint')),
                ('reward_model', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='evaluations_by_it', to='training.checkpoint')),
                ('round', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='evaluations', to='training.round')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='EvaluatedPrompt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('figures', models.JSONField(blank=True, default=dict, help_text="`reward`, `heads` and `rules` as pairs, the parent's first; `kl` of the checkpoint's.")),
                ('new', models.ForeignKey(help_text="The checkpoint's.", on_delete=django.db.models.deletion.CASCADE, related_name='+', to='annotation.completion')),
                ('old', models.ForeignKey(help_text="The parent's answer.", on_delete=django.db.models.deletion.CASCADE, related_name='+', to='annotation.completion')),
                ('prompt', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='annotation.prompt')),
                ('evaluation', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='rows', to='training.evaluation')),
            ],
            options={
                'ordering': ['evaluation', 'id'],
            },
        ),
        migrations.AddConstraint(
            model_name='evaluation',
            constraint=models.UniqueConstraint(fields=('checkpoint', 'parent', 'digest'), name='evaluation_once'),
        ),
        migrations.AddConstraint(
            model_name='evaluation',
            constraint=models.CheckConstraint(condition=models.Q(('checkpoint', models.F('parent')), _negated=True), name='evaluation_against_another'),
        ),
        migrations.AddConstraint(
            model_name='evaluatedprompt',
            constraint=models.UniqueConstraint(fields=('evaluation', 'prompt'), name='evaluated_prompt_once'),
        ),
    ]
