"""How checkpoints are compared."""

import uuid
from typing import ClassVar

import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

import training.models.comparing


class Migration(migrations.Migration):
    dependencies: ClassVar = [
        ("annotation", "0008_comparing"),
        ("training", "0007_registry"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name="VoteLedger",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("counted_up_to", models.PositiveBigIntegerField(default=0)),
                (
                    "holes",
                    models.JSONField(
                        default=list, help_text="Lists of first id, last id, and when it was seen first."
                    ),
                ),
                ("updated_at", models.DateTimeField(auto_now=True)),
            ],
        ),
        migrations.CreateModel(
            name="ArenaLink",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="What voters read; say nothing of the models.", max_length=120
                    ),
                ),
                (
                    "slug",
                    models.CharField(
                        default=training.models.comparing.secret_slug, max_length=40, unique=True
                    ),
                ),
                ("prompts", models.PositiveIntegerField(help_text="How many held-out prompts are asked.")),
                ("sampling", models.JSONField(help_text="temperature, top_p, max_tokens.")),
                (
                    "for_guests",
                    models.BooleanField(
                        default=False, help_text="Whether visitors without an account may vote."
                    ),
                ),
                (
                    "most_votes",
                    models.PositiveIntegerField(
                        blank=True, help_text="Then it ends; empty: never.", null=True
                    ),
                ),
                ("votes", models.PositiveIntegerField(default=0)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                ("closed_at", models.DateTimeField(blank=True, null=True)),
                (
                    "prepared_at",
                    models.DateTimeField(blank=True, help_text="When all answers were there.", null=True),
                ),
                ("progress", models.TextField(blank=True, help_text="How far the answers are, for people.")),
                (
                    "heartbeat_at",
                    models.DateTimeField(blank=True, help_text="When a worker last wrote to it.", null=True),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("checkpoints", models.ManyToManyField(related_name="arenas", to="training.checkpoint")),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="arenas",
                        to="annotation.project",
                    ),
                ),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="ArenaPair",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "models_key",
                    models.CharField(help_text="Ids of the two sources, the lower first.", max_length=50),
                ),
                ("given", models.PositiveIntegerField(default=0, help_text="How often it was shown.")),
                ("given_left_first", models.PositiveIntegerField(default=0)),
                (
                    "arena",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="pairs",
                        to="training.arenalink",
                    ),
                ),
                (
                    "comparison",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.comparison",
                    ),
                ),
                (
                    "left",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.completion",
                    ),
                ),
                (
                    "right",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.completion",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ArenaBallot",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "display_order",
                    models.JSONField(help_text="Completion ids in the order in which they are shown."),
                ),
                ("given_at", models.DateTimeField(default=django.utils.timezone.now)),
                (
                    "judgment",
                    models.OneToOneField(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="ballot",
                        to="annotation.judgment",
                    ),
                ),
                (
                    "voter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="ballots",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "pair",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="ballots",
                        to="training.arenapair",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="EloPoints",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("points", models.FloatField()),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="elo_points",
                        to="annotation.project",
                    ),
                ),
                (
                    "source",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.completionsource",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "Elo points",
            },
        ),
        migrations.CreateModel(
            name="SideBySide",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "slug",
                    models.CharField(
                        default=training.models.comparing.secret_slug, max_length=40, unique=True
                    ),
                ),
                ("messages", models.JSONField(help_text="The chat as it stood, without context passages.")),
                (
                    "shared",
                    models.BooleanField(
                        default=True,
                        help_text="Whether all answer the same chat; conversations that parted do not.",
                    ),
                ),
                ("sampling", models.JSONField(help_text="temperature, top_p, max_tokens.")),
                ("seed", models.PositiveBigIntegerField()),
                ("blind", models.BooleanField(default=False, help_text="Names are hidden until the vote.")),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "continues",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="continued_by",
                        to="training.sidebyside",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "judgment",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="annotation.judgment",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="side_by_sides",
                        to="annotation.project",
                    ),
                ),
                (
                    "prompt",
                    models.ForeignKey(
                        blank=True,
                        help_text="The project's prompt that was asked; none for a typed one until somebody votes.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="annotation.prompt",
                    ),
                ),
                (
                    "scorer",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="training.checkpoint",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "side by sides",
                "ordering": ["-id"],
            },
        ),
        migrations.CreateModel(
            name="SideBySideAnswer",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("position", models.PositiveSmallIntegerField()),
                ("messages", models.JSONField(help_text="The chat that it answers.")),
                ("text", models.TextField(blank=True)),
                ("seed", models.PositiveBigIntegerField(blank=True, null=True)),
                ("finish_reason", models.CharField(blank=True, max_length=20)),
                ("token_count", models.PositiveIntegerField(blank=True, null=True)),
                ("seconds", models.FloatField(blank=True, null=True)),
                ("score", models.FloatField(blank=True, null=True)),
                (
                    "heads",
                    models.JSONField(
                        blank=True, default=dict, help_text="Head → what it says of the whole answer."
                    ),
                ),
                (
                    "segments",
                    models.JSONField(
                        blank=True,
                        default=dict,
                        help_text="Head → lists of start, end, reward; in code points.",
                    ),
                ),
                (
                    "token_kl",
                    models.JSONField(blank=True, default=list, help_text="Lists of start, end, KL (k1)."),
                ),
                ("written_at", models.DateTimeField(blank=True, null=True)),
                (
                    "checkpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="training.checkpoint",
                    ),
                ),
                (
                    "side_by_side",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="answers",
                        to="training.sidebyside",
                    ),
                ),
            ],
            options={
                "ordering": ["side_by_side", "position"],
            },
        ),
        migrations.CreateModel(
            name="VoteCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "slice",
                    models.CharField(
                        choices=[
                            ("all", "all votes"),
                            ("round", "round"),
                            ("tag", "tag"),
                            ("arena", "arena"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "value",
                    models.CharField(blank=True, help_text="The round's number, or the tag.", max_length=200),
                ),
                (
                    "voters",
                    models.CharField(
                        choices=[
                            ("people", "people with an account"),
                            ("guests", "guests of an arena"),
                            ("models", "models that judge"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "length_difference",
                    models.SmallIntegerField(
                        default=0,
                        help_text="By how much the left answer is longer: (l − r) / (l + r) in tenths.",
                    ),
                ),
                (
                    "left_first",
                    models.BooleanField(default=True, help_text="Whether the left answer was shown before."),
                ),
                ("wins", models.PositiveIntegerField(default=0, help_text="Of the left one.")),
                ("losses", models.PositiveIntegerField(default=0)),
                ("ties", models.PositiveIntegerField(default=0, help_text="Equal or both good.")),
                (
                    "both_bad",
                    models.PositiveIntegerField(default=0, help_text="Ties because neither was any good."),
                ),
                (
                    "left",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.completionsource",
                    ),
                ),
                (
                    "project",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="vote_counts",
                        to="annotation.project",
                    ),
                ),
                (
                    "right",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="annotation.completionsource",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="VoteTotals",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "version",
                    models.PositiveBigIntegerField(
                        default=0, help_text="Grows with every change of a count."
                    ),
                ),
                (
                    "stale",
                    models.BooleanField(default=False, help_text="Tags changed: the next sweep counts anew."),
                ),
                (
                    "project",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="vote_totals",
                        to="annotation.project",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "vote totals",
            },
        ),
        migrations.AddConstraint(
            model_name="arenalink",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("most_votes__isnull", True), ("votes__lte", models.F("most_votes")), _connector="OR"
                ),
                name="arena_votes_within_limit",
            ),
        ),
        migrations.AddConstraint(
            model_name="arenapair",
            constraint=models.UniqueConstraint(fields=("arena", "comparison"), name="arena_pair_once"),
        ),
        migrations.AddIndex(
            model_name="arenaballot",
            index=models.Index(fields=["voter", "given_at"], name="ballot_by_voter"),
        ),
        migrations.AddConstraint(
            model_name="arenaballot",
            constraint=models.UniqueConstraint(fields=("pair", "voter"), name="arena_pair_once_per_voter"),
        ),
        migrations.AddConstraint(
            model_name="elopoints",
            constraint=models.UniqueConstraint(fields=("project", "source"), name="elo_once"),
        ),
        migrations.AddConstraint(
            model_name="sidebysideanswer",
            constraint=models.UniqueConstraint(
                fields=("side_by_side", "position"), name="side_by_side_place_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="votecount",
            constraint=models.UniqueConstraint(
                fields=(
                    "project",
                    "slice",
                    "value",
                    "voters",
                    "left",
                    "right",
                    "length_difference",
                    "left_first",
                ),
                name="vote_count_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="votecount",
            constraint=models.CheckConstraint(
                condition=models.Q(("left__lt", models.F("right"))), name="vote_count_lower_is_left"
            ),
        ),
        migrations.AddConstraint(
            model_name="votecount",
            constraint=models.CheckConstraint(
                condition=models.Q(("slice__in", ["all", "round", "tag", "arena"])),
                name="vote_count_slice_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="votecount",
            constraint=models.CheckConstraint(
                condition=models.Q(("voters__in", ["people", "guests", "models"])),
                name="vote_count_voters_known",
            ),
        ),
    ]
