"""Rubrics: versioned lists of weighted criteria, and the scores that AI annotators give by them."""

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse

from annotation.choices import RatingScale
from annotation.models.written_once import WrittenOnce


class Rubric(models.Model):
    """A named rubric of a project. Its content is in its versions; `services.projects.rubrics` writes it."""

    project = models.ForeignKey("annotation.Project", on_delete=models.CASCADE, related_name="rubrics")
    name = models.CharField(max_length=80)
    published = models.ForeignKey(
        "annotation.RubricVersion",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="The version in use; nothing uses a rubric before one is published.",
    )
    is_asked = models.BooleanField(
        default=False, help_text="Whether annotators rate each response by the published criteria."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["project", "name"]
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="rubric_name_once"),
            models.UniqueConstraint(
                fields=["project"], condition=Q(is_asked=True), name="rubric_asked_one_of_a_project"
            ),
            models.CheckConstraint(
                condition=Q(is_asked=False) | Q(published__isnull=False), name="rubric_asked_is_published"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="rubric_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name

    def get_absolute_url(self) -> str:
        return reverse("rubric", args=[self.project.slug, self.pk])


class RubricVersion(WrittenOnce):
    """One version of a rubric. Never changed: an edit is a new version."""

    rubric = models.ForeignKey(Rubric, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, null=True, blank=True, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["rubric", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["rubric", "number"], name="rubric_version_once"),
            models.CheckConstraint(condition=Q(number__gte=1), name="rubric_version_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.rubric}, version {self.number}"


class RubricCriterion(WrittenOnce):
    """One weighted criterion of a rubric version.

    Its key is that of the project's criterion by which annotators rate. Name, text and scale belong to the
    key: a criterion that is reworded gets another one, so that figures never mix two wordings.
    """

    version = models.ForeignKey(RubricVersion, on_delete=models.CASCADE, related_name="criteria")
    position = models.PositiveSmallIntegerField()
    key = models.SlugField(max_length=60)
    name = models.CharField(max_length=80)
    text = models.TextField(blank=True, help_text="The question that a response is scored by.")
    levels = models.TextField(blank=True, help_text="The meaning of the steps of the scale.")
    scale = models.CharField(max_length=10, choices=RatingScale, default=RatingScale.FIVE)
    weight = models.FloatField(default=1.0, help_text="Its share of the sum, relative to the others.")

    class Meta:
        verbose_name_plural = "rubric criteria"
        ordering = ["version", "position"]
        constraints = [
            models.UniqueConstraint(fields=["version", "key"], name="rubric_criterion_key_once"),
            models.UniqueConstraint(fields=["version", "position"], name="rubric_criterion_position_once"),
            models.CheckConstraint(
                condition=Q(weight__gt=0, weight__lte=1000), name="rubric_criterion_weight_positive"
            ),
            models.CheckConstraint(
                condition=Q(scale__in=RatingScale.values), name="rubric_criterion_scale_known"
            ),
            models.CheckConstraint(condition=~Q(name=""), name="rubric_criterion_has_a_name"),
        ]

    def __str__(self) -> str:
        return self.name


class RubricScore(WrittenOnce):
    """An AI annotator's score of one completion by one criterion, with its reason. Written with the judgment.

    The value is the mean over the orders in which the judge was asked, on the criterion's scale.
    """

    judgment = models.ForeignKey(
        "annotation.Judgment", on_delete=models.CASCADE, related_name="rubric_scores"
    )
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.PROTECT, related_name="rubric_scores"
    )
    criterion = models.ForeignKey(RubricCriterion, on_delete=models.PROTECT, related_name="scores")
    value = models.FloatField()
    reason = models.TextField(blank=True)

    class Meta:
        ordering = ["judgment", "completion", "criterion__position"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "completion", "criterion"], name="rubric_score_once"),
            models.CheckConstraint(condition=Q(value__gte=0, value__lte=7), name="rubric_score_in_range"),
        ]

    def __str__(self) -> str:
        return f"{self.criterion}: {self.value:g}"
