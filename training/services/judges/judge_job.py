"""The background job of a judge: asks about comparisons in every order of the answers, and stores judgments.
It ends when nothing is left and begins again when there is more; a judgment cut short is begun again."""

import logging
import time
from collections.abc import Sequence

from django.db import transaction
from django.db.models import F

from annotation.choices import JobState, Verdict
from annotation.errors import LeaseLost
from annotation.models import Assignment, Completion, Guideline, Judgment
from annotation.record.judgment import JudgmentRecord
from annotation.selectors import access
from annotation.services.assignments.leases import release_assignment, skip_assignment
from annotation.services.jobs.claims import Heartbeat
from annotation.services.jobs.messages import sweep
from annotation.services.jobs.running import EXPECTED, run_job
from annotation.services.judgments.programs import judge_as_machine, lease_to_machine, unjudged_by
from annotation.services.texts.completions import storable
from training.choices import TaskName
from training.engine import Answer, Engine, EngineError, engine_for
from training.models import Judge, JudgeVerdict
from training.selectors.chats import chat_of
from training.selectors.rubrics import rubric_of
from training.services.judges.judging import (
    MOST_ANSWERS,
    Reply,
    UnreadableError,
    again,
    conclude,
    question,
    read_reply,
    reply_by_rubric,
    rotations,
    template_digest,
)
from training.services.judges.rubric_scores import scores_as_json, scores_of
from training.services.sampling.patience import retry_until_available

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Most requests to a judge for one ranking, until its last line can be read."""

_SEED = 0
_LONGEST_REASON = 4000
_OF_THIS_COMPARISON = (400, 413, 422)
"""Statuses by which a server refuses this text, and not the judge."""


class _PausedError(Exception):
    """A person paused the judge."""


def sweep_judges() -> None:
    """Wake every judge with work: one that ended and found more, that waits, or whose worker died."""
    awake = Judge.objects.filter(is_active=True).select_related("project", "user")
    for judge in awake.filter(state=JobState.FINISHED):
        left = unjudged_by(judge.user, judge.project, round_number=judge.round_number)
        if not _spent(judge) and left.exists():
            Judge.objects.filter(pk=judge.pk, state=JobState.FINISHED).update(state=JobState.WAITING)
    sweep(awake, TaskName.JUDGE)


def judge_comparisons(judge_id: int) -> None:
    """Judge all that is left to a judge now, unless another worker does."""
    run_job(
        Judge.objects.select_related("rubric__rubric"),
        judge_id,
        _judge_all,
        expected=(*EXPECTED, EngineError),
    )


def _judge_all(judge: Judge, heartbeat: Heartbeat) -> str:
    judged = 0
    with engine_for(judge.checkpoint) as engine:
        while True:
            judge.refresh_from_db(fields=["is_active", "most_judgments", "most_tokens"])
            if not judge.is_active:
                return f"paused after {judged} judgments"
            if spent := _spent(judge):
                return spent
            assignment = lease_to_machine(
                project=judge.project, machine=judge.user, round_number=judge.round_number
            )
            if assignment is None:
                return f"{judged} judgments; nothing is left to judge"
            try:
                judged += _judge_one(judge, assignment, engine, heartbeat)
            except _PausedError:
                release_assignment(assignment=assignment, annotator=judge.user)
            heartbeat(current=judged, message=f"{judged} comparisons judged")


def _judge_one(judge: Judge, assignment: Assignment, engine: Engine, heartbeat: Heartbeat) -> bool:
    """Ask in every order and store what follows; False where the server refuses this very text."""
    if assignment.comparison.size > MOST_ANSWERS:
        return _skip(judge, assignment, f"more than {MOST_ANSWERS} answers")
    guideline = access.current_guideline(judge.project)
    asking = _Asking(judge, assignment, engine, heartbeat, guideline)
    try:
        replies = [asking.ask(order) for order in rotations(assignment.display_order)]
    except EngineError as error:
        if error.status not in _OF_THIS_COMPARISON:
            raise
        logger.warning("%s cannot judge %s: %s", judge, assignment.comparison, error)
        return _skip(judge, assignment, str(error))
    _store(judge, assignment, guideline, replies, asking)
    return True


class _Asking:
    """The questions about one comparison, and what they cost."""

    def __init__(
        self,
        judge: Judge,
        assignment: Assignment,
        engine: Engine,
        heartbeat: Heartbeat,
        guideline: Guideline | None,
    ) -> None:
        self.judge, self.engine, self.heartbeat = judge, engine, heartbeat
        self.guidelines = guideline.text if guideline else ""
        self.rubric = None if judge.rubric is None else rubric_of(judge.rubric)
        self.conversation = chat_of(assignment.comparison.prompt)
        completions = Completion.objects.in_bulk(assignment.display_order)
        self.texts = {pk: completion.text for pk, completion in completions.items()}
        self.prompt_tokens = self.completion_tokens = 0
        self.seconds = 0.0

    def ask(self, order: Sequence[int]) -> Reply:
        """Return the judge's reply for this order, asking again if it cannot be read."""
        chat = question(
            self.judge.template,
            guidelines=self.guidelines,
            conversation=self.conversation,
            answers=[self.texts[pk] for pk in order],
            rubric=self.rubric,
        )
        messages, text, problem = chat, "", ""
        for _attempt in range(ATTEMPTS):
            text = self._answer(messages)
            try:
                if self.rubric is not None:
                    return reply_by_rubric(text, order, self.rubric)
                return Reply(order=tuple(order), text=text, ranks=read_reply(text, order))
            except UnreadableError as error:
                problem = str(error)
                messages = again(chat, text, problem)
        return Reply(order=tuple(order), text=text, ranks=None, problem=problem)

    def _answer(self, chat: list[dict[str, str]]) -> str:
        started = time.monotonic()
        name = self.judge.checkpoint.name
        [answer] = retry_until_available(
            lambda: self.engine.complete(
                model=name,
                messages=chat,
                seed=_SEED,
                temperature=0.0,
                max_tokens=self.judge.max_tokens,
            ),
            message="judging",
            tell=self._tell,
        )
        self._count(answer, time.monotonic() - started)
        return answer.text.replace("\x00", "")

    def _tell(self, message: str) -> None:
        self.heartbeat(message=message)
        if not Judge.objects.filter(pk=self.judge.pk, is_active=True).exists():
            raise _PausedError

    def _count(self, answer: Answer, seconds: float) -> None:
        read, written = answer.prompt_tokens or 0, answer.token_count or 0
        self.prompt_tokens += read
        self.completion_tokens += written
        self.seconds += seconds
        Judge.objects.filter(pk=self.judge.pk).update(
            questions=F("questions") + 1,
            prompt_tokens=F("prompt_tokens") + read,
            completion_tokens=F("completion_tokens") + written,
            seconds=F("seconds") + seconds,
        )


