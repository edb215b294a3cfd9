"""The verdict on a round, the reason that a person gave, and the state of a round without enough evidence."""

from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('annotation', '0001_initial'),
        ('training', '0001_initial'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name='round',
            name='round_state_known',
        ),
        migrations.AddField(
            model_name='round',
            name='decision_note',
            field=models.TextField(blank=True, db_default='', default='', help_text='Why a person promoted or rejected the new policy; empty without a person.'),
        ),
        migrations.AddField(
            model_name='round',
            name='verdict',
            field=models.CharField(blank=True, choices=[('promote', 'promote'), ('reject', 'reject'), ('not_enough_evidence', 'not enough evidence')], db_default='', default='', help_text='What the evidence supports; empty before the evaluation.', max_length=24),
        ),
        migrations.AlterField(
            model_name='evaluatedprompt',
            name='figures',
            field=models.JSONField(blank=True, default=dict, help_text="`reward`, `heads`, `rules` as pairs, the parent's first; `kl` of the new one; `noise`."),
        ),
        migrations.AlterField(
            model_name='round',
            name='state',
            field=models.CharField(choices=[('draft', 'draft'), ('sampling', 'sampling'), ('labelling', 'labelling'), ('training_reward_models', 'training reward models'), ('training_policy', 'training policy'), ('evaluating', 'evaluating'), ('deciding', 'deciding'), ('promoted', 'promoted'), ('rejected', 'rejected'), ('not_enough_evidence', 'not enough evidence'), ('paused', 'paused'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='draft', max_length=24),
        ),
        migrations.AddConstraint(
            model_name='round',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['draft', 'sampling', 'labelling', 'training_reward_models', 'training_policy', 'evaluating', 'deciding', 'promoted', 'rejected', 'not_enough_evidence', 'paused', 'failed', 'cancelled'])), name='round_state_known'),
        ),
    ]
