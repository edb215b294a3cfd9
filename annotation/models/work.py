"""Work: comparisons, assignments, and what belongs to them."""

import random
from typing import TYPE_CHECKING, Any, NamedTuple

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from annotation.choices import AcquisitionArm, AssignmentState, Purpose, Verdict, WithholdingState
from annotation.models.written_once import WrittenOnce

if TYPE_CHECKING:
    from annotation.models.texts import Completion


def shuffled() -> int:
    """A number drawn when a comparison is made; their order is a random order."""
    return random.getrandbits(31)


class RoundTally(NamedTuple):
    """The columns of `AnnotatorTally` that a screen shows."""

    round_number: int | None = None
    round_done: int = 0
    round_unseen: int = 0


class Comparison(models.Model):
    """One prompt and its candidates, to be judged together by `overlap` annotators.

    Written once by `create_comparison`; later only `open_slots`, `overlap`, `priority`,
    `acquisition_score`, `agreement`, `is_sealed` and `reserved_for` change. Gold and qualification items and
    what is withheld have no open slots: nobody meets them by way of the queue.
    """

    # No index of its own: the unique constraint and the index below begin with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="comparisons", db_index=False
    )
    prompt = models.ForeignKey("annotation.Prompt", on_delete=models.PROTECT, related_name="comparisons")
    round_number = models.PositiveIntegerField(default=1)
    purpose = models.CharField(max_length=15, choices=Purpose, default=Purpose.WORK)
    completions = models.ManyToManyField(
        "annotation.Completion", through="annotation.Candidate", related_name="comparisons"
    )
    size = models.PositiveSmallIntegerField(help_text="How many candidates: 2 makes a pair, more a ranking.")
    overlap = models.PositiveSmallIntegerField(default=1)
    open_slots = models.PositiveSmallIntegerField(
        editable=False,
        help_text="How many more annotators may have it now: `overlap` less the slots that are held.",
    )
    priority = models.IntegerField(default=0, help_text="Higher comes first.")
    acquisition_score = models.FloatField(
        default=0.0, editable=False, help_text="What the project's strategy says of it; higher comes first."
    )
    shuffle = models.PositiveIntegerField(default=shuffled, editable=False)
    completion_set = models.CharField(
        max_length=64, editable=False, help_text="SHA-256 of the sorted ids of its completions."
    )
    agreement = models.FloatField(
        null=True,
        blank=True,
        editable=False,
        help_text="Share of pairs of annotators that agree on a pair of responses, 0 to 1; empty below two.",
    )
    is_sealed = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="Whether its annotations are hidden from everyone but their annotators: it is in a "
        "calibration session that is not revealed.",
    )
    metadata = models.JSONField(
        null=True, blank=True, help_text="Columns of the file it came in with that nothing else reads."
    )
    file_import = models.ForeignKey(
        "annotation.FileImport",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="comparisons",
        help_text="The import that brought it; none for any other.",
    )
    reserved_for = models.ManyToManyField(
        settings.AUTH_USER_MODEL,
        blank=True,
        related_name="+",
        help_text="Only these members get it from the queue; everybody where none is named.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(size__gte=1), name="comparison_size_positive"),
            models.CheckConstraint(condition=Q(overlap__gte=1), name="comparison_overlap_positive"),
            models.CheckConstraint(
                condition=Q(open_slots__gte=0, open_slots__lte=F("overlap")),
                name="comparison_open_slots_in_range",
            ),
            models.CheckConstraint(condition=Q(purpose__in=Purpose.values), name="comparison_purpose_known"),
            models.CheckConstraint(
                condition=Q(agreement__isnull=True) | Q(agreement__gte=0, agreement__lte=1),
                name="comparison_agreement_is_a_share",
            ),
            models.CheckConstraint(
                condition=Q(purpose=Purpose.WORK) | Q(open_slots=0), name="comparison_only_work_is_queued"
            ),
            models.UniqueConstraint(
                fields=["project", "round_number", "completion_set", "purpose"],
                name="comparison_once_per_round",
            ),
        ]
        indexes = [
            # What `assign_next` walks: it holds the open comparisons alone, in the order in
            # which they are handed out, so the first row that it meets is nearly always the answer.
            # `open_slots` lets `progress_of` count in the index alone.
            models.Index(
                fields=["project", "-round_number", "-priority", "-acquisition_score", "id", "open_slots"],
                condition=Q(open_slots__gt=0),
                name="comparison_open_in_order",
            ),
            # The control arm of acquisition: the first open one from a random place on.
            models.Index(
                fields=["project", "round_number", "shuffle"],
                condition=Q(open_slots__gt=0),
                name="comparison_open_shuffled",
            ),
            # The table of comparisons, narrowed to a round; newest first.
            models.Index(fields=["project", "round_number", "id"], name="comparison_of_round"),
            # Where annotators disagree, for the table of comparisons; newest first.
            models.Index(fields=["project", "id"], condition=Q(agreement__lt=1), name="comparison_disagreed"),
            # What `Judgment.objects` leaves out: nearly always nothing.
            models.Index(fields=["id"], condition=Q(is_sealed=True), name="comparison_sealed"),
            # Gold and qualification items are few among many: this index holds them alone.
            models.Index(
                fields=["project", "purpose", "id"],
                condition=~Q(purpose=Purpose.WORK),
                name="comparison_known_answers",
            ),
        ]

    def __str__(self) -> str:
        return f"Comparison {self.pk} of {self.size}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self._state.adding and self.open_slots is None:
            self.open_slots = self.overlap
        super().save(*args, **kwargs)


