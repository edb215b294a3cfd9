"""Arenas: blind votes on pairs of responses, by annotators and by guests with a link.

Answers are written ahead by a worker, so nobody waits and no time of writing tells them apart. Which pair
comes next, and which of its answers stands first, is decided here and balanced by count. Votes are judgments
of comparisons of purpose `arena`, which no snapshot ever reads: nothing learns from them.
"""

import hashlib
import random
import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from itertools import combinations

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Purpose, Split
from annotation.errors import NotAllowed, Refusal, Unavailable
from annotation.models import Completion, Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit
from annotation.services.job_runs import EXPECTED, call_with_heartbeat, run_job
from annotation.services.jobs import Heartbeat, send_after_commit, sweep, write
from annotation.services.judgments.submission import voted_comparison
from annotation.services.texts import finding_in
from training.choices import TrainingTask
from training.engine import EngineError, Engines, EngineUnavailableError
from training.models import ArenaBallot, ArenaLink, ArenaPair, Checkpoint
from training.selectors.projects import chat_of, responding_checkpoints
from training.services.feedback.recording import address_hash
from training.services.voting import VoteChoice, record_response, store_vote

FEWEST_CHECKPOINTS, MOST_CHECKPOINTS = 2, 8
MOST_PROMPTS = 500
BALLOTS_A_MINUTE = 20
"""So many pairs one voter may get in a minute: nobody reads faster, a program does."""
GUESTS_A_MINUTE = 60
"""So many guests may begin in one arena in a minute."""
GUESTS_OF_ADDRESS = {1: 10, 24 * 60: 200}
"""Minutes → so many of them may begin from one network address: a class in a room, and no program."""

_chance = random.SystemRandom()


class TooFast(Refusal):
    """More than a person can read. `seconds` until it is worth asking again."""

    seconds = 60


# ── The manager's side ────────────────────────────────────────────────────────────────


@transaction.atomic
def create_arena(
    *,
    project: Project,
    created_by: User,
    name: str,
    checkpoints: Sequence[Checkpoint],
    prompts: int,
    temperature: float = 0.7,
    max_tokens: int = 256,
    for_guests: bool = False,
    is_conversation: bool = False,
    most_votes: int | None = None,
    expires_at: datetime | None = None,
) -> ArenaLink:
    """Open an arena. Its answers are written by a worker; voting begins with the first pair that is there.
    is_conversation: voters write their own messages instead, and no prompt of the project is asked.

    Refuses who does not manage the project, too few or too many checkpoints, those of another project,
    and a project without held-out prompts, naming the field.
    """
    access.refuse_unless_manager(created_by, project, "manager_changes_arenas")
    chosen = {checkpoint.pk: checkpoint for checkpoint in checkpoints}
    if not FEWEST_CHECKPOINTS <= len(chosen) <= MOST_CHECKPOINTS:
        raise Refusal(
            "invalid_checkpoint_count",
            _("Choose %(least)s to %(most)s checkpoints."),
            field="checkpoints",
            least=FEWEST_CHECKPOINTS,
            most=MOST_CHECKPOINTS,
        )
    if responding_checkpoints(project).filter(pk__in=chosen).count() < len(chosen):
        raise Refusal(
            "unknown_checkpoint",
            _("Choose checkpoints of this project that write text."),
            field="checkpoints",
        )
    held_out = Prompt.objects.filter(project=project, split=Split.HELD_OUT).count()
    if not held_out and not is_conversation:
        raise Refusal(
            "no_held_out_prompts",
            _("This project has no held-out prompts, and an arena asks no others: import more prompts."),
            field="prompts",
        )
    if expires_at is not None and expires_at <= timezone.now():
        raise Refusal("date_past", _("This time is over. Choose a later one."), field="expires_at")
    arena = ArenaLink.objects.create(
        project=project,
        name=name,
        prompts=0 if is_conversation else max(1, min(prompts, held_out, MOST_PROMPTS)),
        sampling={"temperature": temperature, "top_p": 0.95, "max_tokens": max_tokens},
        for_guests=for_guests,
        is_conversation=is_conversation,
        most_votes=most_votes,
        expires_at=expires_at,
        created_by=created_by,
    )
    arena.checkpoints.set(chosen)
    if not is_conversation:
        send_after_commit(TrainingTask.PREPARE_ARENA, arena.pk)
    audit.record(
        action="arena.create",
        subject=arena,
        actor=created_by,
        project=project,
        details={
            "checkpoints": sorted(checkpoint.name for checkpoint in chosen.values()),
            "for_guests": for_guests,
            "most_votes": most_votes,
        },
    )
    return arena


