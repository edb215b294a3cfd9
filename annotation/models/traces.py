"""Steps of agent traces and sessions, and the labels that annotators give them. None of them ever changes."""

from django.db import models
from django.db.models import F, Q

from annotation.choices import StepKind, StepLabel
from annotation.models.written_once import WrittenOnce
from annotation.text.traces import is_agents


class TraceStep(WrittenOnce):
    """One step of a completion that is a trace: a message, reasoning, a tool call or a tool's result.

    Steps lie in the completion's text in the order of `index` and never overlap. The content of a step is
    the text itself; `arguments` repeats that of a tool call as JSON, so that it can be queried.
    """

    # No index of its own: `trace_step_once` begins with it.
    completion = models.ForeignKey(
        "annotation.Completion", on_delete=models.CASCADE, related_name="steps", db_index=False
    )
    index = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=StepKind)
    role = models.CharField(max_length=10, help_text="Who speaks: assistant, user, system or tool.")
    tool = models.CharField(
        max_length=120, blank=True, default="", help_text="The tool of a call or of its result."
    )
    call = models.CharField(
        max_length=120, blank=True, default="", help_text="The id that a result shares with its call."
    )
    is_error = models.BooleanField(default=False, help_text="Whether a tool reported a failure.")
    start = models.PositiveIntegerField(help_text="In code points of the completion.")
    body = models.PositiveIntegerField(help_text="Where the content begins, after the heading of the step.")
    end = models.PositiveIntegerField()
    arguments = models.JSONField(
        null=True, blank=True, help_text="Arguments of a tool call; none where they were no JSON."
    )

    class Meta:
        ordering = ["completion", "index"]
        constraints = [
            models.UniqueConstraint(fields=["completion", "index"], name="trace_step_once"),
            models.CheckConstraint(condition=Q(kind__in=StepKind.values), name="trace_step_kind_known"),
            models.CheckConstraint(
                condition=Q(body__gte=F("start")) & Q(end__gte=F("body")) & Q(end__gt=F("start")),
                name="trace_step_in_order",
            ),
        ]
        indexes = [
            # For the filter by tool; messages have none.
            models.Index(fields=["tool", "completion"], condition=~Q(tool=""), name="trace_step_of_tool"),
        ]

    def __str__(self) -> str:
        return f"step {self.index + 1}: {self.kind} {self.tool}".rstrip()

    @property
    def is_agents(self) -> bool:
        """True if the agent took this step, so that it can be labelled."""
        return is_agents(self.kind, self.role)


class LabelledStep(WrittenOnce):
    """One step's label in one judgment: correct, wrong or unnecessary."""

    judgment = models.ForeignKey(
        "annotation.Judgment", on_delete=models.CASCADE, related_name="labelled_steps", db_index=False
    )
    step = models.ForeignKey(TraceStep, on_delete=models.PROTECT, related_name="labels")
    label = models.CharField(max_length=12, choices=StepLabel)

    class Meta:
        ordering = ["judgment", "step"]
        constraints = [
            models.UniqueConstraint(fields=["judgment", "step"], name="step_labelled_once"),
            models.CheckConstraint(condition=Q(label__in=StepLabel.values), name="step_label_known"),
        ]

    def __str__(self) -> str:
        return f"{self.step_id}: {self.label}"
