"""Checkpoints answer one chat beside each other; what they said is stored, and a vote on it is a judgment.

A vote records the prompt, the answers with their seeds, a comparison of work in the project's newest round,
and the judgment, as the queue would: on a training prompt it is learned from like any other, on a held-out
prompt it only measures. Names, figures and the diff are hidden until the vote. Who asks for them before
casts an unblinded vote: it is stored and exported, but nothing is learned from it and no win rate counts it.
"""

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation import selectors
from annotation.choices import FinishReason, Purpose, Role, Verdict
from annotation.errors import NotAllowed, Refusal
from annotation.formats.prompts_jsonl import ParsedPrompt
from annotation.models import Comparison, Completion, Judgment, Project, Prompt, User
from annotation.services import audit
from annotation.services.answers import JudgmentAnswer
from annotation.services.completions import NewCompletion, record_completions
from annotation.services.prompts import find_or_add_prompt
from annotation.services.votes import record_vote, voted_comparison
from training.chats import chat_of
from training.engine import Answer, EngineError, engine_for
from training.models import Checkpoint, SideBySide, SideBySideAnswer

FEWEST, MOST = 2, 4
MOST_TURNS = 40
TAG = "side by side"
"""Of prompts that were typed here and came into the project with a vote."""

_KEYS = uuid.UUID("0c1a6a52-7e1f-5f0e-9a53-8d1f2a6b3c11")
"""Namespace of the idempotency keys of votes."""

