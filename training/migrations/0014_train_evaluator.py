"""The step of a round that trains a second reward model."""

from django.db import migrations, models

_KINDS = [
    ('answer_prompts', 'generate responses'),
    ('freeze_snapshot', 'freeze snapshot'),
    ('train_reward_model', 'train reward model'),
    ('train_evaluator', 'train second reward model'),
    ('train_policy', 'train policy'),
    ('register_checkpoints', 'register checkpoints'),
    ('evaluate', 'evaluate'),
    ('decide', 'decide'),
]


class Migration(migrations.Migration):

    dependencies = [
        ('training', '0013_unblinded_votes'),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='roundstep',
            name='step_kind_known',
        ),
        migrations.AlterField(
            model_name='roundstep',
            name='kind',
            field=models.CharField(choices=_KINDS, max_length=24),
        ),
        migrations.AddConstraint(
            model_name='roundstep',
            constraint=models.CheckConstraint(condition=models.Q(('kind__in', [kind for kind, _ in _KINDS])), name='step_kind_known'),
        ),
    ]
