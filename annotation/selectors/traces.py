"""Traces as pages show them: steps folded, their texts bounded, two side by side in rows."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db.models.functions import Substr
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from annotation.choices import TraceStepKind
from annotation.models import Completion, TraceStep
from annotation.text.step_markup import ShownStep, aligned

SHOWN_AT_ONCE = 600
"""Characters of a step that stand in the page; more come when they are asked for."""
PART = 20_000
"""Characters of a step that come at a time."""
_PREVIEW = 100

FieldOf = Callable[[int], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPart:
    """A part of a step's text, and where the next begins; None after the last."""

    step: TraceStep
    text: str
    following: int | None
    left: int


Row = tuple[ShownStep | None, ...]


def steps_by_completion(completions: Sequence[Completion]) -> Mapping[int, list[TraceStep]]:
    """Return the steps of those completions that are traces; no query where none is."""
    traces = [completion.pk for completion in completions if completion.step_count]
    steps: dict[int, list[TraceStep]] = defaultdict(list)
    if traces:
        rows = TraceStep.objects.filter(completion__in=traces).defer("arguments")
        for step in rows.order_by("completion_id", "index"):
            steps[step.completion_id].append(step)
    return steps


def shown_steps(
    completion: Completion,
    steps: Sequence[TraceStep],
    *,
    column: str,
    address: str,
    field_of: FieldOf = lambda index: "",
    chosen: Mapping[str, str] = {},
    labels: Mapping[int, Sequence[tuple[str, str, str]]] = {},
    questions: Mapping[int, SafeString] = {},
) -> list[ShownStep]:
    """Return the steps of a trace.

    address: of the parts of its first step, which ends with the step's index. field_of: names the field of
    each step that the agent took. questions: those about each step, rendered.
    """
    before = address.removesuffix("0/")
    titles: dict[tuple[str, str], str] = {}
    shown = []
    for step in steps:
        body = completion.text[step.body : min(step.end, step.body + SHOWN_AT_ONCE)]
        field = field_of(step.index) if step.is_agents else ""
        shown.append(
            ShownStep(
                index=step.index,
                kind=step.kind,
                title=titles.get((step.kind, step.role))
                or titles.setdefault((step.kind, step.role), title_of(step)),
                tool=step.tool,
                is_error=step.is_error,
                preview=" ".join(body[: 2 * _PREVIEW].split())[:_PREVIEW],
                body=body,
                left=step.end - step.body - len(body),
                address=f"{before}{step.index}/",
                column=column,
                field=field,
                chosen=chosen.get(field, ""),
                labels=labels.get(step.index, ()),
                questions=questions.get(step.index, SafeString()),
            )
        )
    return shown


def title_of(step: TraceStep) -> str:
    """Return what a step is, in a word or two."""
    if step.kind == TraceStepKind.MESSAGE:
        names = {"user": _("User"), "system": _("System"), "tool": _("Tool")}
        return names.get(step.role, _("Assistant"))
    return {
        TraceStepKind.REASONING: _("Reasoning"),
        TraceStepKind.TOOL_CALL: _("Tool call"),
        TraceStepKind.TOOL_RESULT: _("Tool result"),
    }[TraceStepKind(step.kind)]


def rows_of(columns: Sequence[Sequence[ShownStep]]) -> list[Row]:
    """Return two traces in rows: steps of the same kind with the same tool stand beside each other."""
    left, right = columns
    keys = [[(step.kind, step.title, step.tool) for step in column] for column in columns]
    return [
        (left[i] if i is not None else None, right[j] if j is not None else None)
        for i, j in aligned(keys[0], keys[1])
    ]


def part_of_step(completion_id: int, index: int, start: int) -> StepPart | None:
    """Return the part of a step that begins at a character of its content; None where there is none."""
    step = TraceStep.objects.defer("arguments").filter(completion=completion_id, index=index).first()
    if step is None or not 0 <= start < max(1, step.end - step.body):
        return None
    length = min(PART, step.end - step.body - start)
    # The database cuts it out: a long trace is not read for a part of it.
    text = ""
    if length:
        cut = Completion.objects.annotate(part=Substr("text", step.body + start + 1, length))
        text = cut.values_list("part", flat=True).get(pk=completion_id)
    left = step.end - step.body - start - length
    return StepPart(step=step, text=text, following=start + length if left else None, left=left)
