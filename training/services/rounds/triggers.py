"""Automatic starts of training by labels or time, and decisions whose evidence came in."""

import logging

from django.utils import timezone

from annotation.errors import Refusal
from annotation.selectors.access import judgments_current
from training.choices import CAN_START, RoundState
from training.contract import ContractError
from training.models import Round
from training.selectors.round_states import awaiting_evidence
from training.services.rounds.deciding import settle_decision
from training.services.rounds.opening import start_round
from training.services.rounds.transitions import unfinished

logger = logging.getLogger(__name__)


def start_due_rounds() -> None:
    """Start the training of every round whose recipe says that it is time.

    One whose judgments teach nothing yet is looked at again by the next sweep.
    """
    for round_ in Round.objects.filter(state__in=CAN_START, starts_by_itself=True).select_related("project"):
        try:
            if not is_due(round_):
                continue
            start_round(round_=round_, started_by=None)
        except (Refusal, ContractError) as error:
            logger.info("%s: not started by itself, because %s", round_, error)
        else:
            logger.info("%s: started by itself", round_)


def is_due(round_: Round) -> bool:
    """Return whether the recipe's number of judgments is reached, or its time has come."""
    start = round_.parsed_recipe.start
    if start.time is not None and start.time <= timezone.now():
        return True
    if start.judgments is None:
        return False
    # What is not learnt from is no reason to begin.
    learnt = judgments_current(round_.project, [round_.number], machines=round_.parsed_recipe.ai_feedback)
    return learnt.count() >= start.judgments


def settle_decisions(round_id: int | None = None) -> None:
    """Decide every round, or this one, that has nothing left to do but that and needs no manager for it."""
    deciding = Round.objects.filter(
        state=RoundState.DECIDING, pause_requested=False, cancel_requested=False
    ).select_related("project", "policy")
    for round_ in deciding if round_id is None else deciding.filter(pk=round_id):
        if not unfinished(round_).exists():
            settle_decision(round_)
    if round_id is None:
        # People's judgments may have shown something since.
        for round_ in awaiting_evidence().select_related("project", "policy"):
            settle_decision(round_)
