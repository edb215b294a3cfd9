"""Live conversations with blind checkpoints: settings, openings, turns, responses and votes."""

import hashlib
import json
import random
import secrets
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import combinations, combinations_with_replacement
from queue import SimpleQueue
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Split, TurnState
from annotation.errors import NotAllowed, Refusal
from annotation.models import (
    Assignment,
    Completion,
    Conversation,
    ConversationTask,
    ConversationTurn,
    Judgment,
    Project,
    User,
)
from annotation.models.conversations import MOST_TURNS
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.selectors.conversations import why_not
from annotation.selectors.jobs import has_enough_long_jobs
from annotation.services import audit
from annotation.services.assignments.display_order import balanced_order
from annotation.services.conversations import add_turn, begin_conversation, put_to_judgment, take_up
from annotation.services.jobs import alone, send, send_after_commit
from annotation.services.judgments.submission import record_vote
from annotation.services.texts import storable
from training.choices import TrainingTask
from training.engine import Answer, EngineError, StreamDelta, engine_for
from training.models import (
    ArenaLink,
    ArenaTalk,
    Checkpoint,
    ContinuesWith,
    ConversationSettings,
    ModelDraw,
    PreparedOpening,
    TurnResponse,
)
from training.selectors.conversations import (
    ConversationStanding,
    Terms,
    completions_shown,
    responses_to,
    standing_of,
    terms_of,
    terms_of_project,
)
from training.selectors.projects import responding_checkpoints
from training.services.arenas import TooFast
from training.services.voting import record_shown

# ── Settings ──


FEWEST_RESPONSES, MOST_RESPONSES = 2, 4
MOST_CHECKPOINTS = 8


@transaction.atomic
def save_conversation_settings(
    *,
    project: Project,
    actor: User,
    checkpoints: Sequence[Checkpoint],
    responses: int = 2,
    continues_with: str = ContinuesWith.CHOSEN,
    most_turns: int = 10,
    rates_whole: bool = True,
    is_open: bool = True,
    temperature: float = 0.7,
    max_tokens: int = 256,
) -> ConversationSettings:
    """Write how annotators talk with the project's checkpoints. Conversations that go on follow it at once.

    One checkpoint is enough: it then gives all responses, each with its own seed. Refuses who does not manage
    the project, no checkpoint, and checkpoints that do not answer here, naming the field.
    """
    access.refuse_unless_manager(actor, project, "manager_changes_conversations")
    chosen = {checkpoint.pk for checkpoint in checkpoints}
    if not FEWEST_RESPONSES <= responses <= MOST_RESPONSES:
        raise Refusal("invalid_response_count", _("Choose two to four responses."), field="responses")
    if not 1 <= len(chosen) <= MOST_CHECKPOINTS:
        raise Refusal(
            "invalid_checkpoint_count",
            _("Choose one to %(most)s checkpoints."),
            field="checkpoints",
            most=MOST_CHECKPOINTS,
        )
    if responding_checkpoints(project).filter(pk__in=chosen).count() < len(chosen):
        raise Refusal(
            "unknown_checkpoint",
            _("Choose checkpoints of this project that write text."),
            field="checkpoints",
        )
    if not 1 <= most_turns <= MOST_TURNS:
        raise Refusal(
            "invalid_turn_count", _("Choose 1 to %(most)s turns."), field="most_turns", most=MOST_TURNS
        )
    saved, _new = ConversationSettings.objects.update_or_create(
        project=project,
        defaults={
            "responses": responses,
            "continues_with": continues_with,
            "most_turns": most_turns,
            "rates_whole": rates_whole,
            "is_open": is_open,
            "sampling": {"temperature": temperature, "top_p": 0.95, "max_tokens": max_tokens},
        },
    )
    saved.checkpoints.set(chosen)
    audit.record(
        action="conversation.settings",
        subject=project,
        actor=actor,
        project=project,
        details={"checkpoints": sorted(checkpoint.name for checkpoint in checkpoints), "is_open": is_open},
    )
    return saved


# ── Which checkpoints respond to a turn, counterbalanced by position ──


_chance = random.SystemRandom()


