"""Suggestions for annotators: computed ahead, shown after the first pass, decided one by one."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q

from annotation.choices import HelpArm, SuggestionDecision, SuggestionKind, Verdict
from annotation.models.written_once import WrittenOnce

_SHARE = [MinValueValidator(0.0), MaxValueValidator(1.0)]


class HelpSettings(models.Model):
    """Settings of help for the annotators of a project. The source of the suggestions is stored elsewhere.

    Written by `services.suggestions.settings` alone, together with `Project.has_help`.
    """

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, related_name="help_settings"
    )
    control_share = models.FloatField(
        default=0.2,
        validators=_SHARE,
        help_text="Share of an annotator's comparisons without help, 0 to 1.",
    )
    planted_share = models.FloatField(
        default=0.1, validators=_SHARE, help_text="Share of suggestions that are wrong on purpose, 0 to 1."
    )
    unread_seconds = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(60.0)],
        help_text="A suggestion accepted faster than this counts as accepted unread.",
    )
    tells_planted = models.BooleanField(
        default=False,
        help_text="Tell annotators after the final pass which suggestions were planted.",
    )

    class Meta:
        verbose_name_plural = "help settings"
        constraints = [
            models.CheckConstraint(
                condition=Q(control_share__range=(0, 1), planted_share__range=(0, 1)),
                name="help_shares_in_range",
            ),
            models.CheckConstraint(condition=Q(unread_seconds__gte=0), name="help_unread_bound_positive"),
        ]

    def __str__(self) -> str:
        return f"Help in {self.project}"


class SuggestionSet(WrittenOnce):
    """All suggestions for one comparison, computed once; an empty set says that there are none."""

    comparison = models.OneToOneField(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="suggestion_set"
    )
    source = models.CharField(max_length=200, help_text="The model that suggests, by its name.")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"Suggestions of {self.source} for {self.comparison}"


class Suggestion(WrittenOnce):
    """One span, critique, missing information or preference that a model suggests.

    Spans are in code points, half open, with their quote. `original` is set where the suggestion was made
    wrong on purpose, and holds the fields as the model had them.
    """

    suggestion_set = models.ForeignKey(SuggestionSet, on_delete=models.CASCADE, related_name="suggestions")
    kind = models.CharField(max_length=20, choices=SuggestionKind)
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    category = models.ForeignKey(
        "annotation.Category", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    start = models.PositiveIntegerField(null=True, blank=True)
    end = models.PositiveIntegerField(null=True, blank=True)
    quote = models.TextField(blank=True, help_text="The suggested stretch, as it stands in the completion.")
    severity = models.PositiveSmallIntegerField(null=True, blank=True)
    text = models.TextField(blank=True, help_text="The critique, what is missing, or the reason.")
    verdict = models.CharField(max_length=20, choices=Verdict, blank=True)
    ranks = models.JSONField(default=dict, blank=True, help_text="Completion id, as text → rank; 1 is best.")
    confidence = models.FloatField(null=True, blank=True, help_text="Of the model, 0 to 1.")
    is_planted = models.BooleanField(default=False, help_text="Wrong on purpose.")
    original = models.JSONField(null=True, blank=True, help_text="What a planted suggestion was made from.")

    class Meta:
        ordering = ["suggestion_set", "id"]
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=SuggestionKind.values), name="suggestion_kind_known"),
            models.CheckConstraint(
                condition=~Q(kind=SuggestionKind.SPAN)
                | Q(
                    completion__isnull=False,
                    category__isnull=False,
                    start__isnull=False,
                    end__gt=F("start"),
                ),
                name="suggestion_span_has_place",
            ),
            models.CheckConstraint(
                condition=Q(kind__in=(SuggestionKind.SPAN, SuggestionKind.PREFERENCE))
                | (Q(completion__isnull=False) & ~Q(text="")),
                name="suggestion_text_of_a_completion",
            ),
            models.CheckConstraint(
                condition=~Q(kind=SuggestionKind.PREFERENCE) | Q(verdict__in=Verdict.values),
                name="suggestion_preference_known",
            ),
            models.CheckConstraint(
                condition=Q(confidence__isnull=True) | Q(confidence__range=(0, 1)),
                name="suggestion_confidence_in_range",
            ),
            models.CheckConstraint(
                condition=Q(is_planted=False) | Q(original__isnull=False), name="suggestion_planted_from"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}: {(self.quote or self.text or self.verdict)[:60]}"


class HelpReveal(models.Model):
    """One annotator's two passes over one comparison for which there were suggestions.

    Written with the first pass, in both arms; the arm never changes. In the control arm nothing is shown
    and the first pass is the only one. `final_judgment` supersedes `first_judgment`.
    """

    assignment = models.OneToOneField(
        "annotation.Assignment", on_delete=models.PROTECT, related_name="help_reveal"
    )
    arm = models.CharField(max_length=10, choices=HelpArm)
    first_judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, related_name="help_after"
    )
    final_judgment = models.OneToOneField(
        "annotation.Judgment", on_delete=models.PROTECT, null=True, blank=True, related_name="help_before"
    )
    revealed_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(arm__in=HelpArm.values), name="help_arm_known"),
            models.CheckConstraint(
                condition=Q(final_judgment__isnull=True) | Q(arm=HelpArm.HELPED, finished_at__isnull=False),
                name="help_final_pass_finished",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.assignment}, {self.get_arm_display()}"


class DecidedSuggestion(WrittenOnce):
    """An annotator's decision on one suggestion, written with their final pass."""

    reveal = models.ForeignKey(HelpReveal, on_delete=models.CASCADE, related_name="decisions")
    suggestion = models.ForeignKey(Suggestion, on_delete=models.PROTECT, related_name="decisions")
    decision = models.CharField(max_length=10, choices=SuggestionDecision)
    seconds = models.FloatField(
        null=True,
        blank=True,
        help_text="Since the reveal or the previous decision; none where not measured.",
    )
    decided_at = models.DateTimeField()

    class Meta:
        ordering = ["reveal", "suggestion"]
        constraints = [
            models.UniqueConstraint(fields=["reveal", "suggestion"], name="suggestion_decided_once"),
            models.CheckConstraint(
                condition=Q(decision__in=SuggestionDecision.values), name="suggestion_decision_known"
            ),
            models.CheckConstraint(
                condition=Q(seconds__isnull=True) | Q(seconds__gte=0), name="suggestion_seconds_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.suggestion}: {self.get_decision_display()}"
