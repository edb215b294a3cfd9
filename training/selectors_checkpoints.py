"""What the pages of checkpoints show. Reads only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from django.db.models import Q, QuerySet

from training.choices import CAN_START, CheckpointKind, RoundState, RunState
from training.contract import CHECKPOINT_FOLDER
from training.held_out import figures_of
from training.lineage import Node, Picture, picture_of
from training.model_card import CardFacts
from training.models import Checkpoint, Evaluation, Round, Run
from training.selectors import lineage_of
from training.selectors_evaluation import in_words

_MOST_DRAWN = 150
ENDED_ROUNDS = (RoundState.PROMOTED, RoundState.REJECTED, RoundState.CANCELLED)
"""Rounds that ask for no checkpoint's files any more. A failed one can be started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Something that needs a checkpoint's files."""

    what: str
    url: str = ""


def found_checkpoints(
    seen: QuerySet[Checkpoint], *, text: str = "", tag: str = "", kind: str = ""
) -> QuerySet[Checkpoint]:
    """Those of the checkpoints that are of a kind, bear a tag and have a text in their name or notes."""
    found = seen.select_related("project", "parent", "run__round_step__round")
    if text:
        found = found.filter(Q(name__icontains=text) | Q(notes__icontains=text))
    if kind in CheckpointKind.values:
        found = found.filter(kind=kind)
    if tag:
        # Not every database looks inside a list of JSON: the few that bear any tag are looked at here.
        tagged = seen.exclude(tags=[]).values_list("pk", "tags")
        found = found.filter(pk__in=[pk for pk, tags in tagged if tag in tags])
    return found


def tags_of(checkpoints: QuerySet[Checkpoint]) -> list[str]:
    """Every tag that these bear, by name."""
    return sorted(
        {tag for tags in checkpoints.exclude(tags=[]).values_list("tags", flat=True) for tag in tags}
    )


def family_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """The checkpoints that are drawn with one: those of its project and what they began with."""
    own = (
        Q(project=checkpoint.project) if checkpoint.project_id else Q(pk=checkpoint.pk) | Q(parent=checkpoint)
    )
    related = ("parent", "run__round_step__round", "run__snapshot")
    newest = list(Checkpoint.objects.filter(own).select_related(*related).order_by("-pk")[:_MOST_DRAWN])
    bases = {one.base_model for one in newest}
    starters = Checkpoint.objects.filter(kind=CheckpointKind.STARTER, name__in=bases).select_related(*related)
    unique = {one.pk: one for one in [*starters, *newest]}
    return [unique[pk] for pk in sorted(unique)]


def lineage_picture(checkpoints: Sequence[Checkpoint], *, here: str = "") -> Picture:
    """Descent as a picture."""
    return picture_of([_node(one) for one in checkpoints], here=here)


def _node(checkpoint: Checkpoint) -> Node:
    starter = checkpoint.kind == CheckpointKind.STARTER
    step = getattr(checkpoint.run, "round_step", None) if checkpoint.run else None
    return Node(
        name=checkpoint.name,
        kind=checkpoint.kind,
        parent=checkpoint.parent.name if checkpoint.parent else None if starter else checkpoint.base_model,
        rewarded_by=tuple(rewarding_names(checkpoint.run.spec)) if checkpoint.run else (),
        round_number=step.round.number if step else None,
        url=checkpoint.get_absolute_url(),
        note=str(checkpoint.get_kind_display()),
    )


def rewarding_names(spec: dict[str, Any]) -> Iterable[str]:
    """Names of the reward models that a run is trained for or watched by, as its spec names their folders."""
    settings = spec.get("settings", {})
    parts = [*(settings.get("rewards") or []), *((settings.get("watch") or {}).get("held_out") or [])]
    folders = [
        PurePath(one["checkpoint"]) for one in parts if isinstance(one, dict) and one.get("checkpoint")
    ]
    # The reward model of the same round is taken from its run's folder.
    names = [one.parent.name if one.name == CHECKPOINT_FOLDER else one.name for one in folders]
    return dict.fromkeys(names)


def uses_of(checkpoint: Checkpoint) -> list[Use]:
    """What still needs a checkpoint's files: as long as there is any, they stay."""
    uses = []
    if checkpoint.kind == CheckpointKind.STARTER:
        uses.append(Use(what="every checkpoint that was trained on it"))
    ended = (*ENDED_ROUNDS, RoundState.NOT_ENOUGH_EVIDENCE)
    rounds = Round.objects.exclude(state__in=ended).select_related("project")
    uses += [
        Use(what=f"{one}, which it answers", url=one.get_absolute_url())
        for one in rounds.filter(policy=checkpoint)
    ]
    uses += [
        Use(what=f"{one}, whose rival it is", url=one.get_absolute_url())
        for one in rounds.filter(policy__parent=checkpoint)
    ]
    uses += _unfinished_rounds_of_its_own(checkpoint)
    going_on = Run.objects.exclude(state=RunState.FINISHED).select_related("snapshot__project")
    uses += [
        Use(what=f"run {one}, which continues it", url=one.get_absolute_url())
        for one in going_on.filter(parent=checkpoint)
    ]
    if checkpoint.project_id and checkpoint.kind == CheckpointKind.REWARD:
        uses += [
            Use(what=f"run {one}, which it rewards", url=one.get_absolute_url())
            for one in going_on.filter(snapshot__project=checkpoint.project)
            if checkpoint.name in rewarding_names(one.spec)
        ]
    uses += _named_in_recipes(checkpoint)
    uses += [Use(what=f"{one}, an open arena") for one in checkpoint.arenas.filter(closed_at__isnull=True)]
    uses += [Use(what=f"{one}, which it judges as") for one in checkpoint.judges.filter(is_active=True)]
    evaluations = Evaluation.objects.filter(reward_model=checkpoint).exclude(round__state__in=ENDED_ROUNDS)
    uses += [
        Use(what=f"the evaluation of {one.round}") for one in evaluations.select_related("round__project")
    ]
    uses += [Use(what="an export that is under way") for one in checkpoint.exports.all() if one.goes_on]
    return [*uses, *_newest_of_its_kind(checkpoint)]