def draw_checkpoints(*, project: Project, terms: Terms) -> Sequence[Checkpoint]:
    """Draw who responds, in the order of positions: sets of checkpoints and positions are counterbalanced.

    Where fewer checkpoints were chosen than responses, some respond more than once, each time with another
    seed. Call it in a transaction. Refuses where too few checkpoints have their files.
    """
    served = {
        checkpoint.pk: checkpoint for checkpoint in terms.checkpoints if checkpoint.files_deleted_at is None
    }
    if len(served) < max(1, min(terms.responses, len(terms.checkpoints))):
        raise Refusal(
            "too_few_checkpoints",
            _("Too few checkpoints are left for a conversation. Ask the project's manager."),
        )
    # Turns of one project that begin at once take turns here, so that the counts balance.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    rows = ModelDraw.objects.filter(project=project, scope=terms.scope)
    drawn = dict(rows.values_list("models_key", "drawn"))
    keys = {":".join(map(str, ids)): ids for ids in _sets_of(sorted(served), terms.responses)}
    fewest = min(drawn.get(key, 0) for key in keys)
    key = _chance.choice([key for key in keys if drawn.get(key, 0) == fewest])
    ModelDraw.objects.get_or_create(project=project, scope=terms.scope, models_key=key)
    rows.filter(models_key=key).update(drawn=F("drawn") + 1)
    order = balanced_order(
        keys[key], number=fewest, drawn_for=f"conversation:{project.pk}:{terms.scope}:{key}"
    )
    return [served[pk] for pk in order]


def _sets_of(ids: Sequence[int], responses: int) -> Iterable[tuple[int, ...]]:
    """Return the sets that may respond: each checkpoint once, or at least once where there are too few."""
    if len(ids) >= responses:
        return combinations(ids, responses)
    return (drawn for drawn in combinations_with_replacement(ids, responses) if set(drawn) == set(ids))


# ── Responses to the opening messages of offered tasks ──
#
# A conversation about a task takes one, and its first turn waits for the annotation at once. Nothing else is
# generated ahead: later messages are not known. A message to a worker only wakes it; the sweep sends another.


READY = 2
"""So many openings are ready for each task."""


def sweep_openings() -> None:
    """Send a message for every open project in which an opening is missing."""
    for settings in ConversationSettings.objects.filter(is_open=True).select_related("project"):
        if _missing(settings.project):
            send(TrainingTask.PREPARE_OPENINGS, settings.project_id)


def prepare_openings(project_id: int) -> None:
    """Generate the openings that a project's tasks lack; those of an earlier version of a task go.

    A model server that is down is asked again with a later sweep. Nothing happens while another process of
    this machine does the same, or while the project has as many jobs at work as it may.
    """
    project = Project.objects.get(pk=project_id)
    with alone("openings", project_id) as is_alone:
        if is_alone and not has_enough_long_jobs(project_id):
            _prepare(project)


def _prepare(project: Project) -> None:
    terms = terms_of_project(project)
    for task in _missing(project):
        PreparedOpening.objects.filter(task=task).exclude(key=_key(task, terms)).delete()
        try:
            responses = _generate(task, terms)
        except EngineError:
            return
        with transaction.atomic():
            # Of two workers at once the second sees that enough are there.
            Project.objects.select_for_update(no_key=True).get(pk=project.pk)
            if PreparedOpening.objects.filter(task=task, key=_key(task, terms)).count() < READY:
                PreparedOpening.objects.create(task=task, key=_key(task, terms), responses=responses)


def take_opening(task: ConversationTask, terms: Terms) -> PreparedOpening | None:
    """Take a ready opening of a task; None where there is none. Call it in the transaction that uses it."""
    ready = PreparedOpening.objects.select_for_update(skip_locked=True).filter(
        task=task, key=_key(task, terms)
    )
    opening = ready.order_by("pk").first()
    if opening is not None:
        opening.delete()
    return opening


def _missing(project: Project) -> list[ConversationTask]:
    """Return the offered tasks, once for each opening that they lack."""
    terms = terms_of_project(project)
    if not terms.is_open or not terms.checkpoints:
        return []
    offered = project.conversation_tasks.filter(archived_at__isnull=True).exclude(opening="")
    missing = []
    for task in offered.order_by("pk"):
        ready = PreparedOpening.objects.filter(task=task, key=_key(task, terms)).count()
        missing += [task] * (READY - ready)
    return missing


