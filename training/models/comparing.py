"""Comparisons of checkpoints: counted votes, answers side by side, arenas."""

import secrets
import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from annotation.choices import Cap, JobState
from annotation.models.jobs import Claimable
from annotation.text.identity import shortened
from training.models.checkpoints import Checkpoint

_SLUG_BYTES = 18


def secret_slug() -> str:
    """Return an unguessable part of an address: 144 bits."""
    return secrets.token_urlsafe(_SLUG_BYTES)


class Slice(models.TextChoices):
    """The part of a project's votes that a count covers."""

    ALL = "all", _("all votes")
    ROUND = "round", _("round")
    TAG = "tag", _("tag")
    ARENA = "arena", _("arena")


class Voters(models.TextChoices):
    """The kind of voters."""

    PEOPLE = "people", _("people with an account")
    GUESTS = "guests", _("guests of an arena")
    MODELS = "models", _("models that judge")


class VoteLedger(models.Model):
    """Record of the judgments that are counted: all up to `counted_up_to`, except those in `holes`. One row.

    Ids are drawn before a transaction commits, so a lower one may become visible after a higher one. Every
    missing stretch of ids is a hole, which is checked again until no transaction can still fill it.
    """

    counted_up_to = models.PositiveBigIntegerField(default=0)
    holes = models.JSONField(
        default=list, help_text="Lists of first id, last id, and when it was seen first."
    )
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return f"Counted up to judgment {self.counted_up_to}"


class VoteTotals(models.Model):
    """One project's count state: number of changes, and whether a recount is due."""

    project = models.OneToOneField("annotation.Project", on_delete=models.CASCADE, related_name="vote_totals")
    version = models.PositiveBigIntegerField(default=0, help_text="Grows with every change of a count.")
    stale = models.BooleanField(default=False, help_text="Tags changed: the next sweep counts anew.")

    class Meta:
        verbose_name_plural = "vote totals"

    def __str__(self) -> str:
        return f"Votes of {self.project}"


class VoteCount(models.Model):
    """Wins, losses and ties of one source against another, in one slice of a project's votes.

    Only slice ALL distinguishes length and position; in the others they are 0 and true.
    """

    # No separate index: the constraint begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="vote_counts", db_index=False
    )
    slice = models.CharField(max_length=10, choices=Slice)
    value = models.CharField(max_length=200, blank=True, help_text="The round's number, or the tag.")
    voters = models.CharField(max_length=10, choices=Voters)
    left = models.ForeignKey("annotation.CompletionSource", on_delete=models.CASCADE, related_name="+")
    right = models.ForeignKey("annotation.CompletionSource", on_delete=models.CASCADE, related_name="+")
    length_difference = models.SmallIntegerField(
        default=0, help_text="By how much the left answer is longer: (l − r) / (l + r) in tenths."
    )
    left_first = models.BooleanField(default=True, help_text="Whether the left answer was shown before.")
    wins = models.PositiveIntegerField(default=0, help_text="Of the left one.")
    losses = models.PositiveIntegerField(default=0)
    ties = models.PositiveIntegerField(default=0, help_text="Equal or both good.")
    both_bad = models.PositiveIntegerField(default=0, help_text="Ties because neither was any good.")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    *("project", "slice", "value", "voters", "left", "right"),
                    *("length_difference", "left_first"),
                ],
                name="vote_count_once",
            ),
            models.CheckConstraint(condition=Q(left__lt=F("right")), name="vote_count_lower_is_left"),
            models.CheckConstraint(condition=Q(slice__in=Slice.values), name="vote_count_slice_known"),
            models.CheckConstraint(condition=Q(voters__in=Voters.values), name="vote_count_voters_known"),
        ]

    def __str__(self) -> str:
        return f"{self.left} : {self.right} in {self.project}"


