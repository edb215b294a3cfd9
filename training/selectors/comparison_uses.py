"""Training data, runs and checkpoints that came of one comparison."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from annotation.models import Comparison
from training.models import Checkpoint, Run, Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A snapshot with judgments of a comparison, and the runs that trained on it."""

    snapshot: Snapshot
    judgments: Sequence[int]
    """Those of the comparison, by id."""
    runs: Sequence[tuple[Run, Checkpoint | None]]


def uses_of_comparison(comparison: Comparison) -> list[Use]:
    """Return the snapshots that hold judgments of a comparison, newest first. Three queries."""
    rows = Snapshot.judgments.through.objects.filter(judgment__comparison=comparison)
    judgments: dict[int, list[int]] = defaultdict(list)
    for snapshot, judgment in rows.order_by("judgment_id").values_list("snapshot_id", "judgment_id"):
        judgments[snapshot].append(judgment)
    if not judgments:
        return []
    runs = Run.objects.filter(snapshot__in=judgments).select_related("checkpoint").order_by("pk")
    by_snapshot: dict[int, list[tuple[Run, Checkpoint | None]]] = defaultdict(list)
    for run in runs:
        by_snapshot[run.snapshot_id].append((run, getattr(run, "checkpoint", None)))
    snapshots = Snapshot.objects.filter(pk__in=judgments).order_by("-pk")
    return [
        Use(snapshot=snapshot, judgments=judgments[snapshot.pk], runs=by_snapshot[snapshot.pk])
        for snapshot in snapshots
    ]
