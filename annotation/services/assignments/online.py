"""Online acquisition: a worker learns from the newest annotations and writes which comparisons come next.

Handing out an assignment reads only `acquisition_score`, as with every strategy, so choosing never delays it.
A message that is lost costs an update: the next few annotations, or the sweep, send another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from annotation.choices import FOLLOWS_HEAD, Purpose, TaskName
from annotation.models import (
    AcquisitionFigures,
    Comparison,
    Completion,
    CompletionFeatures,
    Judgment,
    Project,
)
from annotation.selectors import access
from annotation.services.assignments.acquisition import write_scores
from annotation.services.jobs import alone, send, send_after_commit

if TYPE_CHECKING:
    from annotation.acquisition.bayesian import ProjectArrays
    from annotation.acquisition.posterior import Posterior

EVERY = 5
"""Annotations after which a worker learns from them, where the strategy follows a head."""
EVERY_CURVE = 50
"""Annotations after which a worker draws the learning curve, where it does not."""
AHEAD = 48
"""Comparisons that are chosen ahead, so that nobody waits for the next update."""
_GROWN = 1.1
"""The learning curve is measured again once there are so many times the rankings."""
_WRITTEN_AT_ONCE = 500


def note_judgment(*, judgment: Judgment, project: Project) -> None:
    """Tell a worker after every few annotations: to choose what comes next, or for the learning curve."""
    if judgment.pk % (EVERY if project.acquisition in FOLLOWS_HEAD else EVERY_CURVE) == 0:
        send_after_commit(TaskName.UPDATE_ACQUISITION, project.pk)


def sweep_acquisition() -> None:
    """Tell a worker of every project whose newest comparisons or annotations were not reckoned with yet."""
    for project in Project.objects.filter(acquisition__in=FOLLOWS_HEAD, archived_at__isnull=True):
        figures = AcquisitionFigures.objects.filter(project=project).first()
        if figures is None or (figures.figures.get("state") != _state_of(project)):
            send(TaskName.UPDATE_ACQUISITION, project.pk)


def update_acquisition(project_id: int) -> None:
    """Learn from a project's newest annotations, choose the next comparisons, and store the figures.

    In a project that follows no head nothing is chosen: its learning curve alone is kept. Nothing happens
    while another process of this machine does the same already.
    """
    project = Project.objects.get(pk=project_id)
    with alone("acquisition", project_id) as is_alone:
        if is_alone:
            _update(project)


def _update(project: Project) -> None:
    # NumPy is 25 MB that a web process need not hold.
    import numpy as np

    from annotation.acquisition.bayesian import arrays_of, read_new
    from annotation.acquisition.posterior import fit

    begun = time.monotonic()
    state = _state_of(project)
    arrays = arrays_of(project, access.current_round(project))
    _read_features(arrays)
    read_new(arrays)
    random = np.random.default_rng(len(arrays.rankings))
    previous = AcquisitionFigures.objects.filter(project=project).first()
    posterior = fit(
        arrays.features(), arrays.choices(), start=arrays.mode, precisions=_precisions(previous, arrays)
    )
    arrays.mode = posterior.mean
    chosen = _choose(project, arrays, posterior, random) if project.acquisition in FOLLOWS_HEAD else 0
    figures = {
        **(previous.figures if previous else {}),
        **{"state": state, "precision": posterior.precision, "chosen": chosen},
        "seconds": round(time.monotonic() - begun, 3),
    }
    if _is_due(previous, arrays):
        figures |= _outlook(project, arrays, posterior, random)
    AcquisitionFigures.objects.update_or_create(
        project=project,
        defaults={
            "judgments": len(arrays.rankings),
            "comparisons": len(arrays.comparisons),
            "figures": figures,
        },
    )


def _read_features(arrays: ProjectArrays) -> None:
    """Read features that are stored, and compute and store those that are not."""
    from annotation.acquisition.bayesian import SPACE, features_of, read_stored, unread

    missing = sorted(read_stored(arrays, unread(arrays)))
    for start in range(0, len(missing), _WRITTEN_AT_ONCE):
        some = Completion.objects.filter(pk__in=missing[start : start + _WRITTEN_AT_ONCE])
        rows = []
        for pk, text, messages in some.values_list("pk", "text", "prompt__messages"):
            values = features_of(messages[-1]["content"] if messages else "", text)
            arrays.add(pk, values)
            rows.append(
                CompletionFeatures(completion_id=pk, space=SPACE, values=values.astype("<f4").tobytes())
            )
        CompletionFeatures.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["completion"], update_fields=["space", "values"]
        )


def _precisions(previous: AcquisitionFigures | None, arrays: ProjectArrays) -> tuple[float, ...]:
    """Return the precisions to choose from: the one before until the curve is due, all of them then."""
    from annotation.acquisition.posterior import PRECISIONS

    last = previous.figures.get("precision") if previous else None
    return PRECISIONS if last is None or _is_due(previous, arrays) else (last,)


def _choose(project: Project, arrays: ProjectArrays, posterior: Posterior, random: Any) -> int:
    """Give what is to be asked next a score, 0 to what was chosen before; return how many were chosen."""
    from annotation.acquisition import bayesian

    tables = arrays.open_tables()
    every = sum(len(ids) for ids, _ in tables)
    ranked: list[tuple[float, int]] = []
    for ids, table in tables:
        # Sizes share the places as they share the round.
        count = max(1, round(AHEAD * len(ids) / every))
        pool = bayesian.Pool(arrays.features(), table)
        for place, index in enumerate(bayesian.choose(project.acquisition, posterior, pool, count, random)):
            ranked.append((place / count, int(ids[index])))
    scores = {pk: float(len(ranked) - place) for place, (_, pk) in enumerate(sorted(ranked))}
    before = Comparison.objects.filter(
        project=project, round_number=arrays.round_number, acquisition_score__gt=0, open_slots__gt=0
    )
    write_scores(dict.fromkeys(before.values_list("pk", flat=True), 0.0) | scores)
    return len(scores)


def _is_due(previous: AcquisitionFigures | None, arrays: ProjectArrays) -> bool:
    measured = previous.figures.get("measured_at", 0) if previous else 0
    return len(arrays.rankings) >= max(1, measured) * _GROWN


def _outlook(project: Project, arrays: ProjectArrays, posterior: Posterior, random: Any) -> Mapping[str, Any]:
    """Return the learning curve with what the next annotations are worth, and what the strategy saved."""
    import numpy as np

    from annotation.acquisition.posterior import outlook_of, random_labels_worth

    judgments = sorted(arrays.rankings)
    features = arrays.features()
    outlook = outlook_of(
        features,
        [arrays.rankings[pk] for pk in judgments],
        [arrays.prompt_of[pk] for pk in judgments],
        posterior.precision,
        random,
    )
    figures: dict[str, Any] = {
        "measured_at": len(judgments),
        "outlook": outlook.to_json() if outlook else None,
    }
    judged = _asked_by_strategy(project, arrays)
    if judged:
        pool = [rows[:2] for rows in arrays.comparisons.values()]
        worth = random_labels_worth(
            features, np.array([rows[:2] for rows in judged]), np.array(pool), posterior, random
        )
        figures["gain"] = {"asked": len(judged), "worth": worth, "round": arrays.round_number}
    return figures


def _asked_by_strategy(project: Project, arrays: ProjectArrays) -> list[tuple[int, ...]]:
    from annotation.choices import AcquisitionArm, AssignmentState
    from annotation.models import Assignment

    assignments = Assignment.objects.filter(
        comparison__project=project,
        comparison__round_number=arrays.round_number,
        arm=AcquisitionArm.STRATEGY,
        state=AssignmentState.SUBMITTED,
    ).order_by()
    return [
        arrays.comparisons[pk]
        for pk in assignments.values_list("comparison_id", flat=True).distinct()
        if pk in arrays.comparisons
    ]


def _state_of(project: Project) -> list[int]:
    """Return the newest judgment and comparison, and what is hidden: an update is due where they changed."""
    comparisons = Comparison.objects.filter(
        project=project, round_number=access.current_round(project), purpose=Purpose.WORK
    )
    newest = (
        Judgment.everything.filter(comparison__project=project).order_by("-pk").values_list("pk", flat=True)
    )
    last = comparisons.order_by("-pk").values_list("pk", flat=True).first()
    return [newest.first() or 0, last or 0, project.calibration_seals]
