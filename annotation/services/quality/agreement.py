"""Agreement of annotators, and reports that a worker computes."""

from collections.abc import Collection
from dataclasses import astuple

from django.db import transaction
from django.db.models import Q

from annotation.agreement.readings import agreeing_share, by_comparison
from annotation.agreement.records import Selection
from annotation.choices import Purpose, TaskName
from annotation.models import Comparison, Judgment
from annotation.selectors.judged import judged_in
from annotation.services.assignments.leases import only_self
from annotation.services.jobs.messages import send, send_after_commit


def record_agreement_after(*, judgment: Judgment, comparison: Comparison) -> None:
    """Record the agreement of a comparison of which a judgment was written. Call it in its transaction.

    Costs one query where nobody else judged the comparison. No annotator waits for it: where someone else
    has locked the comparison, a worker records it once this transaction is committed.
    """
    if comparison.purpose != Purpose.WORK:
        return
    others = Judgment.objects.filter(comparison=comparison).exclude(annotator_id=judgment.annotator_id)
    # With a lock alone would two who submit at once see each other.
    if comparison.overlap == 1 and not others.exists():
        return
    if not record_agreement(comparisons=[comparison.pk], skip_locked=True):
        send_after_commit(TaskName.RECORD_AGREEMENT, comparison.pk)


@transaction.atomic
def record_agreement(*, comparisons: Collection[int], skip_locked: bool = False) -> int:
    """Record the agreement of comparisons of one project; return how many were looked at.

    It is None where fewer than two people judged; machines do not count. Four queries at most where
    agreement changes little, whatever their number. skip_locked: leave out those that someone else has
    locked, instead of waiting for them.
    """
    locked = Comparison.objects.select_for_update(no_key=True, skip_locked=skip_locked, of=only_self())
    work = locked.filter(pk__in=comparisons, purpose=Purpose.WORK).select_related("project")
    rows = list(work.order_by("pk").only("agreement", "project"))
    if not rows:
        return 0
    of_them = Q(comparison__in=[row.pk for row in rows])
    items = by_comparison(judged_in(rows[0].project, narrowed=of_them))
    changed = []
    for row in rows:
        share = agreeing_share(items.get(row.pk, ()))
        if share != row.agreement:
            row.agreement = share
            changed.append(row)
    if changed:
        Comparison.objects.bulk_update(changed, ["agreement"], batch_size=500)
    return len(rows)


def request_report(*, project_id: int, selection: Selection) -> bool:
    """Ask a worker to compute a report; return False where no message could be sent."""
    return send(TaskName.COMPUTE_REPORT, project_id, *astuple(selection))