@transaction.atomic
def close_arena(*, arena: ArenaLink, closed_by: User) -> None:
    """End the voting for good. Closing twice is closing once."""
    access.refuse_unless_manager(closed_by, arena.project, "manager_changes_arenas")
    if ArenaLink.objects.filter(pk=arena.pk, closed_at__isnull=True).update(
        # Its worker stops with the next heartbeat.
        closed_at=timezone.now(),
        worker="",
    ):
        audit.record(action="arena.close", subject=arena, actor=closed_by, project=arena.project)


# ── The worker's side ─────────────────────────────────────────────────────────────────


def sweep_arenas() -> None:
    """Send a message for every open arena whose answers are not all there and on which nobody works."""
    sweep(ArenaLink.objects.all(), TrainingTask.PREPARE_ARENA)


def prepare_arena(arena_id: int, *, engines: Engines | None = None) -> None:
    """Have every checkpoint answer every prompt, and make the pairs, prompt by prompt.

    What is there already is not asked for again, so a worker that ends loses nothing. A model server that
    is down is asked again with a later sweep.
    """

    def prepare(arena: ArenaLink, heartbeat: Heartbeat) -> str:
        with closing(engines or Engines()) as open_engines:
            return _prepare(arena, open_engines, heartbeat)

    run_job(ArenaLink.objects.all(), arena_id, prepare, expected=(*EXPECTED, EngineError))


def _prepare(arena: ArenaLink, engines: Engines, heartbeat: Heartbeat) -> str:
    checkpoints = list(arena.checkpoints.select_related("source").order_by("pk"))
    prompts = _prompts_of(arena)
    try:
        for number, prompt in enumerate(prompts):
            write(arena, progress=f"{number} / {len(prompts)}")
            answers = [_answer(arena, prompt, checkpoint, engines, heartbeat) for checkpoint in checkpoints]
            _make_pairs(arena, prompt, answers)
    except EngineUnavailableError as error:
        raise Unavailable("model_not_answering", str(error)) from error
    return f"{len(prompts)} / {len(prompts)}"


def _prompts_of(arena: ArenaLink) -> list[Prompt]:
    """Return the arena's held-out prompts, the same at every call."""
    prompts = Prompt.objects.filter(
        project=arena.project, split=Split.HELD_OUT, created_at__lte=arena.created_at
    )
    ordered = sorted(
        prompts.order_by("pk"),
        key=lambda prompt: hashlib.sha256(f"{arena.slug}/{prompt.content_hash}".encode()).digest(),
    )
    return ordered[: arena.prompts]


def _make_pairs(arena: ArenaLink, prompt: Prompt, answers: Sequence[Completion]) -> None:
    round_number = access.current_round(arena.project)
    for first, other in combinations(answers, 2):
        # Equal texts leave nothing to vote on; one that names its model would give it away.
        if first.text.strip() == other.text.strip() or finding_in(prompt=prompt, completions=[first, other]):
            continue
        left, right = sorted((first, other), key=lambda completion: completion.source_id)
        comparison = voted_comparison(
            prompt=prompt, completions=[left, right], round_number=round_number, purpose=Purpose.ARENA
        )
        ArenaPair.objects.get_or_create(
            arena=arena,
            comparison=comparison,
            defaults={"left": left, "right": right, "models_key": f"{left.source_id}:{right.source_id}"},
        )


def _answer(
    arena: ArenaLink, prompt: Prompt, checkpoint: Checkpoint, engines: Engines, heartbeat: Heartbeat
) -> Completion:
    source = checkpoint.source
    assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
    seed = _seed(arena, prompt, checkpoint)
    there = Completion.objects.filter(prompt=prompt, source=source, seed=seed).first()
    if there is not None:
        return there
    request = partial(
        engines.of(checkpoint).complete,
        model=checkpoint.name,
        messages=chat_of(prompt),
        seed=seed,
        **arena.sampling,
    )
    (answer,) = call_with_heartbeat(request, heartbeat)
    return record_response(prompt=prompt, source=source, response=answer, sampling=arena.sampling, seed=seed)


def _seed(arena: ArenaLink, prompt: Prompt, checkpoint: Checkpoint) -> int:
    """Return the seed, which arenas with equal sampling share, and so their responses."""
    sampled = "/".join(f"{key}={value}" for key, value in sorted(arena.sampling.items()))
    named = f"arena/{sampled}/{prompt.content_hash}/{checkpoint.name}"
    return int.from_bytes(hashlib.sha256(named.encode()).digest()[:4], "big") >> 1


# ── The voter's side ──────────────────────────────────────────────────────────────────


