"""Reviews: decisions on judged comparisons. The votes stay as they are."""

from django.conf import settings
from django.db import models
from django.db.models import Q

from annotation.choices import ReviewReason, Verdict


class Review(models.Model):
    """One comparison that goes to reviewers, and what they decided.

    Opened when annotators disagree, when someone flagged the comparison,
    when a manager asks for it, or by chance; once per
    comparison. A decision is made once; it stands beside the judgments and changes none of them.
    """

    comparison = models.OneToOneField(
        "annotation.Comparison", on_delete=models.PROTECT, related_name="review"
    )
    reason = models.CharField(max_length=15, choices=ReviewReason)
    opened_at = models.DateTimeField(auto_now_add=True)
    reviewer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="reviews"
    )
    verdict = models.CharField(max_length=20, choices=Verdict, blank=True, default="")
    ranks = models.JSONField(
        default=dict,
        blank=True,
        help_text="Completion id, as text → rank: 1 is best, equal numbers are tied.",
    )
    comment = models.TextField(blank=True)
    decided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["opened_at", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(reason__in=ReviewReason.values), name="review_reason_known"),
            models.CheckConstraint(
                condition=Q(decided_at__isnull=True, verdict="", reviewer__isnull=True)
                | Q(decided_at__isnull=False, verdict__in=Verdict.values, reviewer__isnull=False),
                name="review_decided_whole_or_not_at_all",
            ),
        ]
        indexes = [
            models.Index(
                fields=["opened_at", "id"], condition=Q(decided_at__isnull=True), name="review_open_in_order"
            )
        ]

    def __str__(self) -> str:
        return f"Review of {self.comparison}"
