"""Reward models score the answers of a project's newest round; what they say goes to the database.

Which comparison is asked next hangs on these scores, and `annotation` only reads them. Several
reward models of one project are the members of an ensemble. A score of an answer by a checkpoint
never changes, so what is there is not asked for again, and a scoring that was cut short goes on
where it was.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from django.db.models import QuerySet

from annotation.choices import FOLLOWS_HEAD, Purpose
from annotation.models import Comparison, Completion, CompletionScore, Project, Prompt
from annotation.selectors.access import current_round
from annotation.services.assignments.acquisition import NEEDS_SCORES, score_open_comparisons
from annotation.services.job_runs import call_with_heartbeat
from annotation.services.jobs import WorkerStoppingError, alone, lock_file, send, worker_is_stopping
from training.choices import CheckpointKind, StepKind, TrainingTask
from training.engine import Engine, EngineError, EngineUnavailableError, EngineUnknownModelError
from training.models import Checkpoint
from training.selectors.projects import chat_of

logger = logging.getLogger(__name__)

MEMBERS = 4
"""So many of a project's newest reward models score its answers."""

LOOK_AGAIN_SECONDS = 60.0
"""The sweep looks at a project's scores this often at most, and not while they are being asked for."""


@dataclass(slots=True)
class _Outcome:
    """Progress of a scoring."""

    scored: int = 0
    refused: int = 0
    trouble: str = ""

    def in_words(self, members: int) -> str:
        parts = [f"{self.scored} scores by {members} reward model{'' if members == 1 else 's'}"]
        if self.refused:
            parts.append(f"{self.refused} answers could not be scored")
        if self.trouble:
            parts.append(f"the rest later ({self.trouble})")
        return ", ".join(parts)


def score_newest_round(
    *, project: Project, engine: Engine, tell: Callable[[str], object] = lambda message: None
) -> str:
    """Score what is not scored yet of the newest round, order its comparisons; say what came of it.

    A model server that is away, or does not know a checkpoint yet, is no failure: what is there is
    used, and the rest is left for the next call. `tell` is called as scores come in, and may raise to stop.
    """
    members = reward_models_of(project)
    if not members:
        return "no reward model to score with yet"
    outcome = _Outcome()
    _note_look(project.pk)
    with alone("scoring", project.pk) as is_alone:
        if not is_alone:
            return "another worker scores the answers already"
        try:
            for member in members:
                if not _score_by(member, project, engine, outcome, tell):
                    break
        finally:
            score_open_comparisons(project=project)
    if outcome.trouble:
        logger.warning("%s: scoring goes on later: %s", project, outcome.trouble)
    return outcome.in_words(len(members))


def score_if_wanted(
    *, project: Project, engine: Engine, tell: Callable[[str], object] = lambda message: None
) -> str:
    """Score the newest round where the project's strategy goes by scores; else nothing."""
    strategy = Project.objects.values_list("acquisition", flat=True).get(pk=project.pk)
    if strategy in FOLLOWS_HEAD:
        score_open_comparisons(project=project)
    if strategy not in NEEDS_SCORES:
        return ""
    return score_newest_round(project=project, engine=engine, tell=tell)


def score_project(project_id: int) -> str:
    """Score a project's newest round; return the outcome, for people."""
    project = Project.objects.get(pk=project_id)
    try:
        with Engine() as engine:
            return score_if_wanted(project=project, engine=engine, tell=_stop_with_the_worker)
    except WorkerStoppingError:
        return "this worker ends; the rest later"


def sweep_scores() -> None:
    """Ring for every project whose strategy lacks scores that could be had, once a minute at most."""
    for project in Project.objects.filter(acquisition__in=NEEDS_SCORES):
        if _looked_lately(project.pk):
            continue
        _note_look(project.pk)
        if any(unscored(project, member.name).exists() for member in reward_models_of(project)):
            send(TrainingTask.SCORE_PROJECT, project.pk)


def reward_models_of(project: Project) -> list[Checkpoint]:
    """Return the members of a project's ensemble: its newest reward models, newest first.

    Without evaluators: what is labelled for training must not depend on the model that evaluates.
    """
    reward_models = Checkpoint.objects.filter(
        project=project, kind=CheckpointKind.REWARD, files_deleted_at__isnull=True
    )
    return list(
        reward_models.exclude(run__round_step__kind=StepKind.TRAIN_EVALUATOR).order_by("-pk")[:MEMBERS]
    )


def unscored(project: Project, scorer: str) -> QuerySet[Completion]:
    """Answers of the newest round's comparisons that a scorer has not scored."""
    comparisons = Comparison.objects.filter(
        project=project, round_number=current_round(project), purpose=Purpose.WORK
    )
    scored = CompletionScore.objects.filter(scorer=scorer).values("completion_id")
    return Completion.objects.filter(comparisons__in=comparisons).exclude(pk__in=scored).distinct()


def _score_by(
    member: Checkpoint, project: Project, engine: Engine, outcome: _Outcome, tell: Callable[[str], object]
) -> bool:
    """Ask one reward model for all that it has not scored; False where the server is away."""
    missing = unscored(project, member.name)
    ask = partial(ask_for_scores, engine, member.name)
    prompt_ids = list(missing.order_by("prompt_id").values_list("prompt_id", flat=True).distinct())
    for number, prompt in enumerate(_prompts(prompt_ids), start=1):
        completions = list(missing.filter(prompt=prompt).order_by("pk"))
        message = f"scoring the answers: prompt {number} of {len(prompt_ids)} by {member.name}"
        try:
            scores = ask(prompt, completions, tell=partial(tell, message))
        except EngineUnavailableError as error:
            outcome.trouble = str(error)
            return False
        except EngineUnknownModelError as error:
            outcome.trouble = str(error)
            return True
        except EngineError as error:
            logger.warning("Prompt %s cannot be scored by %s: %s", prompt.pk, member, error)
            outcome.refused += len(completions)
            continue
        outcome.scored += record_scores(member.name, completions, scores)
    return True


def ask_for_scores(
    engine: Engine,
    model: str,
    prompt: Prompt,
    completions: list[Completion],
    *,
    tell: Callable[[], object],
) -> list[float]:
    """Return the scores of one prompt's responses. `tell` is called while they are waited for."""
    request = partial(
        engine.score,
        model=model,
        messages=chat_of(prompt),
        completions=[completion.text for completion in completions],
    )
    return call_with_heartbeat(request, tell)


def _prompts(ids: list[int]) -> Iterator[Prompt]:
    for pk in ids:
        yield Prompt.objects.get(pk=pk)


def record_scores(scorer: str, completions: list[Completion], scores: list[float]) -> int:
    """Write the scores that are numbers. Two workers at once write the same ones; the first stay."""
    rows = [
        CompletionScore(completion=completion, scorer=scorer, value=value)
        for completion, value in zip(completions, scores, strict=True)
        if math.isfinite(value)
    ]
    CompletionScore.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def _stop_with_the_worker(message: str) -> None:
    if worker_is_stopping.is_set():
        raise WorkerStoppingError


def _note_look(project_id: int) -> None:
    lock_file("scoring", project_id).touch()


def _looked_lately(project_id: int) -> bool:
    path = lock_file("scoring", project_id)
    return path.exists() and time.time() - path.stat().st_mtime < LOOK_AGAIN_SECONDS