def _unfinished_rounds_of_its_own(checkpoint: Checkpoint) -> list[Use]:
    """The round that made it, as long as it has yet to evaluate and decide."""
    step = getattr(checkpoint.run, "round_step", None) if checkpoint.run else None
    if step is None or step.round.state in ENDED_ROUNDS or not _awaits_evidence(step.round):
        return []
    return [Use(what=f"{step.round}, which made it and has not ended", url=step.round.get_absolute_url())]


def _awaits_evidence(round_: Round) -> bool:
    """False for a round without enough evidence whose successor trains already: nothing can come of it."""
    if round_.state != RoundState.NOT_ENOUGH_EVIDENCE:
        return True
    return Round.objects.filter(
        project=round_.project_id, number=round_.number + 1, state__in=(RoundState.DRAFT, *CAN_START)
    ).exists()


def _named_in_recipes(checkpoint: Checkpoint) -> list[Use]:
    """Rounds whose recipe names it: as one that answers, or as a reward."""

    def names(value: Any) -> bool:
        if isinstance(value, dict):
            return any(names(one) for one in value.values())
        if isinstance(value, list):
            return any(names(one) for one in value)
        return bool(value == checkpoint.name)

    ended = (*ENDED_ROUNDS, RoundState.NOT_ENOUGH_EVIDENCE)
    rounds = Round.objects.exclude(state__in=ended).select_related("project")
    return [
        Use(what=f"the recipe of {one}", url=one.get_absolute_url()) for one in rounds if names(one.recipe)
    ]


def _newest_of_its_kind(checkpoint: Checkpoint) -> list[Use]:
    """The newest policy answers next and is continued next; the newest reward model scores."""
    if checkpoint.project_id is None or checkpoint.files_deleted_at:
        return []
    same = Checkpoint.objects.filter(
        project=checkpoint.project, kind=checkpoint.kind, files_deleted_at__isnull=True
    )
    if same.order_by("-pk").values_list("pk", flat=True).first() != checkpoint.pk:
        return []
    return [Use(what=f"{checkpoint.project}, of which it is the newest {checkpoint.get_kind_display()}")]


def latest_evaluation(checkpoint: Checkpoint) -> Evaluation | None:
    """The newest evaluation of a checkpoint against its parent."""
    return checkpoint.evaluations.select_related("parent").order_by("-pk").first()


def card_of(checkpoint: Checkpoint) -> CardFacts:
    """What a checkpoint's card tells."""
    evaluation = latest_evaluation(checkpoint)
    return _facts(checkpoint, [in_words(evaluation)] if evaluation and evaluation.finished_at else [])


def _facts(checkpoint: Checkpoint, evaluation: Sequence[str]) -> CardFacts:
    manifest, run = checkpoint.manifest, checkpoint.run
    snapshot = run.snapshot if run else None
    ancestors = lineage_of(checkpoint)
    figures = manifest.get("metrics", {})
    return CardFacts(
        name=checkpoint.name,
        kind=checkpoint.kind,
        base_model=checkpoint.base_model,
        base_digest=manifest.get("base_digest", ""),
        digest=checkpoint.digest,
        method=run.method if run else "",
        settings=manifest.get("spec", {}).get("settings", {}),
        steps=manifest.get("steps", 0),
        seed=manifest.get("seed", 0),
        commit=manifest.get("commit", ""),
        versions=manifest.get("versions", {}),
        snapshot_digest=manifest.get("snapshot_digest", ""),
        counts=snapshot.counts if snapshot else {},
        rounds=snapshot.rounds if snapshot else [],
        project=checkpoint.project.name if checkpoint.project else "",
        figures=figures_of(
            {name: value for name, value in figures.items() if isinstance(value, int | float)}
        ),
        ancestors=[one.name for one in ancestors if one.kind != CheckpointKind.STARTER],
        ancestor_digests=[one.digest for one in ancestors if one.kind != CheckpointKind.STARTER],
        dropped=sorted(manifest.get("dropped_counts", {}).items()),
        warnings=manifest.get("warnings", []),
        heads=manifest.get("heads", []),
        tags=checkpoint.tags,
        evaluation=evaluation,
    )