class Candidate(models.Model):
    """One completion's place in one comparison. Its index is no display order: see `Assignment`."""

    # No index of its own: the constraints below begin with it.
    comparison = models.ForeignKey(
        Comparison, on_delete=models.CASCADE, related_name="candidates", db_index=False
    )
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="candidacies"
    )
    index = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["comparison", "index"]
        constraints = [
            models.UniqueConstraint(fields=["comparison", "completion"], name="candidate_once"),
            models.UniqueConstraint(fields=["comparison", "index"], name="candidate_index_once"),
        ]

    def __str__(self) -> str:
        return f"{self.comparison}, candidate {self.index}"


HOLDS_A_SLOT = [AssignmentState.LEASED, AssignmentState.SUBMITTED]


class Assignment(models.Model):
    """One comparison leased to one annotator, with the order in which they see it.

    The slot constraint is what keeps a comparison from more than `overlap` people: slots
    are numbered from 0, and one slot is held once, by a lease or by a submitted judgment.
    """

    comparison = models.ForeignKey(Comparison, on_delete=models.CASCADE, related_name="assignments")
    # No index of its own: `assignment_of_annotator` begins with it.
    annotator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="assignments", db_index=False
    )
    slot = models.PositiveSmallIntegerField(
        null=True,
        blank=True,
        help_text="The place it holds; none for gold, qualification and retest, which take no one's place.",
    )
    retest_of = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="retests",
        help_text="For a comparison that came back to the same person: their first assignment of it.",
    )
    arm = models.CharField(
        max_length=10, choices=AcquisitionArm, blank=True, default="", help_text="How it was chosen."
    )
    state = models.CharField(max_length=10, choices=AssignmentState, default=AssignmentState.LEASED)
    display_order = models.JSONField(help_text="Completion ids in the order in which they are shown.")
    reason = models.TextField(blank=True, help_text="Why it was skipped.")
    leased_at = models.DateTimeField()
    lease_expires_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True, blank=True)

    fresh_completions: "list[Completion] | None" = None
    """On the row that a lease was just written with: what is compared. None once it is read again."""
    round_tally: RoundTally | None = None
    """On a row that was just handed out: what its annotator has done."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["comparison", "slot"],
                condition=Q(state__in=HOLDS_A_SLOT),
                name="assignment_slot_held_once",
            ),
            models.UniqueConstraint(
                fields=["comparison", "annotator"],
                condition=~Q(state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED])
                & Q(retest_of__isnull=True),
                name="assignment_never_twice_to_one_person",
            ),
            models.UniqueConstraint(
                fields=["retest_of"],
                condition=~Q(state__in=[AssignmentState.RELEASED, AssignmentState.EXPIRED]),
                name="assignment_retested_once",
            ),
            models.CheckConstraint(
                condition=Q(retest_of__isnull=True) | Q(slot__isnull=True),
                name="assignment_retest_takes_no_place",
            ),
            models.CheckConstraint(
                condition=Q(state__in=AssignmentState.values), name="assignment_state_known"
            ),
        ]
        indexes = [
            # What one holds, and what one submitted last or today.
            models.Index(fields=["annotator", "state", "closed_at", "id"], name="assignment_of_annotator"),
            models.Index(
                fields=["lease_expires_at"],
                condition=Q(state=AssignmentState.LEASED),
                name="assignment_lease_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.comparison} for {self.annotator}"


class AnnotatorTally(models.Model):
    """Progress of one annotator in one project, counted, so that no screen counts it again.

    Whoever leases or submits in one person's name changes this row first, with `take_turn`, and so
    waits for that person's other requests. Written by `annotation.services.assignments.leases` alone.
    """

    # No index of its own: the constraint below begins with it.
    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="annotator_tallies", db_index=False
    )
    annotator = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="annotator_tallies"
    )
    turns = models.PositiveBigIntegerField(
        default=0,
        help_text="How often they asked for work or submitted: what is drawn by chance hangs on it.",
    )
    submitted = models.PositiveIntegerField(
        default=0, help_text="Comparisons judged; no gold, no qualification, no retest."
    )
    retests = models.PositiveIntegerField(default=0, help_text="Retests given.")
    round_number = models.PositiveIntegerField(
        null=True, blank=True, help_text="The round in which they submitted last."
    )
    round_done = models.PositiveIntegerField(default=0, help_text="How many they have judged in that round.")
    round_unseen = models.PositiveIntegerField(
        default=0, help_text="Gold and retests that they answered in that round without knowing."
    )

    class Meta:
        verbose_name_plural = "annotator tallies"
        constraints = [models.UniqueConstraint(fields=["project", "annotator"], name="annotator_tally_once")]

    def __str__(self) -> str:
        return f"{self.submitted} by {self.annotator} in {self.project}"


class DisplayTally(models.Model):
    """Number of display orders drawn in one lane of a project for comparisons of one size.

    The number decides the next order, so that over a lane every completion stands in every position
    equally often. Who draws waits for whoever else draws in that lane, until their transaction is on
    disk; so there are several, and people are dealt to them. Changed by `assign_next` alone.
    """

    project = models.ForeignKey(
        "annotation.Project", on_delete=models.CASCADE, related_name="display_tallies"
    )
    size = models.PositiveSmallIntegerField()
    lane = models.PositiveSmallIntegerField(default=0, help_text="People are dealt to lanes by their number.")
    drawn = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name_plural = "display tallies"
        constraints = [
            models.UniqueConstraint(fields=["project", "size", "lane"], name="display_tally_once_per_lane")
        ]

    def __str__(self) -> str:
        return f"{self.drawn} orders of {self.size} in lane {self.lane} of {self.project}"


class GoldAnswer(models.Model):
    """The known answer of a gold or qualification item, with its reason. Shown afterwards at most."""

    comparison = models.OneToOneField(Comparison, on_delete=models.CASCADE, related_name="gold_answer")
    verdict = models.CharField(max_length=20, choices=Verdict)
    ranks = models.JSONField(help_text="Completion id, as text → rank: 1 is best, equal numbers are tied.")
    explanation = models.TextField(blank=True, help_text="Why, in Markdown; shown where feedback is on.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(
        null=True, blank=True, help_text="Since when nobody gets it any more; empty while it is in use."
    )

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(verdict__in=Verdict.values), name="gold_verdict_known"),
        ]

    def __str__(self) -> str:
        return f"Known answer of {self.comparison}"


class Withholding(models.Model):
    """A comparison kept from annotators: a text in it seems to name its model, or a manager wants it so.

    The first kind is written with the comparison by `create_comparison` and has a quote, the second by
    `quarantine`. A manager releases or discards it.
    """

    comparison = models.OneToOneField(Comparison, on_delete=models.CASCADE, related_name="withholding")
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    start = models.PositiveIntegerField(
        null=True, blank=True, help_text="Where it says so, in code points; empty for a manager's decision."
    )
    end = models.PositiveIntegerField(null=True, blank=True)
    quote = models.TextField(blank=True)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        help_text="The manager who wants it so; empty where a text names its model.",
    )
    state = models.CharField(max_length=10, choices=WithholdingState, default=WithholdingState.PENDING)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=WithholdingState.values), name="withholding_state_known"
            ),
            models.CheckConstraint(
                condition=Q(completion__isnull=False, start__isnull=False, end__gt=F("start"))
                | Q(
                    completion__isnull=True, start__isnull=True, end__isnull=True, requested_by__isnull=False
                ),
                name="withholding_has_quote_or_manager",
            ),
        ]
        indexes = [models.Index(fields=["state"], name="withholding_by_state")]

    def __str__(self) -> str:
        return f"{self.comparison}: {self.quote[:60] or self.requested_by}"


class ItemFlag(WrittenOnce):
    """An annotator's report about a comparison during work on it. It goes to reviewers."""

    assignment = models.ForeignKey(Assignment, on_delete=models.PROTECT, related_name="flags")
    reason = models.CharField(max_length=200)
    details = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.assignment}: {self.reason}"


class Draft(models.Model):
    """Contents of the fields of an assignment that is not submitted yet.

    `version` counts the saves. A save says on which version it stands; one that stands on an older
    version than the stored is refused, so that two tabs never overwrite each other by chance.
    """

    assignment = models.OneToOneField(Assignment, on_delete=models.CASCADE, related_name="draft")
    version = models.PositiveIntegerField(default=1)
    fields = models.JSONField(help_text="Field name → list of values, as the form would send them.")
    saved_from = models.UUIDField(help_text="The page that saved it last.")
    saved_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(version__gte=1), name="draft_version_from_one"),
        ]

    def __str__(self) -> str:
        return f"Draft {self.version} of {self.assignment}"
