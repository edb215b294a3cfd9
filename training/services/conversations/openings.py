"""Openings: responses to the opening message of offered tasks, generated before anybody begins.

A conversation about a task takes one, and its first turn waits for the annotation at once. Nothing else is
generated ahead: later messages are not known. A message to a worker only wakes it; the sweep sends another.
"""

import hashlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor

from django.db import transaction

from annotation.models import ConversationTask, Project
from annotation.selectors.jobs import has_enough_long_jobs
from annotation.services.jobs.locks import alone
from annotation.services.jobs.messages import send
from training.choices import TaskName
from training.engine import Answer, EngineError, engine_for
from training.models import Checkpoint, ConversationSettings, PreparedOpening
from training.selectors.conversations import Terms, terms_of_project
from training.services.conversations.drawing import draw_checkpoints

READY = 2
"""So many openings are ready for each task."""


def sweep_openings() -> None:
    """Send a message for every open project in which an opening is missing."""
    for settings in ConversationSettings.objects.filter(is_open=True).select_related("project"):
        if _missing(settings.project):
            send(TaskName.PREPARE_OPENINGS, settings.project_id)


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