class EloPoints(models.Model):
    """One source's online Elo in one project, over all votes of people in order of arrival."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="elo_points")
    source = models.ForeignKey("annotation.CompletionSource", on_delete=models.CASCADE, related_name="+")
    points = models.FloatField()

    class Meta:
        verbose_name_plural = "Elo points"
        constraints = [models.UniqueConstraint(fields=["project", "source"], name="elo_once")]

    def __str__(self) -> str:
        return f"{self.source}: {self.points:.0f}"


class SideBySide(models.Model):
    """One chat answered by two to four checkpoints side by side, at a permanent address.

    Written by `training.services.side_by_side`. The answers are stored, so opening it runs no
    model.
    """

    slug = models.CharField(max_length=40, unique=True, default=secret_slug)
    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="side_by_sides")
    prompt = models.ForeignKey(
        "annotation.Prompt",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The project's prompt that was asked; none for a typed one until somebody votes.",
    )
    base_prompt = models.ForeignKey(
        "annotation.Prompt",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The project's prompt that it began with; what a vote adds keeps its split.",
    )
    prompt_set = models.ForeignKey(
        "training.PromptSet",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="side_by_sides",
        help_text="The set whose prompts are asked one after the other.",
    )
    messages = models.JSONField(help_text="The chat as it stood, without context passages.")
    shared = models.BooleanField(
        default=True, help_text="Whether all answer the same chat; conversations that parted do not."
    )
    sampling = models.JSONField(help_text="temperature, top_p, max_tokens.")
    seed = models.PositiveBigIntegerField()
    scorer = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    blind = models.BooleanField(default=False, help_text="Names are hidden until the vote.")
    continues = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, blank=True, related_name="continued_by"
    )
    judgment = models.ForeignKey(
        "annotation.Judgment", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "side by sides"

    def __str__(self) -> str:
        last = next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "user"), "")
        return shortened(str(last))

    def get_absolute_url(self) -> str:
        return reverse("compare-shown", args=[self.slug])

    @property
    def is_hidden(self) -> bool:
        """Return whether the authors of the answers are still hidden from all."""
        return self.blind and self.judgment_id is None


class SideBySideAnswer(models.Model):
    """One of the answers side by side. `text` is empty until it is generated."""

    side_by_side = models.ForeignKey(SideBySide, on_delete=models.CASCADE, related_name="answers")
    position = models.PositiveSmallIntegerField()
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="+")
    messages = models.JSONField(help_text="The chat that it answers.")
    text = models.TextField(blank=True)
    seed = models.PositiveBigIntegerField(null=True, blank=True)
    finish_reason = models.CharField(max_length=20, blank=True)
    token_count = models.PositiveIntegerField(null=True, blank=True)
    seconds = models.FloatField(null=True, blank=True)
    score = models.FloatField(null=True, blank=True)
    heads = models.JSONField(default=dict, blank=True, help_text="Head → what it says of the whole answer.")
    segments = models.JSONField(
        default=dict, blank=True, help_text="Head → lists of start, end, reward; in code points."
    )
    token_kl = models.JSONField(default=list, blank=True, help_text="Lists of start, end, KL (k1).")
    written_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["side_by_side", "position"]
        constraints = [
            models.UniqueConstraint(fields=["side_by_side", "position"], name="side_by_side_place_once"),
        ]

    def __str__(self) -> str:
        return shortened(self.text)


class ArenaLink(Claimable):
    """A secret address for blind votes between checkpoints on held-out prompts.

    Created and closed by `training.services.arenas`; a worker generates its answers in advance.
    """

    PAGE = "arenas"
    CAP = Cap.LONG

    UNFINISHED = (
        Q(prepared_at__isnull=True, closed_at__isnull=True, is_conversation=False)
        & (Q(expires_at__isnull=True) | Q(expires_at__gt=Now()))
        & (Q(most_votes__isnull=True) | Q(votes__lt=F("most_votes")))
    )

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="arenas")
    name = models.CharField(max_length=120, help_text="What voters read; say nothing of the models.")
    slug = models.CharField(max_length=40, unique=True, default=secret_slug)
    checkpoints = models.ManyToManyField(Checkpoint, related_name="arenas")
    prompts = models.PositiveIntegerField(help_text="How many held-out prompts are asked.")
    sampling = models.JSONField(help_text="temperature, top_p, max_tokens.")
    for_guests = models.BooleanField(default=False, help_text="Whether visitors without an account may vote.")
    is_conversation = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Whether voters write their own messages instead of reading held-out prompts.",
    )
    most_votes = models.PositiveIntegerField(null=True, blank=True, help_text="Then it ends; empty: never.")
    votes = models.PositiveIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    prepared_at = models.DateTimeField(null=True, blank=True, help_text="When all answers were there.")
    progress = models.TextField(blank=True, help_text="How far the answers are, for people.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(most_votes__isnull=True) | Q(votes__lte=F("most_votes")),
                name="arena_votes_within_limit",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("arena", args=[self.slug])

    def end_values(self, state: str, text: str) -> dict[str, Any]:
        """Return the columns of an arena whose answers are complete, or wait for a worker again.

        After a failure a retry would not help: people vote on the existing pairs.
        """
        ended = {} if state == JobState.WAITING else {"prepared_at": Now()}
        return {"progress": text, **ended}

    @property
    def is_open(self) -> bool:
        """Return whether votes are accepted."""
        return (
            self.closed_at is None
            and (self.expires_at is None or self.expires_at > timezone.now())
            and (self.most_votes is None or self.votes < self.most_votes)
        )


class ArenaPair(models.Model):
    """Two answers to one prompt that an arena may show, with the number of times shown."""

    arena = models.ForeignKey(ArenaLink, on_delete=models.CASCADE, related_name="pairs")
    comparison = models.ForeignKey("annotation.Comparison", on_delete=models.CASCADE, related_name="+")
    left = models.ForeignKey("annotation.Completion", on_delete=models.CASCADE, related_name="+")
    right = models.ForeignKey("annotation.Completion", on_delete=models.CASCADE, related_name="+")
    models_key = models.CharField(max_length=50, help_text="Ids of the two sources, the lower first.")
    given = models.PositiveIntegerField(default=0, help_text="How often it was shown.")
    given_left_first = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["arena", "comparison"], name="arena_pair_once")]

    def __str__(self) -> str:
        return f"{self.arena}: {self.comparison}"


class ArenaBallot(models.Model):
    """A pair shown to one voter, in display order. Its id is in the address."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    pair = models.ForeignKey(ArenaPair, on_delete=models.CASCADE, related_name="ballots")
    voter = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="ballots")
    display_order = models.JSONField(help_text="Completion ids in the order in which they are shown.")
    judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, null=True, blank=True, related_name="ballot"
    )
    given_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pair", "voter"], name="arena_pair_once_per_voter")]
        indexes = [models.Index(fields=["voter", "given_at"], name="ballot_by_voter")]

    def __str__(self) -> str:
        return f"{self.pair} for {self.voter}"


# Prompt sets: prompts of a project on which checkpoints are compared again and again.


class PromptSet(models.Model):
    """A named choice of a project's prompts. Written by `training.services.prompt_sets`."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="prompt_sets")
    name = models.CharField(max_length=100)
    prompts = models.ManyToManyField("annotation.Prompt", related_name="prompt_sets", blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="prompt_set_name_once"),
            models.CheckConstraint(condition=~Q(name=""), name="prompt_set_has_name"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("prompt-set", args=[self.project.slug, self.pk])
