"""Judges: models that label alongside people, by the project's guidelines."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from statistics import fmean

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from annotation.choices import JobState, Purpose, Verdict
from annotation.errors import LeaseLost, Refusal
from annotation.models import (
    Assignment,
    Comparison,
    Completion,
    Guideline,
    Judgment,
    Project,
    RubricVersion,
    User,
)
from annotation.record.judgment import JudgmentRecord, RubricScorePart
from annotation.selectors import access
from annotation.selectors.rubrics import published_version
from annotation.services.assignments.leases import release_assignment, skip_assignment
from annotation.services.audit import record
from annotation.services.job_runs import EXPECTED, run_job
from annotation.services.jobs import Heartbeat, send_after_commit, sweep
from annotation.services.judgments.submission import (
    create_machine,
    judge_as_machine,
    lease_to_machine,
    unjudged_by,
)
from annotation.services.texts import storable
from training.choices import WRITES_TEXT, TrainingTask
from training.engine import Answer, Engine, EngineError, engine_for
from training.judging import (
    DEFAULT_TEMPLATE,
    MOST_ANSWERS,
    RUBRIC_TEMPLATE,
    Chat,
    JudgeReply,
    UnreadableError,
    ask,
    check_template,
    conclude,
    question,
    read_ranking,
    reply_by_rubric,
    rotations,
    template_digest,
)
from training.models import Checkpoint, Judge, JudgeVerdict
from training.selectors.projects import chat_of
from training.selectors.rubrics import rubric_of
from training.services.sampling import retry_until_available

# ── Scores by a rubric: one for each response and criterion ──


TOKENS_PER_SCORE = 24
"""The least length of one line of a reply: score and reason."""


def scores_of(replies: Sequence[JudgeReply], version: RubricVersion) -> tuple[RubricScorePart, ...]:
    """Return the mean of each score over all orders, with the reason of the first order.

    Empty where one order has no scores: then nothing is judged.
    """
    scored = [reply.scores for reply in replies if reply.scores is not None]
    if len(scored) < len(replies):
        return ()
    return tuple(
        RubricScorePart(
            completion=str(completion),
            criterion=criterion.key,
            value=fmean(scores[completion][criterion.key].value for scores in scored),
            reason=storable(scored[0][completion][criterion.key].reason),
        )
        for completion in replies[0].order
        for criterion in version.criteria.all()
    )


def scores_as_json(reply: JudgeReply) -> dict[str, dict[str, list[object]]] | None:
    """Return a reply's scores: completion id → criterion key → value and reason."""
    if reply.scores is None:
        return None
    return {
        str(pk): {key: [score.value, storable(score.reason)] for key, score in scores.items()}
        for pk, scores in reply.scores.items()
    }


# ── Judges are created, paused and resumed by a manager ──


def create_judge(
    *,
    project: Project,
    name: str,
    checkpoint: Checkpoint,
    created_by: User,
    template: str = DEFAULT_TEMPLATE,
    max_tokens: int = 512,
    most_judgments: int | None = None,
    most_tokens: int | None = None,
    round_number: int | None = None,
    rubric: RubricVersion | None = None,
) -> Judge:
    """Let a checkpoint judge a project's comparisons; it begins once a worker finds it.

    round_number: whose comparisons; None is always the newest round. rubric: the version
    that it scores by, whose weighted sums decide the preference; None has it rank. Refuses who does not
    manage the project, a checkpoint that writes no text or belongs to another project, a template without a
    place for what is judged, a name that is taken, a round without comparisons, a rubric that is not
    published, and a project without verdicts.
    """
    access.refuse_unless_manager(created_by, project, "manager_changes_judges")
    name = name.replace("\x00", "").strip()
    if not name:
        raise Refusal("judge_name_missing", _("Give the judge a name."), field="name")
    if not project.ask_verdict:
        raise Refusal(
            "preference_not_asked",
            _("This project does not ask for a preference, so there is nothing to vote on."),
        )
    if checkpoint.kind not in WRITES_TEXT or checkpoint.project_id not in (None, project.pk):
        raise Refusal(
            "unknown_checkpoint",
            _("Choose a checkpoint of this project that writes text."),
            field="checkpoint",
        )
    if round_number is not None and round_number not in rounds_to_judge(project):
        raise Refusal(
            "round_without_comparisons",
            _("Round %(number)s has no comparisons to judge. Choose another."),
            field="round_number",
            number=round_number,
        )
    if rubric is not None:
        _require_usable(rubric, project, max_tokens)
        template = RUBRIC_TEMPLATE if template == DEFAULT_TEMPLATE else template
    try:
        check_template(template, by_rubric=rubric is not None)
    except ValueError as error:
        raise Refusal("invalid_judge_template", str(error), field="template") from error
    try:
        with transaction.atomic():
            judge = Judge.objects.create(
                project=project,
                user=create_machine(name=name),
                name=name,
                checkpoint=checkpoint,
                template=template,
                max_tokens=max_tokens,
                most_judgments=most_judgments,
                most_tokens=most_tokens,
                round_number=round_number,
                rubric=rubric,
                created_by=created_by,
            )
            record(
                action="annotator.create",
                subject=judge,
                actor=created_by,
                project=project,
                details={
                    "checkpoint": checkpoint.name,
                    "template": template_digest(template),
                    "round": round_number,
                    "rubric": str(rubric or ""),
                },
            )
            send_after_commit(TrainingTask.JUDGE, judge.pk)
    except IntegrityError:
        raise Refusal(
            "judge_name_in_use", _("A judge of this project has this name. Choose another."), field="name"
        ) from None
    return judge


