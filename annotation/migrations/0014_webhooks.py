"""Webhooks: addresses that are told of events, the messages, and how each was delivered."""

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('annotation', '0013_order_of_marks'),
    ]

    operations = [
        migrations.CreateModel(
            name='WebhookDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('delivered', 'delivered'), ('given_up', 'given up')], default='waiting', max_length=10)),
                ('tries_left', models.PositiveSmallIntegerField(default=10)),
                ('next_attempt_at', models.DateTimeField(blank=True, help_text='When it is due; while a worker has it, when that claim ends.', null=True)),
                ('worker', models.CharField(blank=True, help_text='Who holds the claim.', max_length=120)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
            ],
            options={
                'verbose_name_plural': 'webhook deliveries',
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='project',
            name='has_webhooks',
            field=models.BooleanField(default=False, editable=False, help_text='Whether a webhook is switched on: who has none pays nothing for them.'),
        ),
        migrations.CreateModel(
            name='WebhookAttempt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('started_at', models.DateTimeField()),
                ('milliseconds', models.PositiveIntegerField(help_text='From the first look at the name to the answer.')),
                ('status', models.PositiveSmallIntegerField(blank=True, help_text='HTTP; none where none came.', null=True)),
                ('error', models.TextField(blank=True, help_text='Why it failed; empty where it succeeded.')),
                ('answer', models.TextField(blank=True, help_text='The beginning of what the receiver answered, as untrusted as any such text.')),
                ('delivery', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='attempts', to='annotation.webhookdelivery')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(help_text='Where messages are sent.', max_length=500)),
                ('description', models.CharField(blank=True, help_text='What it is for.', max_length=200)),
                ('events', models.JSONField(default=list, help_text='What it is told of: names of `WebhookEvent`.')),
                ('is_enabled', models.BooleanField(default=True)),
                ('why_disabled', models.CharField(blank=True, choices=[('failing', 'nothing could be delivered for days'), ('gone', 'its receiver said that it is gone for good (410)')], help_text='Why Rondo switched it off; empty where a person did.', max_length=10)),
                ('secret', models.TextField(editable=False, help_text='Sealed. Signs every message.')),
                ('previous_secret', models.TextField(blank=True, editable=False, help_text='Sealed. Signs beside the new one until receivers know that.')),
                ('previous_secret_until', models.DateTimeField(blank=True, null=True)),
                ('failures', models.PositiveIntegerField(default=0, help_text='Attempts that failed since one succeeded.')),
                ('failing_since', models.DateTimeField(blank=True, help_text='When the first of them failed.', null=True)),
                ('rests_until', models.DateTimeField(blank=True, help_text='Until then nothing is sent, so that others need not wait for it.', null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='webhooks', to=settings.AUTH_USER_MODEL)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhooks', to='annotation.project')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='webhookdelivery',
            name='endpoint',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='annotation.webhookendpoint'),
        ),
        migrations.CreateModel(
            name='WebhookMessage',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(help_text='`webhook-id`: the same however often it is sent.', max_length=40, unique=True)),
                ('event', models.CharField(help_text='A name of `WebhookEvent`, or `webhook.test`.', max_length=40)),
                ('body', models.TextField(help_text='JSON, as it is signed and sent.')),
                ('created_at', models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                ('project', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='webhook_messages', to='annotation.project')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='webhookdelivery',
            name='message',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='annotation.webhookmessage'),
        ),
        migrations.AddConstraint(
            model_name='webhookendpoint',
            constraint=models.CheckConstraint(condition=models.Q(('why_disabled__in', ['', 'failing', 'gone'])), name='webhook_why_disabled_known'),
        ),
        migrations.AddConstraint(
            model_name='webhookendpoint',
            constraint=models.CheckConstraint(condition=models.Q(('is_enabled', False), ('why_disabled', ''), _connector='OR'), name='webhook_enabled_has_no_reason'),
        ),
        migrations.AddConstraint(
            model_name='webhookendpoint',
            constraint=models.CheckConstraint(condition=models.Q(('previous_secret', ''), ('previous_secret_until__isnull', False), _connector='OR'), name='webhook_previous_secret_ends'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(fields=['endpoint', '-id'], name='webhook_delivery_by_endpoint'),
        ),
        migrations.AddIndex(
            model_name='webhookdelivery',
            index=models.Index(condition=models.Q(('state', 'waiting')), fields=['next_attempt_at'], name='webhook_delivery_due'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.UniqueConstraint(fields=('message', 'endpoint'), name='webhook_delivery_once'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['waiting', 'delivered', 'given_up'])), name='webhook_delivery_state_known'),
        ),
        migrations.AddConstraint(
            model_name='webhookdelivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('next_attempt_at__isnull', False), ('state', 'waiting')), models.Q(models.Q(('state', 'waiting'), _negated=True), ('next_attempt_at__isnull', True)), _connector='OR'), name='webhook_delivery_waiting_is_due'),
        ),
    ]
