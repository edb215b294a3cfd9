"""How a new checkpoint did against its parent."""

from django.db import models
from django.urls import reverse

from training.models.checkpoints import Checkpoint
from training.models.rounds import Round

FIGURES_FORMAT = 2
"""Version of the schema of `Evaluation.figures`; see `training.evaluation.figures_of`."""


class Evaluation(models.Model):
    """A checkpoint held against its parent on held-out prompts, once for each way of evaluating.

    Opened, filled and finished by `evaluate_round`; a finished one never changes. What people say of the
    two is not in it: it is counted from their judgments whenever it is asked for.
    """

    # No index of its own: `evaluation_once` begins with it.
    checkpoint = models.ForeignKey(
        Checkpoint, on_delete=models.PROTECT, related_name="evaluations", db_index=False
    )
    parent = models.ForeignKey(Checkpoint, on_delete=models.PROTECT, related_name="evaluations_of_children")
    round = models.ForeignKey(Round, on_delete=models.PROTECT, related_name="evaluations")
    reward_model = models.ForeignKey(
        Checkpoint, on_delete=models.PROTECT, null=True, blank=True, related_name="evaluations_by_it"
    )
    digest = models.CharField(max_length=64, help_text="SHA-256 of how both were asked and by what judged.")
    settings = models.JSONField(help_text="What the digest is of.")
    prompts = models.JSONField(help_text="Ids of the held-out prompts, as they were chosen at the beginning.")
    figures = models.JSONField(default=dict, blank=True, help_text="What came of it; empty until finished.")
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["checkpoint", "parent", "digest"], name="evaluation_once"),
            models.CheckConstraint(
                condition=~models.Q(checkpoint=models.F("parent")), name="evaluation_against_another"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint} against {self.parent}"

    def get_absolute_url(self) -> str:
        return reverse("evaluation", args=[self.checkpoint.name])


class EvaluatedPrompt(models.Model):
    """One held-out prompt of an evaluation: what both answered, and what was found of the answers.

    Written by `evaluate_round` as answers come; `figures` is filled step by step.
    """

    # No index of its own: `evaluated_prompt_once` begins with it.
    evaluation = models.ForeignKey(Evaluation, on_delete=models.CASCADE, related_name="rows", db_index=False)
    prompt = models.ForeignKey("annotation.Prompt", on_delete=models.CASCADE, related_name="+")
    old = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, related_name="+", help_text="The parent's answer."
    )
    new = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, related_name="+", help_text="The checkpoint's."
    )
    figures = models.JSONField(
        default=dict,
        blank=True,
        help_text="`reward`, `heads`, `rules` as pairs, the parent's first; `kl` of the new one; `noise`.",
    )

    class Meta:
        ordering = ["evaluation", "id"]
        constraints = [
            models.UniqueConstraint(fields=["evaluation", "prompt"], name="evaluated_prompt_once"),
        ]

    def __str__(self) -> str:
        return f"{self.evaluation}: {self.prompt}"
