"""The outcome of an evaluation in a paragraph: subject, judges, meaning and limits."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from training.choices import CAN_DECIDE, RoundState, Verdict
from training.models import Evaluation, Round
from training.selectors.evaluations import NOBODY, PeopleSay, people_say


def summary_of(evaluation: Evaluation | None) -> str:
    """Return the paragraph on an evaluation with the current judgments; empty before it is finished."""
    if evaluation is None or evaluation.finished_at is None:
        return ""
    if not evaluation.figures["prompts"]:
        return paragraph_on(evaluation, NOBODY)
    return paragraph_on(evaluation, people_say(evaluation.checkpoint, evaluation.parent))


def paragraph_on(evaluation: Evaluation, people: PeopleSay) -> str:
    """Return the outcome of a finished evaluation as a paragraph in the active language."""
    sentences = [_compared(evaluation), _judged(evaluation, people), _arena_votes(people)]
    # Rounds decided before there were verdicts used other rules, so their evidence is unknown.
    if evaluation.round.verdict:
        sentences += [_result(evaluation.round), _what_changes(evaluation)]
    return " ".join(sentence for sentence in sentences if sentence)


def _compared(evaluation: Evaluation) -> str:
    figures = evaluation.figures
    names = {"checkpoint": evaluation.checkpoint.name, "parent": evaluation.parent.name}
    if not figures["prompts"]:
        return (
            _(
                "%(checkpoint)s was not compared with its parent %(parent)s: the project has no held-out "
                "prompts."
            )
            % names
        )
    return _(
        "%(checkpoint)s was compared with its parent %(parent)s. Held-out prompts: %(prompts)s; identical "
        "responses on %(same)s of them; too close to call on %(tied)s."
    ) % {**names, **{name: figures.get(name, 0) for name in ("prompts", "same", "tied")}}


def _judged(evaluation: Evaluation, people: PeopleSay) -> str:
    if not evaluation.figures["prompts"]:
        return ""
    judgments = {"judgments": people.held_out_judgments, "prompts": len(people.outcomes)}
    if evaluation.reward_model is None or evaluation.figures["win_rate"] is None:
        return (
            _(
                "Evaluated by people: %(judgments)s annotations on %(prompts)s of these prompts; no"
                " reward model."
            )
            % judgments
        )
    return _(
        "The reward model %(model)s scored all of them, and people submitted %(judgments)s "
        "annotations on %(prompts)s of them."
    ) % {"model": evaluation.reward_model.name, **judgments}


def _arena_votes(people: PeopleSay) -> str:
    if not people.held_out_arena_votes:
        return ""
    return ngettext(
        "%(count)s of these annotations is a vote of a member in an arena; votes of guests do not count.",
        "%(count)s of these annotations are votes of members in an arena; votes of guests do not count.",
        people.held_out_arena_votes,
    ) % {"count": people.held_out_arena_votes}


def _result(round_: Round) -> str:
    if round_.verdict == Verdict.PROMOTE:
        return _("The evidence is for the new policy: every condition of the recipe holds.")
    if round_.verdict == Verdict.REJECT:
        return _("The evidence is against the new policy: a condition of the recipe does not hold.")
    return _(
        "There is not enough evidence: the figures do not show that the new policy is better or worse than "
        "its parent."
    )


def _what_changes(evaluation: Evaluation) -> str:
    round_ = evaluation.round
    if round_.state not in CAN_DECIDE:
        return _("The round is decided. To undo that, roll the next round back before it trains.")
    if round_.verdict != Verdict.NOT_ENOUGH_EVIDENCE or round_.parsed_recipe.promotion.by_hand:
        return _("A manager promotes or rejects it.")
    follows = _what_follows(evaluation, round_.parsed_recipe.promotion.least_differing_prompts)
    if round_.state != RoundState.NOT_ENOUGH_EVIDENCE:
        return follows
    goes_on = _(
        "Until then the next round continues from the parent, and both checkpoints respond to its prompts."
    )
    return f"{follows} {goes_on}"


def _what_follows(evaluation: Evaluation, minimum: int) -> str:
    """Return how people may still decide, or that there are too few prompts for that."""
    differing = evaluation.figures["prompts"] - evaluation.figures["same"]
    if differing < minimum:
        return ngettext(
            "%(count)s prompt has different responses; a decision by people needs %(minimum)s. Evaluate "
            "on more held-out prompts in the next round, or promote or reject it now, with a reason.",
            "%(count)s prompts have different responses; a decision by people needs %(minimum)s. Evaluate "
            "on more held-out prompts in the next round, or promote or reject it now, with a reason.",
            differing,
        ) % {"count": differing, "minimum": minimum}
    return _(
        "Annotations by people on held-out prompts would change this: the pairs are in the "
        "labelling queue, and the decision follows once at least %(minimum)s prompts with "
        "different responses are annotated and the interval of the win rate excludes one half. "
        "A manager may promote or reject it now, with a reason."
    ) % {"minimum": minimum}
