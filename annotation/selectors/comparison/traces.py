"""Traces on the page of a comparison: their steps with the labels that annotators gave."""

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property

from django.urls import reverse
from django.utils.crypto import salted_hmac

from annotation.choices import StepLabel
from annotation.models import Comparison, Completion, LabelledStep, TraceStep
from annotation.selectors.comparison.judgments import ShownJudgment
from annotation.selectors.traces import Row, rows_of, shown_steps, steps_by_completion
from annotation.text.step_markup import ShownStep

_LABELS = list(StepLabel.values)


class Traces:
    """The traces among a comparison's completions; no query where none is one."""

    def __init__(self, comparison: Comparison, completions: Sequence[Completion]) -> None:
        self._comparison = comparison
        self._steps = steps_by_completion(completions)
        self._completions = completions

    @cached_property
    def _labels(self) -> dict[int, dict[int, str]]:
        """Labels by judgment and step."""
        labels: dict[int, dict[int, str]] = defaultdict(dict)
        if self._steps:
            rows = LabelledStep.objects.filter(judgment__comparison=self._comparison)
            for judgment, step, label in rows.values_list("judgment_id", "step_id", "label"):
                labels[judgment][step] = label
        return labels

    def of(
        self, completion: Completion, judgments: Sequence[ShownJudgment], *, is_named: bool = True
    ) -> list[ShownStep]:
        """Return the steps of a completion with the labels of these judgments; none of a plain response."""
        steps = self._steps.get(completion.pk, [])
        # Beside the same trace as another annotator saw it.
        judged = [str(judgments[0].judgment.pk)] if len(judgments) == 1 else []
        return shown_steps(
            completion,
            steps,
            column="-".join([step_token(self._comparison.pk, completion.pk), *judged]),
            address=step_address(self._comparison, completion.pk) if steps else "",
            labels={step.index: self._step_labels(step, judgments, is_named=is_named) for step in steps},
        )

    def rows(self, judgments: Sequence[ShownJudgment]) -> list[Row]:
        """Return two traces in rows; none where there are not two."""
        if len(self._completions) != 2 or len(self._steps) != 2:
            return []
        return rows_of([self.of(completion, judgments) for completion in self._completions])

    def _step_labels(
        self, step: TraceStep, judgments: Sequence[ShownJudgment], *, is_named: bool
    ) -> list[tuple[str, str, str]]:
        names: dict[str, list[str]] = defaultdict(list)
        for shown in judgments:
            if label := self._labels.get(shown.judgment.pk, {}).get(step.pk):
                names[label].append(shown.name)
        return [
            (label, str(StepLabel(label).label), ", ".join(names[label]) if is_named else "")
            for label in sorted(names, key=_LABELS.index)
        ]


def step_address(comparison: Comparison, completion_id: int) -> str:
    """Return the address of the parts of a trace's first step, for who may open the comparison."""
    token = step_token(comparison.pk, completion_id)
    return reverse("comparison-step", args=[comparison.project.slug, comparison.pk, token, 0])


def step_token(comparison_id: int, completion_id: int) -> str:
    """The name of a completion in addresses of its comparison: it tells nothing of its place or its model."""
    return salted_hmac(
        "annotation.trace", f"{comparison_id}:{completion_id}", algorithm="sha256"
    ).hexdigest()[:20]