def _generate(task: ConversationTask, terms: Terms) -> list[dict[str, object]]:
    """Have the drawn checkpoints respond at once. Raises `EngineError`."""
    with transaction.atomic():
        drawn = draw_checkpoints(project=task.project, terms=terms)
    messages = [{"role": "system", "content": task.system}] if task.system else []
    messages.append({"role": "user", "content": task.opening.strip()})

    def respond(checkpoint: Checkpoint) -> tuple[int, Answer]:
        seed = secrets.randbits(31)
        with engine_for(checkpoint) as engine:
            (answer,) = engine.complete(model=checkpoint.name, messages=messages, seed=seed, **terms.sampling)
        return seed, answer

    with ThreadPoolExecutor(max_workers=len(drawn)) as pool:
        answers = list(pool.map(respond, drawn))
    return [
        {
            "checkpoint": checkpoint.pk,
            "seed": seed,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "token_count": answer.token_count,
        }
        for checkpoint, (seed, answer) in zip(drawn, answers, strict=True)
    ]


def _key(task: ConversationTask, terms: Terms) -> str:
    """Return what an opening was generated from: with other settings it is another."""
    made_of = [
        task.system,
        task.opening,
        dict(terms.sampling),
        terms.responses,
        [checkpoint.pk for checkpoint in terms.checkpoints],
    ]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


# ── All checkpoints respond to a turn at once, streamed in step ──
#
# Every response is released piece by piece together with the others, at the pace of the slowest: the speed of
# each would identify its model. A response is stored when it is complete; one that broke off is generated
# again with the same seed. Whoever stores first stays, so two tabs of one turn show the same texts.


Pieces = list[tuple[int, str]]
"""Position and text of what is released together."""


def stream_turn(*, turn: ConversationTurn) -> Iterator[Pieces]:
    """Yield the responses of a turn as they are generated, then put them to judgment.

    What is stored already comes first, whole. A reader who goes away cancels the rest. Raises `EngineError`
    after storing those that are complete.
    """
    responses = responses_to(turn)
    if stored := [
        (response.position, response.text) for response in responses if response.written_at is not None
    ]:
        yield stored
    streams = [
        _ResponseStream(response, turn.prompt.messages)
        for response in responses
        if response.written_at is None
    ]
    trouble: Exception | None = None
    try:
        live = streams
        while live:
            items = [(stream, stream.items.get()) for stream in live]
            for stream, item in items:
                if isinstance(item, Exception):
                    trouble = item
                elif item is None:
                    _store(stream)
            if pieces := [
                (s.response.position, s.take(i)) for s, i in items if isinstance(i, StreamDelta) and i.text
            ]:
                yield pieces
            live = [stream for stream, item in items if isinstance(item, StreamDelta)]
    finally:
        for stream in streams:
            stream.stop.set()
    if trouble is not None:
        raise trouble
    complete_turn(turn=turn)


def generate_turn(*, turn: ConversationTurn) -> None:
    """Generate all missing responses of a turn and put them to judgment. Raises `EngineError`."""
    for _pieces in stream_turn(turn=turn):
        pass


@transaction.atomic
def complete_turn(*, turn: ConversationTurn) -> None:
    """Store the responses of a turn as completions and put them to judgment, once all are generated."""
    Conversation.objects.select_for_update(no_key=True).get(pk=turn.conversation_id)
    turn.refresh_from_db(fields=["comparison", "continued_with"])
    responses = responses_to(turn)
    if turn.comparison_id is not None or any(response.written_at is None for response in responses):
        return
    terms = terms_of(turn.conversation)
    project = turn.conversation.project
    newest = project.rounds.order_by("-number").values_list("number", flat=True).first()
    put_to_judgment(
        turn=turn,
        completions=[_completion(turn, response) for response in responses],
        round_number=newest or access.current_round(project),
        purpose=terms.purpose,
    )


class _ResponseStream:
    """One response on its way, read in a thread of its own, which touches no database."""

    def __init__(self, response: TurnResponse, messages: Sequence[Mapping[str, Any]]) -> None:
        self.response = response
        self.items: SimpleQueue[StreamDelta | Exception | None] = SimpleQueue()
        self.stop = threading.Event()
        self.text = ""
        self.last = StreamDelta()
        self._messages = [{"role": message["role"], "content": message["content"]} for message in messages]
        threading.Thread(target=self._read, name="turn", daemon=True).start()

    def take(self, delta: StreamDelta) -> str:
        """Add a released piece to the text."""
        self.text += delta.text
        return delta.text

    def _read(self) -> None:
        response, last = self.response, StreamDelta()
        try:
            with engine_for(response.checkpoint) as engine:
                deltas = engine.stream(
                    model=response.checkpoint.name,
                    messages=self._messages,
                    seed=response.seed,
                    **response.sampling,
                )
                for delta in deltas:
                    if self.stop.is_set():
                        deltas.close()
                        return
                    last = delta
                    if delta.text:
                        self.items.put(delta)
            self.last = last
            self.items.put(None)
        except Exception as error:
            self.items.put(error)


