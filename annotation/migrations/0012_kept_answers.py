import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("annotation", "0011_transfers")]

    operations = [
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("key", models.CharField(help_text="As the program sent it.", max_length=200)),
                ("fingerprint", models.CharField(help_text="SHA-256 of method, address and body.", max_length=64)),
                ("status", models.PositiveSmallIntegerField(default=0, help_text="0 until the request is answered.")),
                ("body", models.TextField(blank=True, help_text="The answer as JSON.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["created_at"], name="kept_answer_by_age")],
                "constraints": [models.UniqueConstraint(fields=("user", "key"), name="kept_answer_key_once")],
            },
        ),
    ]