def _store(
    judge: Judge,
    assignment: Assignment,
    guideline: Guideline | None,
    replies: Sequence[Reply],
    asking: _Asking,
) -> None:
    """Write the judgment and its provenance, together or not at all."""
    conclusion = conclude(replies)
    if conclusion.ranks is None:
        verdict = Verdict.CANNOT_JUDGE
    else:
        verdict = Verdict.RANKED if max(conclusion.ranks.values()) > 1 else Verdict.EQUAL
    answer = JudgmentRecord(
        verdict=verdict,
        ranks={str(pk): rank for pk, rank in (conclusion.ranks or {}).items()},
        comment=_stored_reason(conclusion.reason),
        rubric_scores=scores_of(replies, judge.rubric) if judge.rubric else (),
    )
    with transaction.atomic():
        judgment = judge_as_machine(
            assignment=assignment,
            machine=judge.user,
            answer=answer,
            guideline=guideline,
            rubric=judge.rubric,
        )
        if JudgeVerdict.objects.filter(judgment=judgment).exists():
            return
        JudgeVerdict.objects.create(
            judge=judge,
            judgment=judgment,
            checkpoint=judge.checkpoint,
            model=judge.checkpoint.server_model or judge.checkpoint.name,
            template_digest=template_digest(judge.template),
            replies=[_reply_as_json(reply) for reply in replies],
            orders_agree=conclusion.orders_agree,
            prompt_tokens=asking.prompt_tokens,
            completion_tokens=asking.completion_tokens,
            seconds=asking.seconds,
        )


def _reply_as_json(reply: Reply) -> dict[str, object]:
    ranks = None if reply.ranks is None else {str(pk): rank for pk, rank in reply.ranks.items()}
    return {
        "order": list(reply.order),
        "text": _stored_reason(reply.text),
        "ranks": ranks,
        "problem": reply.problem,
        "scores": scores_as_json(reply),
    }


def _stored_reason(text: str) -> str:
    """Return the reply as a database accepts it, and truncated."""
    return storable(text)[:_LONGEST_REASON].strip()


def _skip(judge: Judge, assignment: Assignment, reason: str) -> bool:
    try:
        skip_assignment(assignment=assignment, annotator=judge.user, reason=reason)
    except LeaseLost:
        logger.info("%s: the lease of %s ran out", judge, assignment)
    return False


def _spent(judge: Judge) -> str:
    """Return the limit that a judge has reached; empty if none."""
    current = Judge.objects.get(pk=judge.pk)
    if current.most_tokens is not None and current.tokens >= current.most_tokens:
        return f"its budget of {current.most_tokens} tokens is spent"
    if current.most_judgments is not None:
        judged = Judgment.objects.filter(annotator=current.user_id).count()
        if judged >= current.most_judgments:
            return f"its {current.most_judgments} judgments are made"
    return ""