def _store(stream: _ResponseStream) -> None:
    """Write a complete response. Whoever writes first stays."""
    TurnResponse.objects.filter(pk=stream.response.pk, written_at__isnull=True).update(
        text=storable(stream.text),
        finish_reason=(stream.last.finish_reason or "")[:20],
        token_count=stream.last.token_count,
        written_at=timezone.now(),
    )


def _completion(turn: ConversationTurn, response: TurnResponse) -> Completion:
    source = response.checkpoint.source
    assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
    response.completion = record_shown(
        prompt=turn.prompt,
        source=source,
        response=response,
        sampling=response.sampling,
        seed=response.seed,
    )
    response.save(update_fields=["completion"])
    return response.completion


def trouble_in_words() -> str:
    """Return why responses are missing. The message of a server may name its model."""
    return _("A response could not be generated. Try again in a moment.")


# ── Begin a conversation, say something, resume a turn ──


TURNS_A_MINUTE = 10
"""So many turns one voter may have in an arena in a minute."""


@transaction.atomic
def begin(*, project: Project, annotator: User, task: ConversationTask | None = None) -> Conversation:
    """Begin a conversation of a member; with a task that has an opening, its first turn is there at once.

    Refuses who may not label more, and a project whose conversations are not open.
    """
    terms = terms_of_project(project)
    if not terms.is_open:
        raise Refusal("conversations_closed", _("Conversations are closed in this project. Ask its manager."))
    if reason := why_not(project, annotator):
        raise NotAllowed("no_more_conversation", reason)
    conversation = begin_conversation(project=project, annotator=annotator, task=task)
    if task is not None and task.opening.strip():
        opening = take_opening(task, terms)
        _add(ConversationStanding(conversation=conversation, terms=terms), task.opening, opening)
        # The next one who begins finds another.
        send_after_commit(TrainingTask.PREPARE_OPENINGS, project.pk)
    return conversation


@transaction.atomic
def begin_in_arena(*, arena: ArenaLink, voter: User) -> Conversation:
    """Return the voter's open conversation in an arena, or begin one. Refuses an arena that is over."""
    locked = ArenaLink.objects.select_for_update().get(pk=arena.pk)
    if not locked.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    open_ = Conversation.objects.filter(
        arena_talk__arena=arena, annotator=voter, ended_at__isnull=True
    ).first()
    if open_ is not None:
        return open_
    conversation = begin_conversation(project=arena.project, annotator=voter)
    ArenaTalk.objects.create(arena=arena, conversation=conversation)
    return conversation


@transaction.atomic
def say(*, conversation: Conversation, annotator: User, text: str) -> ConversationTurn:
    """Add the annotator's next message. No model is asked yet: `stream_turn` does that.

    The same message sent twice, while its responses are generated, is one turn. Refuses another person's
    conversation, one that waits for an annotation, is over or at its longest, and who may not label more.
    """
    locked = Conversation.objects.select_for_update(no_key=True).get(pk=conversation.pk)
    locked.project, locked.task = conversation.project, conversation.task
    if locked.annotator_id != annotator.pk:
        raise NotAllowed("conversation_of_another", _("This is someone else's conversation."))
    standing = standing_of(locked)
    turn = standing.turn
    if (
        turn is not None
        and standing.state == TurnState.GENERATING
        and turn.prompt.last_question == text.strip()
    ):
        return turn
    if standing.state in (TurnState.GENERATING, TurnState.JUDGING):
        raise Refusal(
            "responses_not_annotated",
            _("Annotate the responses first, then write the next message."),
            field="text",
        )
    if standing.terms.arena is None and (reason := why_not(locked.project, annotator)):
        raise NotAllowed("no_more_conversation", reason)
    if standing.terms.arena is not None:
        _require_pace(standing.terms.arena, annotator)
    if turn is not None and turn.index >= standing.terms.most_turns:
        raise Refusal(
            "conversation_too_long",
            _("This conversation is at its longest. End it and begin a new one."),
            field="text",
        )
    return _add(standing, text)


