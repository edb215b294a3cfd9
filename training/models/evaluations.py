"""Evaluations of a new checkpoint against its parent."""

from django.db import models
from django.urls import reverse

from training.models.checkpoints import Checkpoint
from training.models.rounds import Round

FIGURES_FORMAT = 2
"""Version of the schema of `Evaluation.figures`; see `training.figures.evaluation_statistics.figures_of`."""


WIDEST_INTERVAL = 0.5
"""A win rate whose 95 % interval is wider is not shown: it spans half of all that is possible."""


def is_narrow(low: float | None, high: float | None) -> bool:
    """Return whether the interval of a win rate is narrow enough for it to be shown; one without is."""
    return low is None or high is None or high - low <= WIDEST_INTERVAL


class Evaluation(models.Model):
    """An evaluation of a checkpoint against its parent on held-out prompts, one per way of evaluating.

    Created, filled and finished by `evaluate_round`; immutable once finished. People's judgments are not in
    it: they are counted on request.
    """

    # No separate index: `evaluation_once` begins with it.
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

    @property
    def too_wide(self) -> set[str]:
        """Return the names of its win rates that rest on too few prompts to be shown."""
        rates = {name: self.figures.get(name) for name in ("win_rate", "length_controlled")}
        return {name for name, rate in rates.items() if rate and not is_narrow(rate["low"], rate["high"])}


class EvaluatedPrompt(models.Model):
    """One held-out prompt of an evaluation: both answers and their scores.

    Written by `evaluate_round` as answers arrive; `figures` is filled step by step.
    """

    # No separate index: `evaluated_prompt_once` begins with it.
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


class YardstickResult(models.Model):
    """Figures of a reward model on a file of a public test set. Measuring it again replaces them."""

    # No separate index: `yardstick_once` begins with it.
    checkpoint = models.ForeignKey(
        Checkpoint, on_delete=models.CASCADE, related_name="yardsticks", db_index=False
    )
    name = models.CharField(max_length=40, help_text="Name of the test set, such as reward-bench-2.")
    file_sha256 = models.CharField(max_length=64)
    items = models.PositiveIntegerField(help_text="Items that were scored.")
    result = models.JSONField(help_text="What `python -m training.rlhf.yardsticks --out` wrote.")
    created_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["name", "-created_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["checkpoint", "name", "file_sha256", "items"], name="yardstick_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.checkpoint} on {self.name}"
