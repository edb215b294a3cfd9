"""Votes are counted as they come: a leaderboard adds up some thousand rows and not a million judgments.

Each judgment is counted once, when it is first seen: it adds its own votes and takes away those of the
judgment that it supersedes. So at any moment the counts are those of the current judgments, whoever
counted, in whatever batches, and however often it was tried: what was seen and what was counted change in
one transaction. `VoteLedger` says which ids were seen.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from django.db import transaction
from django.db.models import F, Max, Q, QuerySet
from django.db.models.signals import post_delete, post_save

from annotation.models import CalibrationSession, Judgment, Project, Prompt, bulk
from training.models import EloPoints, VoteCount, VoteLedger, Voters, VoteTotals
from training.selectors.votes import JudgmentVotes, Vote, judged

BATCH = 50_000
"""Judgments that are counted together: of many the same few thousand counts change once."""

_CHUNK = 5_000
"""Judgments that are read at once."""

_SWEEP_SECONDS = 4.0
_MOST_HOLES = 500
_HOLE_SECONDS = 24 * 3600.0
"""No transaction that writes judgments lasts so long: what is missing by then was rolled back."""

MOST_WAITING = 1000
"""Uncounted judgments are counted up to this number."""

ELO_START = 1000.0
ELO_K = 4.0

Key = tuple[int, str, str, str, int, int, int, bool]
"""project, slice, value, voters, left, right, length difference, left first."""
Counts = list[int]
"""wins, losses, ties, both bad."""
_NAMES = ("wins", "losses", "ties", "both_bad")
_KEY = ("project_id", "slice", "value", "voters", "left_id", "right_id", "length_difference", "left_first")


def count_votes(*, seconds: float | None = None) -> int:
    """Count what is not counted yet; how many judgments that were. Stops between batches after `seconds`."""
    until = None if seconds is None else time.monotonic() + seconds
    for project in Project.objects.filter(vote_totals__stale=True):
        rebuild_votes(project=project)
    total = 0
    while count := _count_batch():
        total += count
        if until is not None and time.monotonic() > until:
            break
    return total


def sweep_votes() -> None:
    """Count votes for a few seconds at most, in the worker's sweep."""
    count_votes(seconds=_SWEEP_SECONDS)


def _count_batch() -> int:
    """Count a batch; how many judgments. Reads without a lock, and writes if nobody counted meanwhile."""
    VoteLedger.objects.bulk_create([VoteLedger(pk=1)], ignore_conflicts=True)
    ledger = VoteLedger.objects.get(pk=1)
    before = (ledger.counted_up_to, ledger.holes)
    ids, holes = _unseen(ledger)
    if not ids and holes == ledger.holes:
        return 0
    changes: dict[Key, Counts] = defaultdict(lambda: [0, 0, 0, 0])
    votes: list[Vote] = []
    for start in range(0, len(ids), _CHUNK):
        judgments = judged(ids[start : start + _CHUNK])
        _merge(changes, _changes(judgments))
        votes += _elo_votes(judgments)
    with transaction.atomic():
        locked = VoteLedger.objects.select_for_update(skip_locked=True).filter(pk=1).first()
        if locked is None or (locked.counted_up_to, locked.holes) != before:
            return 0
        # Tags that changed since they were read: the project is recounted first.
        if VoteTotals.objects.filter(stale=True).exists():
            return 0
        _add({key: counts for key, counts in changes.items() if any(counts)}, votes)
        locked.holes = holes
        locked.counted_up_to = max([locked.counted_up_to, *ids])
        locked.save(update_fields=["holes", "counted_up_to", "updated_at"])
    return len(ids)


def _merge(total: dict[Key, Counts], changes: Mapping[Key, Counts]) -> None:
    for key, counts in changes.items():
        total[key] = [count + other for count, other in zip(total[key], counts, strict=True)]


def _unseen(ledger: VoteLedger) -> tuple[list[int], list[list[float]]]:
    """Judgments that are there and not counted, a batch of them, and the holes as they are then."""
    new = list(
        Judgment.objects.filter(pk__gt=ledger.counted_up_to)
        .order_by("pk")
        .values_list("pk", flat=True)[:BATCH]
    )
    filled = []
    if ledger.holes:
        inside = Q()
        for first, last, _ in ledger.holes:
            inside |= Q(pk__range=(first, last))
        filled = list(Judgment.objects.filter(inside).order_by("pk").values_list("pk", flat=True)[:BATCH])
    now = time.time()
    old = [
        hole for first, last, since in ledger.holes for hole in _without(int(first), int(last), since, filled)
    ]
    holes = [hole for hole in old if now - hole[2] < _HOLE_SECONDS]
    before = ledger.counted_up_to
    for pk in new:
        if pk > before + 1:
            holes.append([before + 1, pk - 1, now])
        before = pk
    return filled + new, holes[-_MOST_HOLES:]


