"""Rounds of a project: their states, steps and judgments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.utils.translation import gettext as _

from annotation.choices import AssignmentState, Split, Verdict
from annotation.models import Assignment, AuditEntry, Comparison, Judgment, LabelledStep, Project
from annotation.selectors.access import judgments_current
from training.choices import (
    CAN_ROLL_BACK,
    CAN_START,
    CAN_START_AGAIN,
    IS_DECIDED,
    STATE_OF_STEP,
    TRAINS,
    RoundState,
    StepKind,
    StepState,
)
from training.contract.run import read_evaluation
from training.contract.validation import ADAPTER_FROM
from training.figures.held_out import choice_of
from training.files.shared import folder_of
from training.models import Checkpoint, QuestionPair, Round, RoundStep, Run, RunQuestion
from training.recipe.auto import POLICY_ROWS, row_of, with_chosen_policy
from training.recipe.recipe import Recipe
from training.selectors.runs import RunView, run_view
from training.selectors.votes import judged, judgments_by_people

# ── Questions of runs: people's outcomes, the pairs that wait, and how a page shows them ──


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


def questions_of_updates(project: Project) -> list[AskedQuestion]:
    """Return what live learning asked people about its updates, the newest first; steps are updates."""
    asked = RunQuestion.objects.filter(run__live_update__project=project).select_related("run")
    return [_shown(question) for question in asked.order_by("-asked_at")[:SHOWN_QUESTIONS]]


SHOWN_QUESTIONS = 50
"""The newest questions of live learning, so many of which a page lists."""


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


# ── States ──


_ENDED = (StepState.FAILED, StepState.CANCELLED)


def awaiting_evidence() -> QuerySet[Round]:
    """Return rounds that ended without enough evidence and can still be decided: the next does not train
    yet."""
    following = Round.objects.filter(
        project=OuterRef("project"), number=OuterRef("number") + 1, state__in=CAN_ROLL_BACK
    )
    return Round.objects.filter(Exists(following), state=RoundState.NOT_ENOUGH_EVIDENCE)


def can_decide(round_: Round) -> bool:
    """Return whether a round's new policy may be promoted or rejected now."""
    if round_.state == RoundState.NOT_ENOUGH_EVIDENCE:
        return awaiting_evidence().filter(pk=round_.pk).exists()
    return round_.state == RoundState.DECIDING


def place_of(round_: Round) -> RoundState:
    """Return the state in which a paused round resumes, by its steps."""
    steps = RoundStep.objects.filter(round=round_).order_by("position")
    training = [step for step in steps if step.position > 0]
    if training:
        next_one = next((step for step in training if step.state != StepState.FINISHED), training[-1])
        return STATE_OF_STEP[StepKind(next_one.kind)]
    # A running or paused round does not resume sampling that ended early.
    ended_early = Round.objects.filter(pk=round_.pk, state__in=CAN_START_AGAIN).exists()
    left = {StepState.WAITING, StepState.RUNNING} | (set(_ENDED) if ended_early else set())
    if any(step.state in left for step in steps):
        return RoundState.SAMPLING
    comparisons = Comparison.objects.filter(project=round_.project_id, round_number=round_.number)
    return RoundState.LABELLING if steps or comparisons.exists() else RoundState.DRAFT


# ── Judgments ──


def judgments_with_labelled_steps(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False
) -> QuerySet[Judgment]:
    """Return the current judgments on training prompts that label a step of a trace.

    A process reward model learns from them without any preference.
    """
    labelled = Exists(LabelledStep.objects.filter(judgment=OuterRef("pk")))
    return judgments_current(project, rounds, machines=ai_feedback).filter(
        labelled, comparison__prompt__split=Split.TRAIN
    )


def decided_judgments(
    project: Project, rounds: Sequence[int], *, ai_feedback: bool = False, first_passes: bool = False
) -> QuerySet[Judgment]:
    """Return the current judgments on training prompts that imply a preference.

    Where a reviewer has decided the comparison, the reviewer's decision counts. AI judgments only with
    `ai_feedback`; with `first_passes` as annotators judged before suggestions.
    """
    reviewed = Q(comparison__review__decided_at__isnull=False)
    return (
        judgments_current(project, rounds, machines=ai_feedback, first_passes=first_passes)
        .filter(comparison__prompt__split=Split.TRAIN)
        .annotate(places=Count("ranks__rank", distinct=True), ranked=Count("ranks", distinct=True))
        .filter(
            Q(~reviewed, places__gt=1)
            # A partial ranking puts what it ranks above the others.
            | Q(~reviewed, ranked__gt=0, ranked__lt=F("comparison__size"))
            | Q(reviewed, comparison__review__verdict=Verdict.RANKED)
        )
    )