def _require_usable(rubric: RubricVersion, project: Project, max_tokens: int) -> None:
    """Refuse a rubric that is not in use in the project, and a reply too short for its scores."""
    if published_version(project, rubric.pk) is None:
        raise Refusal("unknown_rubric", _("Choose a published rubric of this project."), field="rubric")
    least = 2 * TOKENS_PER_SCORE * rubric.criteria.count()
    if max_tokens < least:
        raise Refusal(
            "too_few_tokens",
            _("Scores of two responses by this rubric need at least %(least)s tokens."),
            field="max_tokens",
            least=least,
        )


def rounds_to_judge(project: Project) -> list[int]:
    """Numbers of the rounds that have work to compare, the newest first."""
    work = Comparison.objects.filter(project=project, purpose=Purpose.WORK, size__gte=2)
    return list(work.order_by("-round_number").values_list("round_number", flat=True).distinct())


def set_judge(*, judge: Judge, active: bool, by: User) -> None:
    """Pause a judge, or let it go on, also after a failure. It stops before its next question."""
    access.refuse_unless_manager(by, judge.project, "manager_changes_judges")
    with transaction.atomic():
        changed = Judge.objects.filter(pk=judge.pk).exclude(is_active=active).update(is_active=active)
        failed = active and Judge.objects.filter(pk=judge.pk, state=JobState.FAILED).update(
            state=JobState.WAITING, error=""
        )
        if changed or failed:
            action = "annotator.resume" if active else "annotator.pause"
            record(action=action, subject=judge, actor=by, project=judge.project)
        if active:
            send_after_commit(TrainingTask.JUDGE, judge.pk)
    judge.refresh_from_db()


# ── The background job of a judge ──


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
    sweep(awake, TrainingTask.JUDGE)


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

    def ask(self, order: Sequence[int]) -> JudgeReply:
        """Return the judge's reply for this order, asking again if it cannot be read."""
        chat = question(
            self.judge.template,
            guidelines=self.guidelines,
            conversation=self.conversation,
            answers=[self.texts[pk] for pk in order],
            rubric=self.rubric,
        )

        def read(text: str) -> JudgeReply:
            if self.rubric is not None:
                return reply_by_rubric(text, order, self.rubric)
            return JudgeReply(order=tuple(order), text=text, ranks=read_ranking(text, order))

        try:
            return ask(chat, self._answer, read, attempts=ATTEMPTS)
        except UnreadableError as error:
            return JudgeReply(order=tuple(order), text=error.reply, ranks=None, problem=str(error))

    def _answer(self, chat: Chat) -> str:
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
    replies: Sequence[JudgeReply],
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


def _reply_as_json(reply: JudgeReply) -> dict[str, object]:
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
        judged = Judgment.everything.filter(annotator=current.user_id).count()
        if judged >= current.most_judgments:
            return f"its {current.most_judgments} judgments are made"
    return ""