def _without(first: int, last: int, since: float, filled: Sequence[int]) -> Iterator[list[float]]:
    """Return the hole without the counted part."""
    for pk in filled:
        if first <= pk <= last:
            if first < pk:
                yield [first, pk - 1, since]
            first = pk + 1
    if first <= last:
        yield [first, last, since]


def _changes(judgments: Mapping[int, JudgmentVotes]) -> dict[Key, Counts]:
    """Return the changes of these judgments: their votes come, those of the superseded go."""
    gone = [judgment.supersedes for judgment in judgments.values() if judgment.supersedes is not None]
    before = {pk: judgments[pk] for pk in gone if pk in judgments}
    before |= judged([pk for pk in gone if pk not in judgments])
    changes: dict[Key, Counts] = defaultdict(lambda: [0, 0, 0, 0])
    for judgment in judgments.values():
        _tally(changes, judgment.votes, 1)
        if judgment.supersedes is not None:
            _tally(changes, before[judgment.supersedes].votes, -1)
    return {key: counts for key, counts in changes.items() if any(counts)}


def _tally(changes: dict[Key, Counts], votes: Iterable[Vote], weight: int) -> None:
    for vote in votes:
        column = 3 if vote.both_bad else (2 if vote.outcome == 0 else 0 if vote.outcome > 0 else 1)
        for part, value, length, first in vote.slices:
            key = (vote.project, str(part), value, str(vote.voters), vote.left, vote.right, length, first)
            changes[key][column] += weight


def _elo_votes(judgments: Mapping[int, JudgmentVotes]) -> list[Vote]:
    """Return every vote in order of arrival, revisions included."""
    return [vote for pk in sorted(judgments) for vote in judgments[pk].votes if vote.voters != Voters.MODELS]


def _add(changes: Mapping[Key, Counts], votes: Sequence[Vote]) -> None:
    """Add to the counts and the points; the ledger's lock keeps everyone else from them."""
    _ensure_totals({key[0] for key in changes})
    there = {tuple(getattr(row, name) for name in _KEY): row for row in _rows_about(changes)}
    total = {
        key: [getattr(there[key], name) + count for name, count in zip(_NAMES, counts, strict=True)]
        if key in there
        else counts
        for key, counts in changes.items()
    }
    # Replaced instead of updated: thousands of rows change with a batch, and this takes two statements.
    VoteCount.objects.filter(pk__in=[there[key].pk for key in changes if key in there]).delete()
    _write(total)
    VoteTotals.objects.filter(project__in={key[0] for key in changes}).update(version=F("version") + 1)
    _add_elo(votes)


def _ensure_totals(projects: Iterable[int]) -> None:
    VoteTotals.objects.bulk_create([VoteTotals(project_id=pk) for pk in projects], ignore_conflicts=True)


def _rows_about(changes: Mapping[Key, Counts]) -> QuerySet[VoteCount]:
    """Return at least the rows of these pairs in these parts."""
    condition = Q(pk__in=())
    for project in {key[0] for key in changes}:
        of_project = [key for key in changes if key[0] == project]
        condition |= Q(
            project=project,
            slice__in={key[1] for key in of_project},
            value__in={key[2] for key in of_project},
            left__in={key[4] for key in of_project},
            right__in={key[5] for key in of_project},
        )
    return VoteCount.objects.filter(condition)


def _add_elo(votes: Sequence[Vote]) -> None:
    projects = {vote.project for vote in votes}
    rows = {(row.project_id, row.source_id): row for row in EloPoints.objects.filter(project__in=projects)}
    points = {key: row.points for key, row in rows.items()}
    play(points, votes)
    EloPoints.objects.bulk_create(
        EloPoints(project_id=project, source_id=source, points=value)
        for (project, source), value in points.items()
        if (project, source) not in rows
    )
    changed = [row for key, row in rows.items() if row.points != points[key]]
    for row in changed:
        row.points = points[row.project_id, row.source_id]
    EloPoints.objects.bulk_update(changed, ["points"], batch_size=200)


def play(points: dict[tuple[int, int], float], votes: Iterable[Vote]) -> None:
    """Online Elo, vote by vote, into `points` by project and source: `training.ratings.elo` without NumPy."""
    for vote in votes:
        left, right = (vote.project, vote.left), (vote.project, vote.right)
        ahead = points.setdefault(right, ELO_START) - points.setdefault(left, ELO_START)
        moved = ELO_K * ((1 + vote.outcome) / 2 - 1 / (1 + 10 ** (ahead / 400)))
        points[left] += moved
        points[right] -= moved