_chance = random.SystemRandom()
Chat = Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How all of them sample."""

    temperature: float
    max_tokens: int
    top_p: float = 0.95


# ── Asking ────────────────────────────────────────────────────────────────────────────


@transaction.atomic
def ask_beside(
    *,
    project: Project,
    created_by: User,
    checkpoints: Sequence[Checkpoint],
    question: Prompt | str,
    sampling: Sampling,
    seed: int,
    scorer: Checkpoint | None = None,
    blind: bool = True,
) -> SideBySide:
    """A page on which these checkpoints will answer: a prompt of the project, or what was typed.

    Nothing is asked yet: `write_answer` does that, for each by itself. Blind, their order is drawn by chance.
    Refuses who does not manage the project, fewer than two or more than four, and one twice.
    """
    if not selectors.may(created_by, project, Role.MANAGER):
        raise NotAllowed(_("Only a manager of the project compares its checkpoints."))
    if not FEWEST <= len({one.pk for one in checkpoints}) == len(checkpoints) <= MOST:
        raise Refusal(_("Choose two to four different checkpoints."), field="right")
    prompt = question if isinstance(question, Prompt) else None
    typed: list[dict[str, str]] = [{"role": "user", "content": str(question)}]
    return _made(
        [(one, chat_of(prompt) if prompt else typed) for one in checkpoints],
        project=project,
        prompt=prompt,
        messages=prompt.messages if prompt else typed,
        sampling=asdict(sampling),
        seed=seed,
        scorer=scorer,
        blind=blind,
        created_by=created_by,
    )


@transaction.atomic
def continue_beside(
    *, shown: SideBySide, created_by: User, text: str, position: int | None = None
) -> SideBySide:
    """The next turn: all go on from the answer at `position`, or each from its own where it is None.

    Refuses what is not answered yet and a conversation that is long enough. Where names were hidden before
    the vote they are hidden again, and after one answer for all the order is drawn anew.
    """
    if not selectors.may(created_by, shown.project, Role.MANAGER):
        raise NotAllowed(_("Only a manager of the project compares its checkpoints."))
    answers = list(shown.answers.select_related("checkpoint"))
    if any(answer.written_at is None for answer in answers):
        raise Refusal(_("Wait until all have answered, then go on."), field="text")
    if not text.strip():
        raise Refusal(_("Type what you say next."), field="text")
    chosen = next((answer for answer in answers if answer.position == position), None)
    if position is not None and chosen is None:
        raise Refusal(_("Choose one of the answers to go on with."), field="position")

    def after(answer: SideBySideAnswer) -> list[dict[str, str]]:
        said = {"role": "assistant", "content": answer.text}
        return [*answer.messages, said, {"role": "user", "content": text.strip()}]

    chats = [(answer.checkpoint, after(chosen or answer)) for answer in answers]
    if len(chats[0][1]) > MOST_TURNS:
        raise Refusal(_("This conversation is long enough. Begin a new one."), field="text")
    return _made(
        chats,
        project=shown.project,
        prompt=None,
        messages=after(chosen or answers[0]),
        shared=chosen is not None,
        sampling=shown.sampling,
        seed=shown.seed,
        scorer=shown.scorer,
        # The next vote counts only if it is blind as well, whatever was told after the last one.
        blind=shown.blind,
        continues=shown,
        created_by=created_by,
    )


def _made(
    chats: Sequence[tuple[Checkpoint, Chat]], *, blind: bool, shared: bool = True, **fields: Any
) -> SideBySide:
    order = list(chats)
    # Where conversations have parted each is told by its own past: another order would hide nothing.
    if blind and shared:
        _chance.shuffle(order)
    made = SideBySide.objects.create(blind=blind, shared=shared, **fields)
    SideBySideAnswer.objects.bulk_create(
        SideBySideAnswer(side_by_side=made, position=place, checkpoint=checkpoint, messages=list(chat))
        for place, (checkpoint, chat) in enumerate(order, start=1)
    )
    return made


# ── Writing ───────────────────────────────────────────────────────────────────────────


def write_answer(*, answer: SideBySideAnswer) -> Iterator[str]:
    """Have its checkpoint answer, and give the text as it comes; then it is measured and stored.

    What is written already is given as it stands, without asking. A reader who goes away calls it off.
    Raises `EngineError`.
    """
    if answer.written_at is not None:
        yield answer.text
        return
    shown, checkpoint = answer.side_by_side, answer.checkpoint
    pieces: list[str] = []
    began = time.monotonic()
    last = None
    with engine_for(checkpoint) as engine:
        for delta in engine.stream(
            model=checkpoint.name, messages=answer.messages, seed=shown.seed, **shown.sampling
        ):
            if delta.text:
                pieces.append(delta.text)
                yield delta.text
            last = delta
    _store(
        answer,
        Answer(
            text="".join(pieces),
            finish_reason=(last.finish_reason if last else None) or "",
            seed=last.seed if last else shown.seed,
            token_count=last.token_count if last else None,
        ),
        seconds=time.monotonic() - began,
    )


def write_answers(*, shown: SideBySide) -> None:
    """Have all that lack an answer write it, at once. Raises `EngineError`; what came first is kept."""
    missing = list(shown.answers.filter(written_at__isnull=True).select_related("checkpoint"))
    trouble: EngineError | None = None
    with ThreadPoolExecutor(max_workers=MOST) as pool:
        asked = [(answer, pool.submit(_complete, answer, shown)) for answer in missing]
        for answer, future in asked:
            try:
                told, seconds = future.result()
            except EngineError as error:
                trouble = error
                continue
            _store(answer, told, seconds=seconds)
    if trouble is not None:
        raise trouble


def _complete(answer: SideBySideAnswer, shown: SideBySide) -> tuple[Answer, float]:
    """In a thread of its own: touches no database."""
    began = time.monotonic()
    with engine_for(answer.checkpoint) as engine:
        (told,) = engine.complete(
            model=answer.checkpoint.name, messages=answer.messages, seed=shown.seed, **shown.sampling
        )
    return told, time.monotonic() - began


def _store(answer: SideBySideAnswer, told: Answer, *, seconds: float) -> None:
    """Write what came and what is measured of it. Whoever writes first stays: a page never changes."""
    written = SideBySideAnswer.objects.filter(pk=answer.pk, written_at__isnull=True)
    written.update(
        text=told.text.replace("\x00", "\ufffd"),
        seed=told.seed,
        finish_reason=told.finish_reason[:20],
        token_count=told.token_count,
        seconds=round(seconds, 3),
        written_at=timezone.now(),
        **_measured(answer, told.text),
    )
    answer.refresh_from_db()


def _measured(answer: SideBySideAnswer, text: str) -> dict[str, Any]:
    """Rewards of every head and the divergence by token, as far as servers know them."""
    found: dict[str, Any] = {}
    scorer = answer.side_by_side.scorer
    if not text:
        return found
    if scorer is not None:
        try:
            with engine_for(scorer) as engine:
                scores = engine.scores_of_heads(
                    model=scorer.name, messages=answer.messages, completions=[text]
                )
            found["score"] = scores.scores[0] if scores.scores else None
            found["heads"] = {head: list(told[0]) for head, told in scores.heads.items()}
            found["segments"] = {
                head: [[one.start, one.end, one.reward] for one in told[0]]
                for head, told in scores.segments.items()
            }
        except (EngineError, KeyError):
            # Answers are worth showing without their rewards.
            pass
    if not answer.checkpoint.server_url:
        try:
            with engine_for(answer.checkpoint) as engine:
                kl = engine.token_kl(model=answer.checkpoint.name, messages=answer.messages, completion=text)
            found["token_kl"] = [[*place, value] for place, value in zip(kl.offsets, kl.kl, strict=True)]
        except (EngineError, KeyError):
            # A server that does not know the divergence says nothing of it.
            pass
    return found


# ── Showing names ─────────────────────────────────────────────────────────────────────


@transaction.atomic
def reveal_names(*, shown: SideBySide, user: User) -> None:
    """Show names and figures before the vote: a vote from then on is unblinded.

    Changes nothing after the vote. Refuses who does not manage the project.
    """
    if not selectors.may(user, shown.project, Role.MANAGER):
        raise NotAllowed(_("Only a manager of the project shows the names."))
    locked = SideBySide.objects.select_for_update().get(pk=shown.pk)
    if locked.is_hidden:
        locked.blind = False
        locked.save(update_fields=["blind"])
        audit.record(
            action="side_by_side.reveal", subject=locked, actor=user, project=locked.project, details={}
        )
    shown.blind, shown.judgment = locked.blind, locked.judgment


# ── Voting ────────────────────────────────────────────────────────────────────────────


@transaction.atomic
def vote_beside(
    *, shown: SideBySide, voter: User, verdict: str, ranks: Mapping[int, int] | None = None
) -> Judgment:
    """Store a vote on answers beside each other: a judgment like any other. Names are told from then on.

    Unblinded where names were shown before, here or with an earlier vote of theirs on the same responses.
    ranks: position → rank, for verdict "ranked". Sent twice it is one vote. Refuses who does not manage the
    project, what is not answered yet, and conversations that parted: a judgment compares answers to one chat.
    """
    if not selectors.may(voter, shown.project, Role.MANAGER):
        raise NotAllowed(_("Only a manager of the project votes here."))
    locked = SideBySide.objects.select_for_update().get(pk=shown.pk)
    if locked.judgment is not None:
        return locked.judgment
    answers = list(locked.answers.select_related("checkpoint__source"))
    if any(answer.written_at is None for answer in answers):
        raise Refusal(_("Wait until all have answered, then vote."), field="verdict")
    if not locked.shared:
        raise Refusal(
            _(
                "These conversations have parted, and a judgment compares answers to one chat. "
                "Go on with one answer for all."
            ),
            field="verdict",
        )
    prompt = locked.prompt or find_or_add_prompt(
        project=locked.project,
        parsed=ParsedPrompt(messages=list(locked.messages), context=[], references=[], tags=[TAG]),
    )
    completions = [_completion(locked, answer, prompt) for answer in answers]
    newest = locked.project.rounds.order_by("-number").values_list("number", flat=True).first()
    comparison = voted_comparison(
        prompt=prompt,
        completions=completions,
        round_number=newest or selectors.current_round(locked.project),
        purpose=Purpose.WORK,
        blind=locked.blind,
    )
    blind = locked.blind and not _names_were_told(voter, comparison)
    by_position = {answer.position: one.pk for answer, one in zip(answers, completions, strict=True)}
    told = ranks if verdict == Verdict.RANKED and ranks else {}
    judgment = record_vote(
        comparison=comparison,
        voter=voter,
        shown=list(by_position.values()),
        answer=JudgmentAnswer(
            verdict=verdict,
            ranks={by_position[place]: rank for place, rank in told.items() if place in by_position},
        ),
        idempotency_key=uuid.uuid5(_KEYS, locked.slug),
        blind=blind,
    )
    locked.prompt, locked.judgment = prompt, judgment
    locked.save(update_fields=["prompt", "judgment"])
    shown.judgment = judgment
    audit.record(
        action="side_by_side.vote",
        subject=locked,
        actor=voter,
        project=locked.project,
        details={"judgment": judgment.pk, "blind": blind},
    )
    return judgment


def _names_were_told(voter: User, comparison: Comparison) -> bool:
    """Whether this person voted on the same responses side by side before, and so has seen their names."""
    return SideBySide.objects.filter(judgment__comparison=comparison, judgment__annotator=voter).exists()


def _completion(shown: SideBySide, answer: SideBySideAnswer, prompt: Prompt) -> Completion:
    source = answer.checkpoint.source
    assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
    known = answer.finish_reason in FinishReason.values
    new = NewCompletion(
        text=answer.text,
        sampling=shown.sampling,
        seed=answer.seed,
        finish_reason=answer.finish_reason if known else FinishReason.UNKNOWN,
        token_count=answer.token_count,
    )
    (stored,) = record_completions(prompt=prompt, source=source, answers=[new])
    if stored.text == answer.text:
        return stored
    # The same seed gave another text under other sampling: what was read is what is judged.
    unseeded = NewCompletion(
        text=new.text,
        sampling={**shown.sampling, "seed": answer.seed},
        finish_reason=new.finish_reason,
        token_count=new.token_count,
    )
    return record_completions(prompt=prompt, source=source, answers=[unseeded])[0]
