"""The job that computes a project's suggestions ahead, and the settings that managers give it.

It ends when every comparison has its suggestions and begins again when there are more. What is stored stands
whatever happens to it; a comparison whose computing was cut short is asked about again.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils.translation import gettext as _

from annotation.choices import JobState, Purpose, SuggestionKind
from annotation.errors import Refusal
from annotation.models import Comparison, HelpSettings, Project, User
from annotation.selectors import access
from annotation.selectors.configuration import configuration_of
from annotation.services.assignments.next import QUEUE_ORDER
from annotation.services.jobs.claims import Heartbeat, still_held
from annotation.services.jobs.messages import send_after_commit, sweep
from annotation.services.jobs.running import EXPECTED, run_job
from annotation.services.suggestions.settings import set_help
from annotation.services.suggestions.storing import SuggestionInput, store_suggestions
from training.choices import WRITES_TEXT, CheckpointKind, JobKind, TaskName
from training.engine import Engine, EngineError, engine_for
from training.models import Checkpoint, SuggestionSource
from training.selectors.chats import chat_of
from training.services.judges.judging import UnreadableError, again
from training.services.sampling.patience import retry_until_available
from training.services.suggestions import asking, scoring
from training.services.suggestions.planting import plant

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Most requests to an AI annotator, until its reply can be read."""
MAX_TOKENS = 1024
MOST_RESPONSES = 9
"""Comparisons of more responses get no suggestions."""

_SEED = 0
_OF_THIS_COMPARISON = (400, 413, 422)
"""Statuses by which a server refuses this text, and not the request."""


class _StoppedError(Exception):
    """A person switched the suggestions off."""


def set_suggestions(
    *,
    project: Project,
    by: User,
    is_active: bool,
    checkpoint: Checkpoint,
    template: str = asking.DEFAULT_TEMPLATE,
    least_confidence: float = 0.5,
    **settings: Any,
) -> SuggestionSource:
    """Switch a project's suggestions on or off, with their source and the settings of the experiment.

    `settings` are fields of `HelpSettings`. What is computed stays as it is; another source counts for
    comparisons without suggestions. Refuses who does not manage the project, a checkpoint that can suggest
    nothing here, and a template without a place for what is reviewed.
    """
    if checkpoint.project_id not in (None, project.pk):
        raise Refusal("unknown_checkpoint", _("Choose a checkpoint of this project."), field="checkpoint")
    _check_template(template)
    with transaction.atomic():
        set_help(project=project, is_active=is_active, by=by, **settings)
        source, _created = SuggestionSource.objects.update_or_create(
            project=project,
            defaults={
                "checkpoint": checkpoint,
                "template": template,
                "least_confidence": least_confidence,
                "is_active": is_active,
            },
            create_defaults={
                "checkpoint": checkpoint,
                "template": template,
                "least_confidence": least_confidence,
                "is_active": is_active,
                "created_by": by,
            },
        )
        if is_active:
            SuggestionSource.objects.filter(pk=source.pk, state=JobState.FAILED).update(
                state=JobState.WAITING, error=""
            )
            send_after_commit(TaskName.DO_JOB, JobKind.SUGGESTIONS, source.pk)
    source.refresh_from_db()
    return source


def sweep_suggestions() -> None:
    """Wake every source with comparisons to look at: new ones, waiting ones, or those of a dead worker."""
    awake = SuggestionSource.objects.filter(is_active=True, project__archived_at__isnull=True)
    for source in awake.filter(state=JobState.FINISHED).select_related("project"):
        if without_suggestions(source.project).exists():
            SuggestionSource.objects.filter(pk=source.pk, state=JobState.FINISHED).update(
                state=JobState.WAITING
            )
    sweep(awake, TaskName.DO_JOB, JobKind.SUGGESTIONS)


def do_suggestions(source_id: int) -> None:
    """Compute what a project lacks now, unless another worker does."""
    run_job(SuggestionSource.objects.all(), source_id, _suggest_all, expected=(*EXPECTED, EngineError))


def without_suggestions(project: Project) -> QuerySet[Comparison]:
    """Return the comparisons of the newest round, and the gold items, that have no suggestions yet.

    Turns of a live conversation get none: the annotator waits to go on.
    """
    work = Q(purpose=Purpose.WORK, round_number=access.current_round(project))
    return Comparison.objects.filter(
        work | Q(purpose=Purpose.GOLD), project=project, suggestion_set__isnull=True, turns__isnull=True
    )


