"""Questions of runs: people's outcomes, the pairs that wait, and how a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState
from annotation.models import Assignment
from training.models import QuestionPair, Round, RunQuestion
from training.selectors.votes import judged, judgments_by_people


def outcomes_of(question: RunQuestion) -> list[float]:
    """Return people's outcomes of a question's pairs: 1 where now wins, 0 where it loses, 1/2 for a tie.

    Of a pair the first current judgment by a person with an account counts, as for an evaluation; one that
    prefers nothing, because it cannot judge, gives no outcome.
    """
    pairs = dict(question.pairs.values_list("comparison", "now__source"))
    judgments: dict[int, int] = {}
    by_people = judgments_by_people().filter(comparison__in=pairs).order_by("pk")
    for pk, comparison in by_people.values_list("pk", "comparison"):
        judgments.setdefault(comparison, pk)
    of_judgment = {pk: comparison for comparison, pk in judgments.items()}
    outcomes = []
    for pk, judgment in judged(list(of_judgment)).items():
        now = pairs[of_judgment[pk]]
        outcomes += [
            (1 + (vote.outcome if vote.left == now else -vote.outcome)) / 2 for vote in judgment.votes
        ]
    return outcomes


def unanswered_pairs(question: RunQuestion) -> QuerySet[QuestionPair]:
    """Return the pairs of a question that wait for a person, or that one has in hand."""
    held = Exists(Assignment.objects.filter(comparison=OuterRef("comparison"), state=AssignmentState.LEASED))
    return question.pairs.filter(Q(comparison__open_slots__gt=0) | Q(held))


@dataclass(frozen=True, kw_only=True, slots=True)
class AskedQuestion:
    """A question of a run, as the page of its round and the API show it."""

    run: str
    number: int
    step: int
    then_step: int
    signals: tuple[str, ...]
    """What raised it, a sentence each, in the active language."""
    pairs: int
    """Pairs that people were asked."""
    wins: int
    """Answers by which the policy of `step` is better."""
    losses: int
    ties: int
    outcome: str
    outcome_name: str
    """The outcome in the active language."""
    asked_at: datetime
    ended_at: datetime | None

    @property
    def answers(self) -> int:
        """Return how many answers there are."""
        return self.wins + self.losses + self.ties


def questions_of_round(round_: Round) -> QuerySet[RunQuestion]:
    """Return the questions of the runs that a round has now, in their order."""
    return RunQuestion.objects.filter(run__round_step__round=round_).order_by("run", "number")


def questions_of(round_: Round) -> list[AskedQuestion]:
    """Return what the runs of a round asked people, in that order."""
    return [_shown(question) for question in questions_of_round(round_).select_related("run")]


def _shown(question: RunQuestion) -> AskedQuestion:
    outcomes = outcomes_of(question)
    return AskedQuestion(
        run=question.run.name,
        number=question.number,
        step=question.step,
        then_step=question.then_step,
        signals=tuple(map(_sentence, question.signals)),
        pairs=question.pairs.count(),
        wins=sum(outcome == 1 for outcome in outcomes),
        losses=sum(outcome == 0 for outcome in outcomes),
        ties=sum(outcome == 0.5 for outcome in outcomes),
        outcome=question.outcome,
        outcome_name=str(question.get_outcome_display()),
        asked_at=question.asked_at,
        ended_at=question.ended_at,
    )


def _sentence(signal: dict[str, object]) -> str:
    sentences = {
        "kl": _("KL divergence from the reference: %(value)s nats per response (asks from %(bound)s)"),
        "reward": _("Rise of the reward: %(value)s standard deviations in five steps (asks from %(bound)s)"),
        "length": _("Length of the responses: %(value)s times the first ones (asks from %(bound)s)"),
        "heads": _("Disagreement of the heads: %(value)s times the first one (asks from %(bound)s)"),
    }
    figures = {name: f"{float(str(signal[name])):.3g}" for name in ("value", "bound")}
    return sentences[str(signal["name"])] % figures
