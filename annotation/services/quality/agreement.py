"""How far the annotators of a comparison agree, kept on its row for tables to filter and sort by."""

from collections.abc import Collection

from django.db import transaction
from django.db.models import Q

from annotation.agreement.readings import agreeing_share, by_comparison
from annotation.choices import Purpose
from annotation.models import Comparison, Judgment, Project
from annotation.selectors.judged import judged_in


def record_agreement_after(*, judgment: Judgment, comparison: Comparison) -> None:
    """Record the agreement of a comparison of which a judgment was written. Call it in its transaction.

    Costs one query where nobody else judged the comparison.
    """
    if comparison.purpose != Purpose.WORK:
        return
    others = Judgment.objects.filter(comparison=comparison).exclude(annotator_id=judgment.annotator_id)
    # With a lock alone would two who submit at once see each other.
    if comparison.overlap > 1 or others.exists():
        record_agreement(project=comparison.project, comparisons=[comparison.pk])


@transaction.atomic
def record_agreement(*, project: Project, comparisons: Collection[int]) -> None:
    """Record the agreement of comparisons: None where fewer than two people judged. Four queries at most
    where agreement changes little, whatever their number; machines do not count.
    """
    locked = Comparison.objects.select_for_update(no_key=True).filter(
        pk__in=comparisons, purpose=Purpose.WORK
    )
    before = dict(locked.order_by("pk").values_list("pk", "agreement"))
    items = by_comparison(judged_in(project, narrowed=Q(comparison__in=list(before))))
    changed = []
    for pk, agreement in before.items():
        share = agreeing_share(items.get(pk, ()))
        if share != agreement:
            changed.append(Comparison(pk=pk, agreement=share))
    if changed:
        Comparison.objects.bulk_update(changed, ["agreement"], batch_size=500)
