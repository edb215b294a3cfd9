"""Slices of an evaluation: win rates and the accuracy of the reward model by the values of metadata."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annotation.models import Prompt
from annotation.selectors.tables.metadata import MetadataText, value_of
from training.figures.evaluation_statistics import TIE, EvaluationFigure, win_rate
from training.models import Evaluation
from training.selectors.evaluations import PeopleSay, measurements_of, tolerance_in

MOST_SLICES = 20
"""Values with most prompts; the others are one slice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The held-out prompts with one value of metadata."""

    value: str | None
    """None for the prompts without one."""
    is_rest: bool = False
    """True for all values that are too many to list."""
    prompts: int
    win_rate: EvaluationFigure | None
    """By the reward model; ties count half."""
    people: EvaluationFigure | None
    """By people, for the prompts that they annotated."""
    accuracy: EvaluationFigure | None
    """Share of prompts on which the reward model prefers the response that people prefer."""


def slices_of(evaluation: Evaluation, people: PeopleSay, name: str) -> list[Slice]:
    """Return the slices of a finished evaluation by a name of metadata, the largest first.

    Intervals of win rates are those of the decision, valid under repeated looks; those of the accuracy are
    Wilson's. A tie by the reward model counts half for its accuracy; ties by people do not count for it.
    """
    tolerance = tolerance_in(evaluation.figures)
    outcomes = {
        row.prompt_id: measurements_of(row).outcome(tolerance)
        for row in evaluation.rows.select_related("old", "new").order_by("pk")
    }
    values = dict(
        Prompt.objects.filter(pk__in=outcomes)
        .annotate(slice_value=value_of(Prompt, MetadataText, name))
        .values_list("pk", "slice_value")
    )
    by_value: dict[str | None, list[int]] = defaultdict(list)
    for prompt in outcomes:
        by_value[values.get(prompt)].append(prompt)
    # Prompts without a value come last.
    listed = sorted(by_value, key=lambda value: (value is None, -len(by_value[value]), value or ""))
    shown, rest = listed[:MOST_SLICES], listed[MOST_SLICES:]
    slices = [_slice(value, by_value[value], outcomes, people) for value in shown]
    if rest:
        prompts = [prompt for value in rest for prompt in by_value[value]]
        slices.append(_slice(None, prompts, outcomes, people, is_rest=True))
    return slices


def _slice(
    value: str | None,
    prompts: Sequence[int],
    outcomes: Mapping[int, float | None],
    people: PeopleSay,
    *,
    is_rest: bool = False,
) -> Slice:
    by_model = [outcome for prompt in prompts if (outcome := outcomes[prompt]) is not None]
    by_people = [people.by_prompt[prompt] for prompt in prompts if prompt in people.by_prompt]
    hits = [
        TIE if outcome == TIE else float(outcome == people.by_prompt[prompt])
        for prompt in prompts
        if (outcome := outcomes[prompt]) is not None and people.by_prompt.get(prompt, TIE) != TIE
    ]
    return Slice(
        value=value,
        is_rest=is_rest,
        prompts=len(prompts),
        win_rate=win_rate(by_model),
        people=win_rate(by_people),
        accuracy=_accuracy(hits),
    )


def _accuracy(hits: Sequence[float]) -> EvaluationFigure | None:
    # NumPy is imported on use.
    from annotation.agreement.intervals import wilson_interval

    if not hits:
        return None
    low, high = wilson_interval(sum(hits), len(hits))
    return EvaluationFigure(value=sum(hits) / len(hits), low=low, high=high, prompts=len(hits))
