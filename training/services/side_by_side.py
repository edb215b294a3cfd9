"""Checkpoints answer one chat side by side, and a blind vote on the responses is a judgment."""

import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext as _

from annotation.choices import Purpose
from annotation.errors import Refusal
from annotation.models import Comparison, Completion, Judgment, Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit
from annotation.services.judgments.submission import voted_comparison
from annotation.services.texts import find_or_add_prompt
from training.engine import Answer, EngineError, EngineUnavailableError, engine_for
from training.models import Checkpoint, PromptSet, SideBySide, SideBySideAnswer
from training.selectors.projects import chat_with, system_of, with_system
from training.selectors.prompt_sets import progress_on
from training.services.voting import VoteChoice, record_shown, store_vote

# ── Compare ──
#
# A vote records the prompt, the answers with their seeds, a comparison of work in the project's newest
# round, and the judgment, as the queue would: on a training prompt it is learned from like any other, on a
# held-out prompt it only measures. Names, figures and the diff are hidden until the vote. Who asks for them
# before casts an unblinded vote: it is stored and exported, but nothing is learned from it and no win rate
# counts it.


FEWEST, MOST = 2, 4
MOST_TURNS = 40
TAG = "side by side"
"""Of prompts that were typed here and came into the project with a vote."""

_KEYS = uuid.UUID("0c1a6a52-7e1f-5f0e-9a53-8d1f2a6b3c11")
"""Namespace of the idempotency keys of votes."""