def recipe_to_train(round_: Round) -> Recipe:
    """Return the recipe by which the round would train now: with the policy's settings that
    `policy_method` auto stands for. Once training has started it is the stored one.
    """
    recipe = round_.parsed_recipe
    if recipe.policy_method != "auto" or round_.state not in (RoundState.DRAFT, *CAN_START):
        return recipe
    judgments = decided_judgments(
        round_.project,
        range(1, round_.number + 1),
        ai_feedback=recipe.ai_feedback,
        first_passes=recipe.first_passes,
    ).count()
    prompts = round_.project.prompts.filter(split=Split.TRAIN).count()
    return with_chosen_policy(recipe, judgments=judgments, prompts=prompts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenSetting:
    """A setting that the recipe leaves to the data."""

    name: str
    title: str
    reason: str
    address: str = ""
    """Page of the run that has the figures behind it."""


def chosen_settings(round_: Round) -> list[ChosenSetting]:
    """Return the settings that were chosen for the round, or would be if training started now."""
    recipe = recipe_to_train(round_)
    chosen = []
    if recipe.reward.features == "auto":
        chosen.append(_chosen_reward_model(round_))
    row = row_of(recipe.policy) if recipe.policy_method == "auto" else None
    if row is not None:
        later = next((other for other in POLICY_ROWS if other.least > row.least), None)
        further = _("From %(count)d decided annotations on: %(title)s.")
        reason = str(row.reason)
        if later is not None:
            reason = f"{reason} {further % {'count': later.least, 'title': later.title}}"
        chosen.append(ChosenSetting(name=_("Policy"), title=str(row.title), reason=reason))
    return chosen


def _chosen_reward_model(round_: Round) -> ChosenSetting:
    run = Run.objects.filter(round_step__round=round_, round_step__kind=StepKind.TRAIN_REWARD_MODEL).first()
    choice = choice_of(read_evaluation(folder_of(run))) if run is not None else None
    if run is not None and choice is not None:
        address = f"{run.get_absolute_url()}#choice"
        return ChosenSetting(
            name=_("Reward model"), title=choice.title, reason=choice.summary, address=address
        )
    return ChosenSetting(
        name=_("Reward model"),
        title=_("chosen in training"),
        reason=_(
            "Cross-validation grouped by prompt takes the best of length alone, surface features and a head "
            "on frozen features; from %(count)d decided annotations on an adapter is tried, too."
        )
        % {"count": ADAPTER_FROM},
    )


# ── Rounds ──


_MOST_ENTRIES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundView:
    """The state of a round."""

    round: Round
    steps: list[RoundStep]
    current: RoundStep | None
    """The running step, or else the one that ended the round early."""
    run: RunView | None
    """The run of the current step, or of the last one that had a run."""
    candidate: Checkpoint | None
    """The policy that it trained; None before it is registered."""
    is_going_on: bool
    """True if a worker is on it, or will be without any action."""
    can_answer_again: bool
    can_decide: bool
    """True where its new policy may be promoted or rejected now."""
    is_decided: bool
    """True where a verdict ended it; its training is then a link, not a chart."""
    life: list[tuple[str, str]]
    """Every state up to the verdict, in words, with its mark: done, running or waiting."""


def round_view(round_: Round) -> RoundView:
    """Return the state of a round, with the curves and the log of its training. Two queries, two small
    files."""
    steps = list(round_.steps.select_related("run__checkpoint").order_by("position"))
    shown = [step for step in steps if step.position > 0] or steps
    ended_early = (StepState.FAILED, StepState.CANCELLED)
    current = next((step for step in steps if step.state == StepState.RUNNING), None) or next(
        (step for step in shown if step.state in ended_early), None
    )
    with_run = [step for step in steps if step.run]
    run = current.run if current and current.run else with_run[-1].run if with_run else None
    opening = next((step for step in steps if step.position == 0), None)
    waits = (StepState.WAITING, StepState.RUNNING)
    labelling = round_.state == RoundState.LABELLING
    answering = opening is not None and opening.state in waits
    works = round_.state == RoundState.SAMPLING or (labelling and answering)
    return RoundView(
        round=round_,
        steps=steps,
        current=current,
        run=run_view(run) if run else None,
        candidate=_candidate(with_run),
        is_going_on=works or (round_.state in TRAINS and any(step.state in waits for step in shown)),
        can_answer_again=labelling and opening is not None and opening.state in ended_early,
        can_decide=can_decide(round_),
        is_decided=round_.state in (*IS_DECIDED, RoundState.NOT_ENOUGH_EVIDENCE),
        life=_life(round_),
    )


def _life(round_: Round) -> list[tuple[str, str]]:
    ends = (*IS_DECIDED, RoundState.NOT_ENOUGH_EVIDENCE)
    verdict = RoundState(round_.state) if round_.state in ends else RoundState.PROMOTED
    states = (RoundState.DRAFT, *CAN_START, *TRAINS, verdict)
    here = RoundState(round_.state)
    at = states.index(here if here in states else place_of(round_))
    marks = ["done"] * at + ["done" if round_.state in ends else "running"] + ["waiting"] * len(states)
    return [(str(state.label), mark) for state, mark in zip(states, marks, strict=False)]


def _candidate(with_run: list[RoundStep]) -> Checkpoint | None:
    runs = [step.run for step in with_run if step.kind == StepKind.TRAIN_POLICY]
    return getattr(runs[0], "checkpoint", None) if runs else None


def audit_of(round_: Round) -> QuerySet[AuditEntry]:
    """Return the audit entries of a round, latest first."""
    entries = AuditEntry.objects.filter(
        project=round_.project_id, subject_id=round_.pk, action__startswith="round."
    )
    return entries.select_related("actor").order_by("-pk")[:_MOST_ENTRIES]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """The amount of training data of a round."""

    judgments: int
    decided: int
    """Judgments on training prompts that prefer some answer."""


def sampling_of(round_: Round) -> RoundStep | None:
    """Return the sampling that starting the training would cancel; None where it has ended."""
    waits = (StepState.WAITING, StepState.RUNNING)
    return round_.steps.filter(position=0, state__in=waits).first()


def material_of(round_: Round) -> Material:
    """Return the current training data of a round: what its snapshot would hold now."""
    recipe = round_.parsed_recipe
    rounds = range(1, round_.number + 1)
    first_passes = recipe.first_passes
    return Material(
        judgments=judgments_current(
            round_.project, rounds, machines=recipe.ai_feedback, first_passes=first_passes
        ).count(),
        decided=decided_judgments(
            round_.project, rounds, ai_feedback=recipe.ai_feedback, first_passes=first_passes
        ).count(),
    )
