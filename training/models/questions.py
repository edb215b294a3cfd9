"""Questions that a run asks people while it trains, and the pairs by which they answer."""

from django.db import models

from training.choices import QuestionOutcome
from training.models.checkpoints import Run


class RunQuestion(models.Model):
    """A question of a run's guard: is its policy worse than some steps ago?

    Written by the worker that holds the claim on the run's step, from the file that the trainer wrote. The
    outcome changes from open to its end once; where the round was stopped it is withdrawn until the run goes
    on.
    """

    # No separate index: `run_question_once` begins with it.
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="questions", db_index=False)
    number = models.PositiveSmallIntegerField(help_text="Counted from 1, in the run.")
    step = models.PositiveIntegerField(help_text="Optimiser steps that the policy of now had taken.")
    then_step = models.PositiveIntegerField(help_text="Those of the state that it is compared with.")
    signals = models.JSONField(help_text="What raised it: name, value and bound of each signal.")
    outcome = models.CharField(
        max_length=10, choices=QuestionOutcome, default=QuestionOutcome.OPEN, help_text="What became of it."
    )
    asked_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["run", "number"]
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="run_question_once"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=QuestionOutcome.values), name="run_question_outcome_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run}: question {self.number}"


class QuestionPair(models.Model):
    """A pair that people compare for a question: responses of now and then to one training prompt."""

    # No separate index: `question_pair_once` begins with it.
    question = models.ForeignKey(RunQuestion, on_delete=models.CASCADE, related_name="pairs", db_index=False)
    position = models.PositiveSmallIntegerField(help_text="Among the pairs that the trainer sampled.")
    comparison = models.ForeignKey(
        "annotation.Comparison", on_delete=models.CASCADE, related_name="question_pairs"
    )
    now = models.ForeignKey(
        "annotation.Completion",
        on_delete=models.CASCADE,
        related_name="+",
        help_text="The response of now; the comparison's other one is the earlier policy's.",
    )

    class Meta:
        ordering = ["question", "position"]
        constraints = [
            models.UniqueConstraint(fields=["question", "position"], name="question_pair_once"),
        ]

    def __str__(self) -> str:
        return f"{self.question}, pair {self.position}"