def rebuild_votes(*, project: Project, batch: int = 10_000) -> int:
    """Recount a project's votes from its judgments; return how many judgments that were.

    The long part reads without a lock; what came to be counted meanwhile is added in the short part that
    writes.
    """
    Totals = VoteTotals.objects  # noqa: N806 - a manager
    _ensure_totals([project.pk])
    Totals.filter(project=project).update(stale=False)
    ledger = VoteLedger.objects.filter(pk=1).first() or VoteLedger(pk=1)
    changes: dict[Key, Counts] = defaultdict(lambda: [0, 0, 0, 0])
    points: dict[tuple[int, int], float] = {}
    total = _count_anew(changes, points, _seen(project, ledger), batch)
    with transaction.atomic():
        VoteLedger.objects.bulk_create([VoteLedger(pk=1)], ignore_conflicts=True)
        now = VoteLedger.objects.select_for_update().get(pk=1)
        missed = _seen(project, now).exclude(_is_seen(ledger))
        total += _count_anew(changes, points, missed, batch)
        VoteCount.objects.filter(project=project).delete()
        EloPoints.objects.filter(project=project).delete()
        _write(changes)
        EloPoints.objects.bulk_create(
            EloPoints(project_id=key[0], source_id=key[1], points=value) for key, value in points.items()
        )
        Totals.filter(project=project).update(version=F("version") + 1)
    return total


def _count_anew(
    changes: dict[Key, Counts],
    points: dict[tuple[int, int], float],
    judgments: QuerySet[Judgment],
    batch: int,
) -> int:
    total, last = 0, 0
    while ids := list(judgments.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:batch]):
        chunk = judged(ids)
        _merge(changes, _changes(chunk))
        play(points, _elo_votes(chunk))
        total, last = total + len(ids), ids[-1]
    return total


def _is_seen(ledger: VoteLedger) -> Q:
    seen = Q(pk__lte=ledger.counted_up_to)
    for first, last, _ in ledger.holes:
        seen &= ~Q(pk__range=(first, last))
    return seen


def _seen(project: Project, ledger: VoteLedger) -> QuerySet[Judgment]:
    return Judgment.objects.filter(_is_seen(ledger), comparison__project=project)


def _write(changes: Mapping[Key, Counts]) -> None:
    rows = [(key, counts) for key, counts in changes.items() if any(counts)]
    ids = bulk.reserve_ids(VoteCount, len(rows))
    bulk.insert(
        VoteCount,
        ["id", *_KEY, *_NAMES],
        ((pk, *key, *counts) for pk, (key, counts) in zip(ids, rows, strict=True)),
    )


def waiting(project: Project) -> int:
    """Return the number of uncounted judgments of a project, at most one more than `MOST_WAITING`."""
    ledger = VoteLedger.objects.filter(pk=1).first() or VoteLedger(pk=1)
    newest = Judgment.everything.aggregate(newest=Max("pk"))["newest"] or 0
    if newest <= ledger.counted_up_to:
        return 0
    newer = Judgment.objects.filter(pk__gt=ledger.counted_up_to, comparison__project=project)
    return newer[: MOST_WAITING + 1].count()


def _note_tags(sender: type[Prompt], instance: Prompt, created: bool, **_: object) -> None:
    """Somebody corrected a prompt: its votes may stand under other tags now."""
    if created:
        return
    # In the transaction of the correction: whoever sees the new tags sees this, too.
    VoteTotals.objects.filter(project=instance.project_id).update(stale=True)


def _note_session(sender: type[CalibrationSession], instance: CalibrationSession, **_: object) -> None:
    """A calibration session hid votes or revealed them: those before the ledger's end are counted anew."""
    _ensure_totals([instance.project_id])
    VoteTotals.objects.filter(project=instance.project_id).update(stale=True)


def _note_end(sender: type[CalibrationSession], instance: CalibrationSession, **_: object) -> None:
    """Of a session that is deleted; with its project there may be no totals any more."""
    VoteTotals.objects.filter(project=instance.project_id).update(stale=True)


def listen() -> None:
    """Hear of corrected tags and of hidden votes. Called once, when Django is ready."""
    post_save.connect(_note_tags, sender=Prompt, dispatch_uid="leaderboard-tags")
    post_save.connect(_note_session, sender=CalibrationSession, dispatch_uid="leaderboard-sessions")
    post_delete.connect(_note_end, sender=CalibrationSession, dispatch_uid="leaderboard-session-ends")
