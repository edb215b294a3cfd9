"""Checkpoints: their pages, origins and uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from django.db.models import Exists, F, FloatField, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.expressions import Combinable
from django.db.models.fields.json import KeyTextTransform, KeyTransform
from django.db.models.functions import Cast

from annotation.models import Comparison
from training.choices import CAN_START, CheckpointKind, LiveState, RoundState, RunState
from training.contract.run import CHECKPOINT_FOLDER
from training.figures.held_out import figures_of
from training.figures.model_card import CardFacts
from training.models import Checkpoint, Evaluation, LiveUpdate, Round, Run, Snapshot
from training.selectors.evaluations import in_words
from training.selectors.projects import lineage_of

# Lineage of checkpoints as a picture: coordinates of boxes and lines for an SVG. Uses no database.

BOX_WIDTH = 168
BOX_HEIGHT = 44
_COLUMN = 224
_ROW = 64
_MARGIN = 8
_LONGEST_NAME = 18
"""Characters of 12 pixels that fit between the margins of a box, in the widest of the fonts in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageNode:
    """A checkpoint to draw."""

    name: str
    kind: str
    parent: str | None
    """The checkpoint or base model that its training started from; None for a base."""
    rewarded_by: tuple[str, ...] = ()
    """Reward models whose scores it was trained for."""
    round_number: int | None = None
    url: str = ""
    note: str = ""
    """A few words below the name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A drawn node."""

    node: LineageNode
    x: int
    y: int
    is_here: bool

    @property
    def short_name(self) -> str:
        """Return the name shortened to fit the box, keeping its end, which is more specific than its
        middle."""
        name = self.node.name
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME // 3]}…{name[-(_LONGEST_NAME - _LONGEST_NAME // 3 - 1) :]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LineageEdge:
    """A line between two boxes, as an SVG path."""

    path: str
    is_reward: bool
    """True if the line means a reward, not a parent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """The whole picture."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[LineageEdge, ...]


def picture_of(nodes: Sequence[LineageNode], *, here: str = "") -> Picture:
    """Return a picture with columns from left to right: bases, then each checkpoint by its round and parents.

    Within a column the policies stand above the reward models. A parent or reward model that is not among the
    nodes gets no line.
    """
    known = {node.name: node for node in nodes}
    columns = _columns(known)
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    # Reward models are drawn last, below the policies, so that a line of policies is straight.
    for node in sorted(nodes, key=lambda node: node.kind == "reward"):
        column = columns[node.name]
        row = rows.get(column, 0)
        if node.parent in places and places[node.parent][1] > row:
            row = places[node.parent][1]
        rows[column] = row + 1
        places[node.name] = (column, row)
    boxes = tuple(
        Box(
            node=node,
            x=_MARGIN + places[node.name][0] * _COLUMN,
            y=_MARGIN + places[node.name][1] * _ROW,
            is_here=node.name == here,
        )
        for node in nodes
    )
    by_name = {box.node.name: box for box in boxes}
    lines = [
        _line(by_name[parent], by_name[node.name], is_reward)
        for node in nodes
        for parent, is_reward in [(node.parent, False), *((name, True) for name in node.rewarded_by)]
        if parent in by_name and parent != node.name
    ]
    return Picture(
        width=2 * _MARGIN + max((columns.values()), default=0) * _COLUMN + BOX_WIDTH,
        height=2 * _MARGIN + max((row for _, row in places.values()), default=0) * _ROW + BOX_HEIGHT,
        boxes=boxes,
        lines=tuple(lines),
    )


def _columns(known: Mapping[str, LineageNode]) -> dict[str, int]:
    """Return the column of each node: right of its parents and rewards, and by its round."""
    columns: dict[str, int] = {}

    def column_of(name: str, seen: frozenset[str]) -> int:
        if name in columns:
            return columns[name]
        node = known[name]
        # `seen` ends the recursion even in data with a cycle.
        origins = [
            origin for origin in (node.parent, *node.rewarded_by) if origin in known and origin not in seen
        ]
        least = max((column_of(origin, seen | {name}) + 1 for origin in origins if origin), default=0)
        columns[name] = max(least, node.round_number or 0)
        return columns[name]

    for name in known:
        column_of(name, frozenset((name,)))
    return columns


