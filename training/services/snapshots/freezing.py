"""Freeze judgments into a snapshot: a folder named by its digest, and the row of it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import Split
from annotation.errors import Refusal
from annotation.models import (
    Project,
    User,
)
from annotation.selectors.access import judgments_current
from annotation.selectors.allocation import groups_of_annotators
from annotation.selectors.judged import reliability_weights
from training.contract import (
    SnapshotRow,
    write_snapshot,
)
from training.files.shared import publish
from training.models import Snapshot
from training.recipe.recipe import FeedbackUse
from training.selectors.rounds import decided_judgments, judgments_with_labelled_steps
from training.services.feedback.rows import feedback_rows
from training.services.snapshots.rows import readers, snapshot_prompts, snapshot_rows


def refuse_unless_learnable(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False, first_passes: bool = False
) -> None:
    """Refuse where no judgment says anything that a reward model could learn from."""
    if decided_judgments(project, rounds, ai_feedback=ai_feedback, first_passes=first_passes).exists():
        return
    if judgments_with_labelled_steps(project, rounds, ai_feedback=ai_feedback).exists():
        return
    count = judgments_current(project, rounds, machines=ai_feedback).count()
    if not count:
        raise Refusal(
            "no_judgments",
            _("%(project)s has no judgments yet: label some comparisons, then start the training round."),
            project=project,
        )
    message = ngettext(
        "%(project)s has %(count)d judgment, but it prefers no response on a training prompt "
        "(held-out prompts only measure). Label more comparisons, then start again.",
        "%(project)s has %(count)d judgments, but none prefers one response to another on a training prompt "
        "(held-out prompts only measure). Label more comparisons, then start again.",
        count,
    )
    raise Refusal("no_preferences", message, project=project, count=count)


@dataclass(slots=True)
class _Tally:
    """Counts of a snapshot's contents."""

    judgments: int = 0
    annotators: set[str] = field(default_factory=set)
    rankings: int = 0
    decided_pairs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Split.values, 0))
    spans: int = 0
    missing: int = 0
    corrections: int = 0
    reviewed: int = 0

    def add(self, row: SnapshotRow) -> None:
        self.judgments += 1
        self.rankings += len(row.completions) > 2
        self.spans += len(row.spans)
        self.missing += len(row.missing)
        self.corrections += len(row.corrections)
        self.reviewed += row.review is not None
        self.decided_pairs[row.split] += sum(1 for _ in row.pairs())
        self.annotators.add(row.annotator)

    def counts(self) -> dict[str, object]:
        return {**asdict(self), "annotators": len(self.annotators)}


def freeze_snapshot(
    *,
    project: Project,
    rounds: Sequence[int],
    created_by: User | None = None,
    weigh_by_reliability: bool = False,
    ai_feedback: bool = False,
    feedback: FeedbackUse | None = None,
    first_passes: bool = False,
    on_row: Callable[[int, int], object] = lambda done, total: None,
) -> Snapshot:
    """Freeze the current judgments of `rounds` into a snapshot.

    Which judgments are in it is decided by one query; what comes later is not. With them go all prompts of
    the project, judged or not, with their references. Equal content gives the snapshot that is already
    there. `weigh_by_reliability` gives each row the weight of
    its annotator, as estimated from the judgments of these rounds; else every row weighs 1.
    `ai_feedback` puts the judgments of programs in, each with the weight 1; how many is told in the header
    and the counts. `feedback` says which feedback of applications comes after the judgments, as rows of its
    own; None none.
    `first_passes` takes the first pass of what was judged with suggestions, not the final one; how many is
    told in the counts.
    `on_row(done, total)` is called as rows are written. Refuses where there is nothing to learn from.
    """
    refuse_unless_learnable(project, rounds, ai_feedback=ai_feedback, first_passes=first_passes)
    judgments = judgments_current(project, rounds, machines=ai_feedback, first_passes=first_passes)
    judgment_rows = list(judgments.values_list("pk", "annotator__is_machine", "annotator"))
    by_machine = {pk: is_machine for pk, is_machine, _ in judgment_rows}
    ids = list(by_machine)
    before_help = judgments.filter(help_after__final_judgment__isnull=False).count() if first_passes else 0
    weights = reliability_weights(project, rounds) if weigh_by_reliability else {}
    groups = groups_of_annotators(project, {annotator for _, _, annotator in judgment_rows})
    read_by = readers(project, rounds, first_passes=first_passes)
    rows_from_feedback = feedback_rows(project, feedback, round_number=max(rounds)) if feedback else []
    tally = _Tally()

    def rows() -> Iterator[SnapshotRow]:
        for row in snapshot_rows(ids, weights=weights, read_by=read_by, groups=groups):
            tally.add(row)
            on_row(tally.judgments, len(ids))
            yield row
        yield from rows_from_feedback

    root = Path(settings.RONDO_SNAPSHOTS)
    root.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=root, prefix=".draft-"))
    try:
        header = write_snapshot(
            draft,
            rows(),
            project=project.slug,
            rounds=tuple(sorted(rounds)),
            prompts=snapshot_prompts(project),
            ai_judgments=sum(by_machine.values()),
            feedback=len(rows_from_feedback),
        )
        folder = root / header.digest
        if not folder.exists():
            draft.chmod(0o755)
            os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    publish(folder)
    with transaction.atomic():
        snapshot, created = Snapshot.objects.get_or_create(
            project=project,
            digest=header.digest,
            defaults={
                "folder": str(folder.relative_to(settings.RONDO_HOME)),
                "rounds": sorted(rounds),
                "counts": {
                    **tally.counts(),
                    "ai_judgments": sum(by_machine.values()),
                    **({"feedback": len(rows_from_feedback)} if feedback else {}),
                    "first_passes": before_help,
                },
                "created_by": created_by,
            },
        )
        if created:
            snapshot.judgments.add(*ids)
    return snapshot
