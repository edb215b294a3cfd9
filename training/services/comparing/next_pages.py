"""From one side by side to the next: the same chat again, and the next prompt of a set."""

import random
from dataclasses import asdict

from django.db import transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import User
from annotation.selectors import access
from training.models import SideBySide
from training.selectors.chats import system_of, with_system
from training.selectors.prompt_sets import progress_on
from training.services.comparing.side_by_side import Sampling, ask_side_by_side, create_page

MOST_SEED = 2**31 - 1
_chance = random.SystemRandom()


@transaction.atomic
def regenerate_side_by_side(
    *,
    shown: SideBySide,
    created_by: User,
    sampling: Sampling,
    seed: int | None = None,
    system: str = "",
    blind: bool = True,
) -> SideBySide:
    """Create a page on which the same checkpoints answer the same chat again.

    seed: a new random one where it is None. system: replaces the system prompt; empty keeps it.
    """
    access.refuse_unless_manager(created_by, shown.project, "manager_compares_checkpoints")
    answers = list(shown.answers.select_related("checkpoint"))
    messages = with_system(shown.messages, system.strip())
    is_same = messages == shown.messages
    return create_page(
        [(answer.checkpoint, with_system(answer.messages, system.strip())) for answer in answers],
        project=shown.project,
        prompt=shown.prompt if is_same else None,
        base_prompt=shown.base_prompt or shown.prompt,
        prompt_set=shown.prompt_set,
        messages=messages,
        shared=shown.shared,
        sampling=asdict(sampling),
        seed=_chance.randrange(MOST_SEED) if seed is None else seed,
        scorer=shown.scorer,
        blind=blind,
        continues=shown.continues,
        created_by=created_by,
    )


@transaction.atomic
def next_of_set(*, shown: SideBySide, created_by: User) -> SideBySide:
    """Create the page of the next prompt of the set on which these checkpoints have no vote. Always blind.

    Refuses a page of no set, and a set of which nothing is left.
    """
    access.refuse_unless_manager(created_by, shown.project, "manager_compares_checkpoints")
    if shown.prompt_set is None:
        raise Refusal(
            "comparison_without_prompt_set",
            _("This comparison belongs to no prompt set."),
            field="prompt_set",
        )
    checkpoints = [answer.checkpoint for answer in shown.answers.select_related("checkpoint")]
    progress = progress_on(shown.prompt_set, checkpoints, after=shown.base_prompt_id)
    if progress.next is None:
        raise Refusal(
            "prompt_set_exhausted",
            _("These checkpoints were compared on every prompt of the set."),
            field="prompt_set",
        )
    base_system = system_of(shown.base_prompt.messages) if shown.base_prompt else ""
    system = system_of(shown.messages)
    return ask_side_by_side(
        project=shown.project,
        created_by=created_by,
        checkpoints=checkpoints,
        question=progress.next,
        sampling=Sampling.of(shown),
        seed=shown.seed,
        scorer=shown.scorer,
        system=system if system != base_system else "",
        prompt_set=shown.prompt_set,
    )