def _line(origin: Box, target: Box, is_reward: bool) -> LineageEdge:
    x1, y1 = origin.x + BOX_WIDTH, origin.y + BOX_HEIGHT // 2
    x2, y2 = target.x, target.y + BOX_HEIGHT // 2
    bend = max(20, (x2 - x1) // 2)
    return LineageEdge(path=f"M{x1},{y1}C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}", is_reward=is_reward)


# ── Checkpoints ──

# ── Uses in comparisons ──


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonUse:
    """A snapshot with judgments of a comparison, and the runs that trained on it."""

    snapshot: Snapshot
    judgments: Sequence[int]
    """Those of the comparison, by id."""
    runs: Sequence[tuple[Run, Checkpoint | None]]


def uses_of_comparison(comparison: Comparison) -> list[ComparisonUse]:
    """Return the snapshots that hold judgments of a comparison, newest first. Three queries."""
    rows = Snapshot.judgments.through.objects.filter(judgment__comparison=comparison)
    judgments: dict[int, list[int]] = defaultdict(list)
    for snapshot, judgment in rows.order_by("judgment_id").values_list("snapshot_id", "judgment_id"):
        judgments[snapshot].append(judgment)
    if not judgments:
        return []
    runs = Run.objects.filter(snapshot__in=judgments).select_related("checkpoint").order_by("pk")
    by_snapshot: dict[int, list[tuple[Run, Checkpoint | None]]] = defaultdict(list)
    for run in runs:
        by_snapshot[run.snapshot_id].append((run, getattr(run, "checkpoint", None)))
    snapshots = Snapshot.objects.filter(pk__in=judgments).order_by("-pk")
    return [
        ComparisonUse(snapshot=snapshot, judgments=judgments[snapshot.pk], runs=by_snapshot[snapshot.pk])
        for snapshot in snapshots
    ]


# ── Checkpoints ──


_MOST_DRAWN = 150
ENDED_ROUNDS = (RoundState.PROMOTED, RoundState.REJECTED, RoundState.CANCELLED)
"""Rounds that need no checkpoint files any more. A failed one can be started again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """A use of a checkpoint's files."""

    what: str
    url: str = ""


ORDERS = ("name", "kind", "round", "created", "accuracy", "win_rate")
"""Columns by which checkpoints are ordered, with a minus for the largest first."""
_LARGEST_ROUND = 2**31 - 1


def found_checkpoints(
    checkpoints: QuerySet[Checkpoint],
    *,
    text: str = "",
    tag: str = "",
    kind: str = "",
    round_number: int | None = None,
    evaluated: bool = False,
) -> QuerySet[Checkpoint]:
    """Return the checkpoints of a kind, tag and round with a text in their name or notes.

    evaluated: only those with a finished evaluation.
    """
    matches = checkpoints.select_related("project", "parent", "run__round_step__round")
    if text:
        matches = matches.filter(Q(name__icontains=text) | Q(notes__icontains=text))
    if kind in CheckpointKind.values:
        matches = matches.filter(kind=kind)
    if tag:
        # Not every database searches JSON lists: the few tagged ones are filtered here.
        tagged = checkpoints.exclude(tags=[]).values_list("pk", "tags")
        matches = matches.filter(pk__in=[pk for pk, tags in tagged if tag in tags])
    if round_number is not None:
        matches = matches.filter(run__round_step__round__number=min(round_number, _LARGEST_ROUND))
    if evaluated:
        matches = matches.filter(Exists(_finished_evaluations(OuterRef("pk"))))
    return matches


def ordered_checkpoints(checkpoints: QuerySet[Checkpoint], order: str) -> QuerySet[Checkpoint]:
    """Return checkpoints by one of `ORDERS`, those without a value last; by any other order newest first."""
    key = order.removeprefix("-")
    if key not in ORDERS:
        return checkpoints.order_by("-pk")
    win_rate = Cast(KeyTextTransform("value", KeyTransform("win_rate", "figures")), FloatField())
    newest = _finished_evaluations(OuterRef("pk")).order_by("-pk").values_list(win_rate)[:1]
    values: dict[str, Combinable] = {
        "name": F("name"),
        "kind": F("kind"),
        "round": F("run__round_step__round__number"),
        "created": F("created_at"),
        "accuracy": Cast(KeyTextTransform("held_out_accuracy", "run__summary"), FloatField()),
        "win_rate": Subquery(newest, output_field=FloatField()),
    }
    ranked = checkpoints.annotate(order_value=values[key])
    value = F("order_value")
    by_value = value.desc(nulls_last=True) if order.startswith("-") else value.asc(nulls_last=True)
    return ranked.order_by(by_value, "-pk")


def with_evaluations(checkpoints: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
    """Return checkpoints with their finished evaluations, newest first, as `finished_evaluations`."""
    finished = Evaluation.objects.filter(finished_at__isnull=False).order_by("-pk")
    return checkpoints.prefetch_related(Prefetch("evaluations", finished, to_attr="finished_evaluations"))


def rounds_of(checkpoints: QuerySet[Checkpoint]) -> list[int]:
    """Return the numbers of the rounds that trained these checkpoints, newest first."""
    numbers = checkpoints.filter(run__round_step__isnull=False).order_by()
    return sorted(numbers.values_list("run__round_step__round__number", flat=True).distinct(), reverse=True)


def _finished_evaluations(checkpoint: OuterRef) -> QuerySet[Evaluation]:
    return Evaluation.objects.filter(checkpoint=checkpoint, finished_at__isnull=False)


def tags_of(checkpoints: QuerySet[Checkpoint]) -> list[str]:
    """Return all tags of these checkpoints, sorted."""
    return sorted(
        {tag for tags in checkpoints.exclude(tags=[]).values_list("tags", flat=True) for tag in tags}
    )


def family_of(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return the checkpoints to draw with one: those of its project and their bases."""
    is_related = (
        Q(project=checkpoint.project) if checkpoint.project_id else Q(pk=checkpoint.pk) | Q(parent=checkpoint)
    )
    related = ("parent", "run__round_step__round", "run__snapshot")
    newest = list(
        Checkpoint.objects.filter(is_related).select_related(*related).order_by("-pk")[:_MOST_DRAWN]
    )
    bases = {checkpoint.base_model for checkpoint in newest}
    starters = Checkpoint.objects.filter(kind=CheckpointKind.STARTER, name__in=bases).select_related(*related)
    unique = {checkpoint.pk: checkpoint for checkpoint in [*starters, *newest]}
    return [unique[pk] for pk in sorted(unique)]


def lineage_picture(checkpoints: Sequence[Checkpoint], *, here: str = "") -> Picture:
    return picture_of([_node(checkpoint) for checkpoint in checkpoints], here=here)


def _node(checkpoint: Checkpoint) -> LineageNode:
    starter = checkpoint.kind == CheckpointKind.STARTER
    step = getattr(checkpoint.run, "round_step", None) if checkpoint.run else None
    return LineageNode(
        name=checkpoint.name,
        kind=checkpoint.kind,
        parent=checkpoint.parent.name if checkpoint.parent else None if starter else checkpoint.base_model,
        rewarded_by=tuple(rewarding_names(checkpoint.run.spec)) if checkpoint.run else (),
        round_number=step.round.number if step else None,
        url=checkpoint.get_absolute_url(),
        note=str(checkpoint.get_kind_display()),
    )


def rewarding_names(spec: dict[str, Any]) -> Iterable[str]:
    """Return the names of the reward models that a run's spec uses, from their folders."""
    settings = spec.get("settings", {})
    parts = [*(settings.get("rewards") or []), *((settings.get("watch") or {}).get("held_out") or [])]
    folders = [
        PurePath(part["checkpoint"]) for part in parts if isinstance(part, dict) and part.get("checkpoint")
    ]
    # The reward model of the same round is taken from its run's folder.
    names = [folder.parent.name if folder.name == CHECKPOINT_FOLDER else folder.name for folder in folders]
    return dict.fromkeys(names)


def uses_of(checkpoint: Checkpoint) -> list[Use]:
    """Return the uses of a checkpoint's files; they stay while there are any."""
    uses = []
    if checkpoint.kind == CheckpointKind.STARTER:
        uses.append(Use(what="every checkpoint that was trained on it"))
    ended = (*ENDED_ROUNDS, RoundState.NOT_ENOUGH_EVIDENCE)
    rounds = Round.objects.exclude(state__in=ended).select_related("project")
    uses += [
        Use(what=f"{round_}, which it answers", url=round_.get_absolute_url())
        for round_ in rounds.filter(policy=checkpoint)
    ]
    uses += [
        Use(what=f"{round_}, whose rival it is", url=round_.get_absolute_url())
        for round_ in rounds.filter(policy__parent=checkpoint)
    ]
    uses += _unfinished_rounds_of_its_own(checkpoint)
    uses += _live_uses(checkpoint)
    going_on = Run.objects.exclude(state=RunState.FINISHED).select_related("snapshot__project")
    uses += [
        Use(what=f"run {run}, which continues it", url=run.get_absolute_url())
        for run in going_on.filter(parent=checkpoint)
    ]
    if checkpoint.project_id and checkpoint.kind == CheckpointKind.REWARD:
        uses += [
            Use(what=f"run {run}, which it rewards", url=run.get_absolute_url())
            for run in going_on.filter(snapshot__project=checkpoint.project)
            if checkpoint.name in rewarding_names(run.spec)
        ]
    uses += _named_in_recipes(checkpoint)
    uses += [
        Use(what=f"{arena}, an open arena") for arena in checkpoint.arenas.filter(closed_at__isnull=True)
    ]
    uses += [Use(what=f"{judge}, which it judges as") for judge in checkpoint.judges.filter(is_active=True)]
    evaluations = Evaluation.objects.filter(reward_model=checkpoint).exclude(round__state__in=ENDED_ROUNDS)
    uses += [
        Use(what=f"the evaluation of {evaluation.round}")
        for evaluation in evaluations.select_related("round__project")
    ]
    uses += [Use(what="an export that is under way") for export in checkpoint.exports.all() if export.goes_on]
    return [*uses, *_newest_of_its_kind(checkpoint)]


def _unfinished_rounds_of_its_own(checkpoint: Checkpoint) -> list[Use]:
    """Return the round that made it, until that round is evaluated and decided."""
    step = getattr(checkpoint.run, "round_step", None) if checkpoint.run else None
    if step is None or step.round.state in ENDED_ROUNDS or not _awaits_evidence(step.round):
        return []
    return [Use(what=f"{step.round}, which made it and has not ended", url=step.round.get_absolute_url())]


def _live_uses(checkpoint: Checkpoint) -> list[Use]:
    """Return the project whose prompts it answers as the newest update of live learning."""
    if checkpoint.project_id is None or not hasattr(checkpoint.run, "live_update"):
        return []
    served = LiveUpdate.objects.filter(project=checkpoint.project, state=LiveState.SERVED)
    newest = served.exclude(round__state__in=ENDED_ROUNDS).order_by("-number").first()
    if newest is None or newest.run_id != checkpoint.run_id:
        return []
    return [Use(what=f"live learning of {checkpoint.project}, whose newest policy it is")]


def _awaits_evidence(round_: Round) -> bool:
    """Return False for a round without enough evidence whose successor trains already, which is final."""
    if round_.state != RoundState.NOT_ENOUGH_EVIDENCE:
        return True
    return Round.objects.filter(
        project=round_.project_id, number=round_.number + 1, state__in=(RoundState.DRAFT, *CAN_START)
    ).exists()


def _named_in_recipes(checkpoint: Checkpoint) -> list[Use]:
    """Return the rounds whose recipe names it as a sampler or a reward."""

    def names(value: Any) -> bool:
        if isinstance(value, dict):
            return any(names(item) for item in value.values())
        if isinstance(value, list):
            return any(names(item) for item in value)
        return bool(value == checkpoint.name)

    ended = (*ENDED_ROUNDS, RoundState.NOT_ENOUGH_EVIDENCE)
    rounds = Round.objects.exclude(state__in=ended).select_related("project")
    return [
        Use(what=f"the recipe of {round_}", url=round_.get_absolute_url())
        for round_ in rounds
        if names(round_.recipe)
    ]


def _newest_of_its_kind(checkpoint: Checkpoint) -> list[Use]:
    """Return the uses of the newest policy, which is sampled and continued next, or reward model, which
    scores."""
    if checkpoint.project_id is None or checkpoint.files_deleted_at:
        return []
    # Updates of live learning are newer than the policy that the next round continues.
    same = Checkpoint.objects.filter(
        project=checkpoint.project,
        kind=checkpoint.kind,
        files_deleted_at__isnull=True,
        run__live_update__isnull=True,
    )
    if same.order_by("-pk").values_list("pk", flat=True).first() != checkpoint.pk:
        return []
    return [Use(what=f"{checkpoint.project}, of which it is the newest {checkpoint.get_kind_display()}")]


def latest_evaluation(checkpoint: Checkpoint) -> Evaluation | None:
    """Return the newest evaluation of a checkpoint against its parent."""
    return checkpoint.evaluations.select_related("parent").order_by("-pk").first()


def card_of(checkpoint: Checkpoint) -> CardFacts:
    """Return the facts of a checkpoint's model card."""
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
        ancestors=[ancestor.name for ancestor in ancestors if ancestor.kind != CheckpointKind.STARTER],
        ancestor_digests=[
            ancestor.digest for ancestor in ancestors if ancestor.kind != CheckpointKind.STARTER
        ],
        dropped=sorted(manifest.get("dropped_counts", {}).items()),
        warnings=manifest.get("warnings", []),
        heads=manifest.get("heads", []),
        tags=checkpoint.tags,
        evaluation=evaluation,
    )
