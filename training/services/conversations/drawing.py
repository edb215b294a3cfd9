"""Drawing: which checkpoints respond to a turn, in the order of their positions, counterbalanced."""

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, combinations_with_replacement

from django.db.models import F
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project
from annotation.services.assignments.display_order import balanced_order
from training.models import Checkpoint, ModelDraw
from training.selectors.conversations import Terms

_chance = random.SystemRandom()


def draw_checkpoints(*, project: Project, terms: Terms) -> Sequence[Checkpoint]:
    """Draw who responds, in the order of positions: sets of checkpoints and positions are counterbalanced.

    Where fewer checkpoints were chosen than responses, some respond more than once, each time with another
    seed. Call it in a transaction. Refuses where too few checkpoints have their files.
    """
    served = {
        checkpoint.pk: checkpoint for checkpoint in terms.checkpoints if checkpoint.files_deleted_at is None
    }
    if len(served) < max(1, min(terms.responses, len(terms.checkpoints))):
        raise Refusal(
            "too_few_checkpoints",
            _("Too few checkpoints are left for a conversation. Ask the project's manager."),
        )
    # Turns of one project that begin at once take turns here, so that the counts balance.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    rows = ModelDraw.objects.filter(project=project, scope=terms.scope)
    drawn = dict(rows.values_list("models_key", "drawn"))
    keys = {":".join(map(str, ids)): ids for ids in _sets_of(sorted(served), terms.responses)}
    fewest = min(drawn.get(key, 0) for key in keys)
    key = _chance.choice([key for key in keys if drawn.get(key, 0) == fewest])
    ModelDraw.objects.get_or_create(project=project, scope=terms.scope, models_key=key)
    rows.filter(models_key=key).update(drawn=F("drawn") + 1)
    order = balanced_order(
        keys[key], number=fewest, drawn_for=f"conversation:{project.pk}:{terms.scope}:{key}"
    )
    return [served[pk] for pk in order]


def _sets_of(ids: Sequence[int], responses: int) -> Iterable[tuple[int, ...]]:
    """Return the sets that may respond: each checkpoint once, or at least once where there are too few."""
    if len(ids) >= responses:
        return combinations(ids, responses)
    return (drawn for drawn in combinations_with_replacement(ids, responses) if set(drawn) == set(ids))