_chance = random.SystemRandom()
Chat = Sequence[Mapping[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedSampling:
    """Sampling settings that all checkpoints share."""

    temperature: float = 0.7
    max_tokens: int = 256
    top_p: float = 0.95

    @classmethod
    def of(cls, shown: SideBySide) -> Self:
        """Return the settings of a page."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in shown.sampling.items() if name in names})


# ── Asking ────────────────────────────────────────────────────────────────────────────


@transaction.atomic
def ask_side_by_side(
    *,
    project: Project,
    created_by: User,
    checkpoints: Sequence[Checkpoint],
    question: Prompt | str,
    sampling: SharedSampling,
    seed: int,
    scorer: Checkpoint | None = None,
    blind: bool = True,
    system: str = "",
    prompt_set: PromptSet | None = None,
) -> SideBySide:
    """Create the page on which these checkpoints answer a prompt of the project, or a typed text.

    No model is asked yet: `write_answer` does that for each. Blind, the order of checkpoints is random.
    system: replaces the system prompt; a vote then adds a prompt with it, of the same split.
    Refuses who does not manage the project, fewer than two or more than four checkpoints, and duplicates.
    """
    access.refuse_unless_manager(created_by, project, "manager_compares_checkpoints")
    if not FEWEST <= len({checkpoint.pk for checkpoint in checkpoints}) == len(checkpoints) <= MOST:
        raise Refusal(
            "invalid_checkpoint_count", _("Choose two to four different checkpoints."), field="right"
        )
    prompt = question if isinstance(question, Prompt) else None
    question_messages = prompt.messages if prompt else [{"role": "user", "content": str(question)}]
    messages = with_system(question_messages, system.strip())
    chat = chat_with(messages, prompt.context if prompt else ())
    return create_page(
        [(checkpoint, chat) for checkpoint in checkpoints],
        project=project,
        prompt=prompt if messages == question_messages else None,
        base_prompt=prompt,
        prompt_set=prompt_set,
        messages=messages,
        sampling=asdict(sampling),
        seed=seed,
        scorer=scorer,
        blind=blind,
        created_by=created_by,
    )


@transaction.atomic
def continue_side_by_side(
    *, shown: SideBySide, created_by: User, text: str, position: int | None = None
) -> SideBySide:
    """Create the next turn: all continue the response at `position`, or each its own where it is None.

    Refuses a page with missing responses and a conversation at its maximum length. A blind page continues
    blind, and after one response for all the order is random again.
    """
    access.refuse_unless_manager(created_by, shown.project, "manager_compares_checkpoints")
    answers = list(shown.answers.select_related("checkpoint"))
    if any(answer.written_at is None for answer in answers):
        raise Refusal(
            "responses_incomplete", _("Wait until all responses are complete, then continue."), field="text"
        )
    if not text.strip():
        raise Refusal("message_missing", _("Type what you say next."), field="text")
    chosen = next((answer for answer in answers if answer.position == position), None)
    if position is not None and chosen is None:
        raise Refusal("response_not_chosen", _("Choose the response to continue from."), field="position")

    def after(answer: SideBySideAnswer) -> list[dict[str, str]]:
        reply = {"role": "assistant", "content": answer.text}
        return [*answer.messages, reply, {"role": "user", "content": text.strip()}]

    chats = [(answer.checkpoint, after(chosen or answer)) for answer in answers]
    if len(chats[0][1]) > MOST_TURNS:
        raise Refusal(
            "conversation_too_long", _("This conversation is long enough. Begin a new one."), field="text"
        )
    return create_page(
        chats,
        project=shown.project,
        prompt=None,
        base_prompt=shown.base_prompt or shown.prompt,
        messages=after(chosen or answers[0]),
        shared=chosen is not None,
        sampling=shown.sampling,
        seed=shown.seed,
        scorer=shown.scorer,
        # The next vote counts only if it is blind as well, whatever was revealed after the last one.
        blind=shown.blind,
        continues=shown,
        created_by=created_by,
    )


def create_page(
    chats: Sequence[tuple[Checkpoint, Chat]], *, blind: bool, shared: bool = True, **fields: Any
) -> SideBySide:
    """Create the page on which each checkpoint answers its chat; blind, in a random order."""
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
    """Yield the response of one checkpoint as it is generated; then measure and store it.

    A stored response is yielded as it stands, without a request. A reader who goes away cancels it.
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
    """Generate all missing responses in parallel. Raises `EngineError` after storing those that arrived."""
    missing = list(shown.answers.filter(written_at__isnull=True).select_related("checkpoint"))
    trouble: EngineError | None = None
    with ThreadPoolExecutor(max_workers=MOST) as pool:
        futures = [(answer, pool.submit(_complete, answer, shown)) for answer in missing]
        for answer, future in futures:
            try:
                completion, seconds = future.result()
            except EngineError as error:
                trouble = error
                continue
            _store(answer, completion, seconds=seconds)
    if trouble is not None:
        raise trouble


def _complete(answer: SideBySideAnswer, shown: SideBySide) -> tuple[Answer, float]:
    """Request one response. Runs in a thread and touches no database."""
    began = time.monotonic()
    with engine_for(answer.checkpoint) as engine:
        (completion,) = engine.complete(
            model=answer.checkpoint.name, messages=answer.messages, seed=shown.seed, **shown.sampling
        )
    return completion, time.monotonic() - began


def _store(answer: SideBySideAnswer, completion: Answer, *, seconds: float) -> None:
    """Write what came and what is measured of it. Whoever writes first stays: a page never changes."""
    written = SideBySideAnswer.objects.filter(pk=answer.pk, written_at__isnull=True)
    written.update(
        text=completion.text.replace("\x00", "\ufffd"),
        seed=completion.seed,
        finish_reason=completion.finish_reason[:20],
        token_count=completion.token_count,
        seconds=round(seconds, 3),
        written_at=timezone.now(),
        **_measured(answer, completion.text),
    )
    answer.refresh_from_db()


def _measured(answer: SideBySideAnswer, text: str) -> dict[str, Any]:
    """Return the rewards of every head and the KL divergence by token, as far as servers know them."""
    measured: dict[str, Any] = {}
    scorer = answer.side_by_side.scorer
    if not text:
        return measured
    if scorer is not None:
        try:
            with engine_for(scorer) as engine:
                scores = engine.scores_of_heads(
                    model=scorer.name, messages=answer.messages, completions=[text]
                )
            measured["score"] = scores.scores[0] if scores.scores else None
            measured["heads"] = {head: list(values[0]) for head, values in scores.heads.items()}
            measured["segments"] = {
                head: [[segment.start, segment.end, segment.reward] for segment in segments[0]]
                for head, segments in scores.segments.items()
            }
        except (EngineError, KeyError):
            # Responses are worth showing without their rewards.
            pass
    if not answer.checkpoint.server_url:
        try:
            with engine_for(answer.checkpoint) as engine:
                kl = engine.token_kl(model=answer.checkpoint.name, messages=answer.messages, completion=text)
            measured["token_kl"] = [[*place, value] for place, value in zip(kl.offsets, kl.kl, strict=True)]
        except (EngineError, KeyError):
            # A server that does not know the divergence says nothing of it.
            pass
    return measured


# ── Showing names ─────────────────────────────────────────────────────────────────────


@transaction.atomic
def reveal_names(*, shown: SideBySide, user: User) -> None:
    """Show names and figures before the vote: a vote from then on is unblinded.

    Changes nothing after the vote. Refuses who does not manage the project.
    """
    access.refuse_unless_manager(user, shown.project, "manager_compares_checkpoints")
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
def vote_side_by_side(*, shown: SideBySide, voter: User, vote: VoteChoice) -> Judgment:
    """Store a vote on responses beside each other: a judgment like any other. It reveals the names.

    Unblinded where names were shown before, here or with an earlier vote of theirs on the same responses.
    Sent twice it is one vote. Refuses who does not manage the project, what is not answered yet, and
    conversations that parted: a judgment compares responses to one chat.
    """
    access.refuse_unless_manager(voter, shown.project, "manager_compares_checkpoints")
    locked = SideBySide.objects.select_for_update().get(pk=shown.pk)
    if locked.judgment is not None:
        return locked.judgment
    answers = list(locked.answers.select_related("checkpoint__source"))
    if any(answer.written_at is None for answer in answers):
        raise Refusal(
            "responses_incomplete", _("Wait until all responses are complete, then vote."), field="verdict"
        )
    if not locked.shared:
        raise Refusal(
            "conversations_differ",
            _(
                "These conversations differ, and an annotation compares responses to one "
                "conversation. Continue from one response for all."
            ),
            field="verdict",
        )
    prompt = locked.prompt or _added_prompt(locked)
    completions = [_completion(locked, answer, prompt) for answer in answers]
    newest = locked.project.rounds.order_by("-number").values_list("number", flat=True).first()
    comparison = voted_comparison(
        prompt=prompt,
        completions=completions,
        round_number=newest or access.current_round(locked.project),
        purpose=Purpose.WORK,
        blind=locked.blind,
    )
    blind = locked.blind and not _knows_names(voter, comparison)
    if locked.prompt is None:
        locked.prompt = prompt
        locked.save(update_fields=["prompt"])
    judgment = store_vote(
        row=locked,
        voter=voter,
        vote=vote,
        comparison=comparison,
        order=[completion.pk for completion in completions],
        idempotency_key=uuid.uuid5(_KEYS, locked.slug),
        blind=blind,
    )
    shown.judgment = judgment
    audit.record(
        action="side_by_side.vote",
        subject=locked,
        actor=voter,
        project=locked.project,
        details={"judgment": judgment.pk, "blind": blind},
    )
    return judgment


def _added_prompt(shown: SideBySide) -> Prompt:
    """Return the prompt that a vote adds. What derives from a held-out prompt is held out as well."""
    base = shown.base_prompt
    # A follow-up has the passages in its messages.
    context = base.context if base and shown.continues_id is None else []
    return find_or_add_prompt(
        project=shown.project,
        messages=shown.messages,
        context=context,
        tags=[TAG],
        split=base.split if base else None,
    )


def _knows_names(voter: User, comparison: Comparison) -> bool:
    """Return whether the voter saw the names of the same responses after an earlier vote."""
    return SideBySide.objects.filter(judgment__comparison=comparison, judgment__annotator=voter).exists()


def _completion(shown: SideBySide, answer: SideBySideAnswer, prompt: Prompt) -> Completion:
    source = answer.checkpoint.source
    assert source is not None  # noqa: S101 - constraint checkpoint_source_where_it_writes
    return record_shown(
        prompt=prompt, source=source, response=answer, sampling=shown.sampling, seed=answer.seed
    )


def trouble_of(error: Exception, *, hidden: bool) -> str:
    """Return the reason why responses are missing. The message of a server may name its model."""
    if not hidden:
        return str(error)
    if isinstance(error, EngineUnavailableError):
        return _("A model server is down or still starting. Generate the missing responses in a moment.")
    return _("A response could not be generated. Try again in a moment.")


# ── Next pages: the same chat again, and the next prompt of a set ──


MOST_SEED = 2**31 - 1


@transaction.atomic
def regenerate_side_by_side(
    *,
    shown: SideBySide,
    created_by: User,
    sampling: SharedSampling,
    seed: int | None = None,
    system: str = "",
    blind: bool = True,
) -> SideBySide:
    """Create a page on which the same checkpoints answer the same chat again.

    seed: a new random one where it is None. system: replaces the system prompt; empty keeps it.
    """
    access.refuse_unless_manager(created_by, shown.project, "manager_compares_checkpoints")
    answers = list(shown.answers.select_related("checkpoint"))
    messages = with_system(shown.messages, system.strip())
    is_same = messages == shown.messages
    return create_page(
        [(answer.checkpoint, with_system(answer.messages, system.strip())) for answer in answers],
        project=shown.project,
        prompt=shown.prompt if is_same else None,
        base_prompt=shown.base_prompt or shown.prompt,
        prompt_set=shown.prompt_set,
        messages=messages,
        shared=shown.shared,
        sampling=asdict(sampling),
        seed=_chance.randrange(MOST_SEED) if seed is None else seed,
        scorer=shown.scorer,
        blind=blind,
        continues=shown.continues,
        created_by=created_by,
    )


@transaction.atomic
def next_of_set(*, shown: SideBySide, created_by: User) -> SideBySide:
    """Create the page of the next prompt of the set on which these checkpoints have no vote. Always blind.

    Refuses a page of no set, and a set of which nothing is left.
    """
    access.refuse_unless_manager(created_by, shown.project, "manager_compares_checkpoints")
    if shown.prompt_set is None:
        raise Refusal(
            "comparison_without_prompt_set",
            _("This comparison belongs to no prompt set."),
            field="prompt_set",
        )
    checkpoints = [answer.checkpoint for answer in shown.answers.select_related("checkpoint")]
    progress = progress_on(shown.prompt_set, checkpoints, after=shown.base_prompt_id)
    if progress.next is None:
        raise Refusal(
            "prompt_set_exhausted",
            _("These checkpoints were compared on every prompt of the set."),
            field="prompt_set",
        )
    base_system = system_of(shown.base_prompt.messages) if shown.base_prompt else ""
    system = system_of(shown.messages)
    return ask_side_by_side(
        project=shown.project,
        created_by=created_by,
        checkpoints=checkpoints,
        question=progress.next,
        sampling=SharedSampling.of(shown),
        seed=shown.seed,
        scorer=shown.scorer,
        system=system if system != base_system else "",
        prompt_set=shown.prompt_set,
    )