def _suggest_all(source: SuggestionSource, heartbeat: Heartbeat) -> str:
    compared = 0
    with engine_for(source.checkpoint) as engine:
        while True:
            source.refresh_from_db(fields=["is_active", "checkpoint", "template", "least_confidence"])
            if not source.is_active:
                return f"switched off after {compared} comparisons"
            left = without_suggestions(source.project)
            comparison = left.select_related("prompt").order_by(*QUEUE_ORDER).first()
            if comparison is None:
                return f"{compared} comparisons; nothing is left to suggest"
            comparison.project = source.project
            try:
                _suggest_one(source, comparison, engine, heartbeat)
            except _StoppedError:
                continue
            compared += 1
            heartbeat(current=compared, message=f"suggestions for {compared} comparisons")


def _suggest_one(
    source: SuggestionSource, comparison: Comparison, engine: Engine, heartbeat: Heartbeat
) -> None:
    """Ask about one comparison and store what follows; an empty set where the server refuses its text."""
    question = question_about(comparison)
    suggestions: Sequence[SuggestionInput] = ()
    if question.kinds and len(question.texts) <= MOST_RESPONSES:
        tell = partial(_tell, source, heartbeat)
        ask = _scored if source.checkpoint.kind == CheckpointKind.REWARD else _generated
        try:
            suggestions = ask(source, comparison, question, engine, tell)
        except EngineError as error:
            if error.status not in _OF_THIS_COMPARISON:
                raise
            logger.warning("%s has nothing to say of %s: %s", source, comparison, error)
    _store(source, comparison, question, suggestions)


def question_about(comparison: Comparison) -> asking.Question:
    """Return what to ask of a model about a comparison, by what the project asks of its annotators."""
    project = comparison.project
    rows = comparison.candidates.order_by("index").values_list("completion_id", "completion__text")
    texts = dict(rows)
    enabled = {
        SuggestionKind.SPAN: project.ask_span_flags,
        SuggestionKind.CRITIQUE: project.ask_critique,
        SuggestionKind.MISSING: project.ask_missing_info,
        SuggestionKind.PREFERENCE: project.ask_verdict and len(texts) > 1,
    }
    return asking.Question(
        texts=texts,
        categories=configuration_of(project).asked_categories,
        kinds=frozenset(kind for kind, is_enabled in enabled.items() if is_enabled),
    )


def _scored(
    source: SuggestionSource, comparison: Comparison, question: asking.Question, engine: Engine, tell: Any
) -> list[SuggestionInput]:
    scores = retry_until_available(
        lambda: engine.scores_of_heads(
            model=source.checkpoint.name,
            messages=chat_of(comparison.prompt),
            completions=list(question.texts.values()),
        ),
        message="scoring",
        tell=tell,
    )
    return scoring.suggestions_of(scores, question, scoring.categories_of_heads(source.checkpoint))


def _generated(
    source: SuggestionSource, comparison: Comparison, question: asking.Question, engine: Engine, tell: Any
) -> list[SuggestionInput]:
    guideline = access.current_guideline(source.project)
    chat = asking.chat_about(
        question,
        template=source.template or asking.DEFAULT_TEMPLATE,
        guidelines=guideline.text if guideline else "",
        conversation=chat_of(comparison.prompt),
    )
    messages = chat
    for _attempt in range(ATTEMPTS):
        [answer] = retry_until_available(
            partial(
                engine.complete,
                model=source.checkpoint.name,
                messages=messages,
                seed=_SEED,
                temperature=0.0,
                max_tokens=MAX_TOKENS,
            ),
            message="asking",
            tell=tell,
        )
        try:
            return asking.read_suggestions(answer.text, question)
        except UnreadableError as error:
            messages = again(chat, answer.text.replace("\x00", ""), str(error))
    logger.info("%s: no readable reply about %s", source, comparison)
    return []


def _store(
    source: SuggestionSource,
    comparison: Comparison,
    question: asking.Question,
    suggestions: Sequence[SuggestionInput],
) -> None:
    sure = [
        suggestion
        for suggestion in suggestions
        if suggestion.confidence is None or suggestion.confidence >= source.least_confidence
    ]
    share = HelpSettings.objects.values_list("planted_share", flat=True).get(project=source.project)
    planted = plant(sure, question=question, share=share, comparison_id=comparison.pk)
    with still_held(source):
        store_suggestions(comparison=comparison, source=source.checkpoint.name, suggestions=planted)
        SuggestionSource.objects.filter(pk=source.pk).update(
            compared=F("compared") + 1,
            suggested=F("suggested") + len(planted),
            planted=F("planted") + sum(suggestion.original is not None for suggestion in planted),
        )


def _tell(source: SuggestionSource, heartbeat: Heartbeat, message: str) -> None:
    heartbeat(message=message)
    if not SuggestionSource.objects.filter(pk=source.pk, is_active=True).exists():
        raise _StoppedError


def _check_template(template: str) -> None:
    try:
        asking.check_template(template)
    except ValueError as error:
        raise Refusal("invalid_suggestion_template", str(error), field="template") from error


SOURCES = (*WRITES_TEXT, CheckpointKind.REWARD)
"""Kinds of checkpoints that can suggest."""