def _require_pace(arena: ArenaLink, voter: User) -> None:
    """Refuse an arena that is over, and more turns than a person can read (`TooFast`)."""
    if not arena.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    since = timezone.now() - timedelta(minutes=1)
    recent = ConversationTurn.objects.filter(
        conversation__arena_talk__arena=arena, conversation__annotator=voter, created_at__gt=since
    )
    if recent.count() >= TURNS_A_MINUTE:
        raise TooFast("too_fast", _("You write faster than one can read. Go on in a minute."))


def take_up_turn(*, standing: ConversationStanding) -> ConversationStanding:
    """Lease the newest turn's comparison again where its lease ran out; return where it stands then."""
    turn = standing.turn
    if (
        turn is None
        or turn.comparison is None
        or turn.continued_with_id is not None
        or standing.assignment is not None
        or standing.terms.arena is not None
        or standing.conversation.ended_at is not None
    ):
        return standing
    assignment: Assignment | None = take_up(
        turn=turn, shown=[completion.pk for completion in completions_shown(turn)]
    )
    return standing_of(standing.conversation) if assignment is not None else standing


def _add(
    standing: ConversationStanding, text: str, prepared: PreparedOpening | None = None
) -> ConversationTurn:
    turn = add_turn(
        conversation=standing.conversation,
        text=text,
        before=standing.turn,
        continuation=standing.continuation,
        # Nothing learns from those who vote in an arena, and so not from their words.
        split=Split.HELD_OUT if standing.terms.arena else None,
    )
    responses = _prepared(prepared) if prepared else _drawn(standing, turn)
    for position, response in enumerate(responses, start=1):
        response.turn, response.position = turn, position
        response.sampling = dict(standing.terms.sampling)
    TurnResponse.objects.bulk_create(responses)
    if prepared is not None:
        complete_turn(turn=turn)
    return turn


def _drawn(standing: ConversationStanding, turn: ConversationTurn) -> list[TurnResponse]:
    """Return the responses that are still to be generated."""
    conversation = standing.conversation
    drawn = draw_checkpoints(project=conversation.project, terms=standing.terms)
    return [
        TurnResponse(checkpoint=checkpoint, seed=_seed(f"{conversation.seed}:{turn.index}:{position}"))
        for position, checkpoint in enumerate(drawn, start=1)
    ]


def _prepared(opening: PreparedOpening) -> list[TurnResponse]:
    """Return the responses of an opening that was generated ahead."""
    return [
        TurnResponse(
            checkpoint_id=response["checkpoint"],
            seed=response["seed"],
            text=storable(response["text"]),
            finish_reason=(response["finish_reason"] or "")[:20],
            token_count=response["token_count"],
            written_at=opening.created_at,
        )
        for response in opening.responses
    ]


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") >> 1


# ── Votes on the turns of an arena in which visitors write their own messages ──


@transaction.atomic
def vote_on_turn(
    *, conversation: Conversation, voter: User, answer: JudgmentRecord, idempotency_key: uuid.UUID
) -> None:
    """Store the vote on the newest turn of an arena's conversation. Sent twice it is one.

    Refuses another person's conversation, a turn that waits for no vote, and an arena that is over.
    """
    if conversation.annotator_id != voter.pk:
        raise NotAllowed("conversation_of_another", _("This is someone else's conversation."))
    arena = ArenaLink.objects.select_for_update().get(talks__conversation=conversation)
    if Judgment.everything.filter(idempotency_key=idempotency_key, annotator=voter).exists():
        return
    standing = standing_of(conversation)
    turn = standing.turn
    if turn is None or turn.comparison is None or standing.state != TurnState.JUDGING:
        raise Refusal("nothing_to_vote_on", _("Nothing waits for your vote here. Write the next message."))
    if not arena.is_open:
        raise Refusal("arena_over", _("This arena is over: votes are no longer taken."))
    record_vote(
        comparison=turn.comparison,
        voter=voter,
        shown=[completion.pk for completion in completions_shown(turn)],
        answer=answer,
        idempotency_key=idempotency_key,
    )
    ArenaLink.objects.filter(pk=arena.pk).update(votes=F("votes") + 1)
