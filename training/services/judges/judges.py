"""Judges: models that label alongside people, by the project's guidelines. A manager creates, pauses and
resumes them."""

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.choices import JobState, Purpose
from annotation.errors import Refusal
from annotation.models import Comparison, Project, RubricVersion, User
from annotation.selectors import access
from annotation.selectors.rubrics import published_version
from annotation.services.audit import record
from annotation.services.jobs.messages import send_after_commit
from annotation.services.judgments.programs import create_machine
from training.choices import WRITES_TEXT, TaskName
from training.models import Checkpoint, Judge
from training.services.judges.judging import (
    DEFAULT_TEMPLATE,
    RUBRIC_TEMPLATE,
    check_template,
    template_digest,
)
from training.services.judges.rubric_scores import TOKENS_PER_SCORE


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
            send_after_commit(TaskName.JUDGE, judge.pk)
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
            send_after_commit(TaskName.JUDGE, judge.pk)
    judge.refresh_from_db()
