"""Live learning: the policy that answers now, judgments that it has not learned from, its updates."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from django.db.models import Exists, OuterRef, QuerySet

from annotation.choices import Purpose, Split
from annotation.models import Candidate, Comparison, Judgment, Project
from annotation.selectors.access import judgments_current
from training.choices import CAN_START, LiveState
from training.models import Checkpoint, LiveLearning, LiveUpdate, QuestionPair, Round
from training.selectors.rounds import decided_judgments

SHOWN_UPDATES = 50
"""The newest updates, so many of which a page lists."""


def learning_round(project: Project) -> Round | None:
    """Return the round whose judgments are learned from: the newest, while it is sampled and labelled."""
    newest = Round.objects.filter(project=project).select_related("project", "policy").order_by("-number")
    round_ = newest.first()
    if round_ is None or round_.state not in CAN_START or round_.pause_requested or round_.cancel_requested:
        return None
    return round_


def served_update(round_: Round) -> LiveUpdate | None:
    """Return the update whose policy answers the prompts of a round; None before the first."""
    served = LiveUpdate.objects.filter(round=round_, state=LiveState.SERVED)
    return served.select_related("run__checkpoint", "snapshot").order_by("-number").first()


def policy_now(round_: Round) -> Checkpoint:
    """Return the checkpoint that answers a round's training prompts now."""
    update = served_update(round_)
    return (update and update.checkpoint) or round_.policy


def learnable(round_: Round) -> QuerySet[Judgment]:
    """Return the current judgments of a round that an update can learn from: people's preferences on training
    prompts."""
    first_passes = round_.parsed_recipe.first_passes
    return decided_judgments(round_.project, [round_.number], first_passes=first_passes)


def new_judgments(round_: Round) -> QuerySet[Judgment]:
    """Return those of the learnable judgments that the policy of now has not learned from."""
    update = served_update(round_)
    return learnable(round_).filter(pk__gt=update.last_judgment if update else 0)


def waiting_comparisons(round_: Round, checkpoints: list[int] | None = None) -> QuerySet[Comparison]:
    """Return the open comparisons of a round's training prompts.

    checkpoints: ids of their sources; None takes all. What a guard asks is not among them.
    """
    waiting = Comparison.objects.filter(
        project=round_.project_id,
        round_number=round_.number,
        purpose=Purpose.WORK,
        prompt__split=Split.TRAIN,
        open_slots__gt=0,
    ).exclude(Exists(QuestionPair.objects.filter(comparison=OuterRef("pk"))))
    if checkpoints is None:
        return waiting
    by_them = Candidate.objects.filter(comparison=OuterRef("pk"), completion__source__in=checkpoints)
    return waiting.filter(Exists(by_them))


def answered_at_first(project: Project) -> int | None:
    """Return how many training prompts a round's own answering takes while live learning is on; None is all.

    The others are answered by what has been learned by then.
    """
    live = LiveLearning.objects.filter(project=project, is_active=True).first()
    return live.every + live.ahead if live else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveView:
    """Live learning of a project, as its page, the labelling screen and the API show it."""

    learning: LiveLearning
    round: Round | None
    """The round that is learned from; None while none is labelled."""
    serving: LiveUpdate | None
    """The update whose policy answers now; None before the first."""
    training: LiveUpdate | None
    """The update that is under way."""
    judgments_ago: int | None
    """Judgments since that policy began to answer."""
    behind: int
    """Judgments that it has not learned from."""

    @property
    def version(self) -> int:
        """Return the number of the update that answers; 0 before the first."""
        return self.serving.number if self.serving else 0


def live_view(project: Project) -> LiveView | None:
    """Return the live learning of a project; None where it was never switched on."""
    learning = LiveLearning.objects.filter(project=project).first()
    if learning is None:
        return None
    round_ = learning_round(project)
    serving = served_update(round_) if round_ else None
    ago = None
    if round_ and serving and serving.served_at:
        since = judgments_current(project, [round_.number]).filter(created_at__gt=serving.served_at)
        ago = since.count()
    return LiveView(
        learning=learning,
        round=round_,
        serving=serving,
        training=LiveUpdate.objects.filter(project=project, state=LiveState.TRAINING).first(),
        judgments_ago=ago,
        behind=new_judgments(round_).count() if round_ else 0,
    )


def updates_of(project: Project) -> list[LiveUpdate]:
    """Return the newest updates of a project."""
    related = ("round", "snapshot", "run__checkpoint", "run__parent")
    return list(LiveUpdate.objects.filter(project=project).select_related(*related)[:SHOWN_UPDATES])


def median_seconds(updates: list[LiveUpdate]) -> float | None:
    """Return the median time from the judgment that made an update due to its first response."""
    seconds = [update.seconds for update in updates if update.seconds is not None]
    return median(seconds) if seconds else None