def begin_as_guest(*, arena: ArenaLink, address: str = "") -> User:
    """Create a pseudonymous guest for one visitor's session, who cannot sign in and is no member.

    address: the client's; its keyed hash is a part of the guest's name. Refuses an arena that is not for
    guests or is over, too many in a minute, and too many from one address.
    """
    if not arena.for_guests or not arena.is_open:
        raise NotAllowed("arena_without_guests", _("This arena takes no guests."))
    place = f"{_prefix(arena)}{address_hash(arena.project_id, address)[:16]}-"
    for minutes, most in GUESTS_OF_ADDRESS.items() if address else ():
        if _begun(place, minutes) >= most:
            raise TooFast("too_many_guests", _("Many visitors start from this address. Try again later."))
    if _begun(_prefix(arena), minutes=1) >= GUESTS_A_MINUTE:
        raise TooFast("too_many_guests", _("Many visitors start at this moment. Try again in a minute."))
    guest = User(username=f"{place}{uuid.uuid4().hex}", is_active=False, is_guest=True)
    guest.set_unusable_password()
    guest.save()
    return guest


def _begun(prefix: str, minutes: int) -> int:
    """Return the number of guests who began in the last minutes, by the beginning of their names."""
    since = timezone.now() - timedelta(minutes=minutes)
    return User.objects.filter(is_guest=True, date_joined__gt=since, username__startswith=prefix).count()


def _prefix(arena: ArenaLink) -> str:
    return f"guest-{arena.pk}-"


def next_ballot(*, arena: ArenaLink, voter: User) -> ArenaBallot | None:
    """Return the voter's open pair or the next one; None after the last, or once the arena is over.

    Of the pairs of models that which was shown least comes next, and of its prompts one that was shown
    least; which answer stands first is balanced over each pair of models. Ties are broken by chance.
    Refuses (`TooFast`) more than a person can read.
    """
    if not arena.is_open:
        return None
    with transaction.atomic():
        # One arena's voters take turns here, so that the counts balance.
        ArenaLink.objects.select_for_update().get(pk=arena.pk)
        ballots = ArenaBallot.objects.filter(pair__arena=arena, voter=voter)
        if held := ballots.filter(judgment__isnull=True).first():
            return held
        since = timezone.now() - timedelta(minutes=1)
        if ballots.filter(given_at__gt=since).count() >= BALLOTS_A_MINUTE:
            raise TooFast("too_fast", _("You vote faster than one can read. Go on in a minute."))
        pair = _next_pair(arena, voter)
        if pair is None:
            return None
        left_first = _left_first(arena, pair)
        ArenaPair.objects.filter(pk=pair.pk).update(
            given=F("given") + 1, given_left_first=F("given_left_first") + int(left_first)
        )
        order = [pair.left_id, pair.right_id] if left_first else [pair.right_id, pair.left_id]
        return ArenaBallot.objects.create(pair=pair, voter=voter, display_order=order)


def _next_pair(arena: ArenaLink, voter: User) -> ArenaPair | None:
    rows = list(arena.pairs.values_list("pk", "models_key", "given", "comparison__prompt"))
    seen = set(ArenaBallot.objects.filter(pair__arena=arena, voter=voter).values_list("pair", flat=True))
    shown: dict[str, int] = defaultdict(int)
    for _pk, models, count, _prompt in rows:
        shown[models] += count
    open_ = [(shown[models], count, _chance.random(), pk) for pk, models, count, _p in rows if pk not in seen]
    return ArenaPair.objects.get(pk=min(open_)[-1]) if open_ else None


def _left_first(arena: ArenaLink, pair: ArenaPair) -> bool:
    counts = arena.pairs.filter(models_key=pair.models_key).values_list("given", "given_left_first")
    total = sum(count for count, _first in counts)
    left_first = sum(first for _count, first in counts)
    if 2 * left_first == total:
        return _chance.random() < 0.5
    return 2 * left_first < total


@transaction.atomic
def vote_in_arena(*, ballot: ArenaBallot, voter: User, vote: VoteChoice) -> ArenaBallot:
    """Store a vote. Sent twice it is one; after the names were revealed it stays as it is.

    Refuses another person's ballot and an arena that is over.
    """
    if ballot.voter_id != voter.pk:
        raise NotAllowed("assigned_to_another", _("This pair was given to someone else."))
    arena = ArenaLink.objects.select_for_update().get(pk=ballot.pair.arena_id)
    locked = ArenaBallot.objects.select_for_update().get(pk=ballot.pk)
    if locked.judgment_id is not None:
        return locked
    if not arena.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    store_vote(
        row=locked,
        voter=voter,
        vote=vote,
        comparison=locked.pair.comparison,
        order=locked.display_order,
        idempotency_key=locked.pk,
    )
    ArenaLink.objects.filter(pk=arena.pk).update(votes=F("votes") + 1)
    return locked
