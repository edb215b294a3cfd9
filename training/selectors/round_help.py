"""Did a round help? The answer in a word, and the figures behind it, each with the page of its judgments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.choices import Split
from training.choices import RoundVerdict
from training.figures.evaluation_statistics import EvaluationFigure, outcomes_of
from training.models import Evaluation, Round
from training.selectors.evaluations import (
    DrawnWinRate,
    PeopleSay,
    deciding_shares,
    evaluation_of,
    height_of,
    measurements_of,
    people_say,
    reward_model_validation,
    tolerance_in,
)

_ANSWERS: dict[str, Literal["yes", "no", "open"]] = {RoundVerdict.PROMOTE: "yes", RoundVerdict.REJECT: "no"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A number, what it counts, and the page that lists it."""

    number: str
    text: str
    address: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundHelp:
    """Assessment of a round's new policy against the one before, for people who know no statistics."""

    round: Round
    answer: Literal["yes", "no", "open"]
    title: str
    text: str
    facts: tuple[Fact, ...]
    shares: tuple[DrawnWinRate, ...] = ()
    """The win rates that decide, for one picture."""
    warning: str = ""

    @property
    def height(self) -> int:
        """Return the height of the picture of win rates."""
        return height_of(self.shares)


def help_of(round_: Round) -> RoundHelp | None:
    """Return whether a round helped; None before its new policy was evaluated on any prompt."""
    return help_in(evaluation_of(round_) if round_.verdict else None)


def help_in(evaluation: Evaluation | None) -> RoundHelp | None:
    """Return whether the round of an evaluation helped, without a query for the evaluation."""
    if evaluation is None or not evaluation.round.verdict:
        return None
    if evaluation.finished_at is None or not evaluation.figures["prompts"]:
        return None
    round_ = evaluation.round
    people = people_say(evaluation.checkpoint, evaluation.parent)
    answer = _ANSWERS.get(round_.verdict, "open")
    title, text = _in_words(answer)
    return RoundHelp(
        round=round_,
        answer=answer,
        title=title,
        text=text,
        facts=tuple(_facts(evaluation, people)),
        shares=tuple(deciding_shares(evaluation, people)),
        warning=_warning(evaluation, people),
    )


def _in_words(answer: str) -> tuple[str, str]:
    if answer == "yes":
        return _("Yes"), _("The new model gives better responses than the one before.")
    if answer == "no":
        return _("No"), _("The new model does not give better responses than the one before.")
    return _("Not shown yet"), _("The figures do not show yet that the new model is better or worse.")


def _facts(evaluation: Evaluation, people: PeopleSay) -> Iterator[Fact]:
    project = evaluation.round.project
    wins, losses, ties = _counted(_model_outcomes(evaluation))
    if wins + losses + ties:
        yield Fact(
            number=_("%(wins)s to %(losses)s") % {"wins": wins, "losses": losses},
            text=_(
                "prompts won and lost by the new model, of %(prompts)s test prompts scored by the reward "
                "model"
            )
            % {"prompts": wins + losses + ties},
            address=evaluation.get_absolute_url(),
        )
    wins, losses, ties = _counted(people.outcomes)
    if people.outcomes:
        chosen = {
            "source": evaluation.checkpoint.source_id,
            "against": evaluation.parent.source_id,
            "split": Split.HELD_OUT,
        }
        yield Fact(
            number=_("%(wins)s to %(losses)s") % {"wins": wins, "losses": losses},
            text=_(
                "prompts won and lost by the new model, of %(prompts)s test prompts that people judged "
                "without knowing which model wrote which response"
            )
            % {"prompts": len(people.outcomes)},
            address=_listed("data-comparisons", project.slug, chosen),
        )
    yield from _learned(evaluation)


def _learned(evaluation: Evaluation) -> Iterator[Fact]:
    """Yield from how much it learned, and how far its reward model can be trusted."""
    round_ = evaluation.round
    if round_.snapshot is not None:
        yield Fact(
            number=str(round_.snapshot.counts["judgments"]),
            text=_("annotations in its snapshot"),
            address=round_.snapshot.get_absolute_url(),
        )
    model = evaluation.reward_model
    validation = None if model is None else reward_model_validation(model)
    if validation is not None:
        yield Fact(
            number=f"{validation.accuracy:.0%}",
            text=ngettext(
                "agreement of the reward model with people on %(count)s annotation that it never saw",
                "agreement of the reward model with people on %(count)s annotations that it never saw",
                validation.decided,
            )
            % {"count": validation.decided},
            address=_listed("data-annotations", round_.project.slug, {"split": Split.HELD_OUT}),
        )


def _listed(page: str, slug: str, chosen: Mapping[str, object]) -> str:
    return f"{reverse(page, args=[slug])}?{urlencode(chosen)}"


def _model_outcomes(evaluation: Evaluation) -> list[float]:
    if evaluation.figures["win_rate"] is None:
        return []
    rows = evaluation.rows.select_related("old", "new")
    return outcomes_of([measurements_of(row) for row in rows], tolerance_in(evaluation.figures))


def _counted(outcomes: list[float] | tuple[float, ...]) -> tuple[int, int, int]:
    wins, losses = sum(outcome > 0.5 for outcome in outcomes), sum(outcome < 0.5 for outcome in outcomes)
    return wins, losses, len(outcomes) - wins - losses


def _warning(evaluation: Evaluation, people: PeopleSay) -> str:
    """Say so where the reward rises while people like the responses less: over-optimisation."""
    by_model = EvaluationFigure.from_json(evaluation.figures["win_rate"])
    if by_model is None or people.held_out is None or people.held_out.value >= 0.5:
        return ""
    if by_model.value <= 0.5:
        return ""
    return _(
        "The reward model and people disagree: the reward rises, and people prefer the old responses. The "
        "policy may have learned what the reward model likes rather than what people like."
    )
