"""Acquisition: features of completions, and the figures of a project's last update."""

from django.db import models


class CompletionFeatures(models.Model):
    """Features of one completion: numbers that a reward is learned on after every few annotations."""

    completion = models.OneToOneField(
        "annotation.Completion", on_delete=models.CASCADE, primary_key=True, related_name="features"
    )
    space = models.CharField(
        max_length=100, help_text="What the features are; those of another are not compared."
    )
    values = models.BinaryField(help_text="The features as 32-bit floats, little-endian.")

    class Meta:
        verbose_name_plural = "completion features"

    def __str__(self) -> str:
        return f"{self.space} of completion {self.completion_id}"


class AcquisitionFigures(models.Model):
    """Figures of a project when comparisons were last chosen: learning curve, gain, numbers of rows."""

    project = models.OneToOneField(
        "annotation.Project", on_delete=models.CASCADE, primary_key=True, related_name="acquisition_figures"
    )
    judgments = models.PositiveIntegerField(help_text="Rankings that the head had learned from.")
    comparisons = models.PositiveIntegerField(help_text="Comparisons of the newest round at that time.")
    figures = models.JSONField(
        default=dict, blank=True, help_text="Learning curve, worth of the next annotations, and gain."
    )
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "acquisition figures"

    def __str__(self) -> str:
        return f"figures of {self.project_id} after {self.judgments} rankings"
