"""Put the load's tasks and people into the database of the settings. Run where Django is set up."""

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.db import transaction

from annotation.choices import Role, SourceKind, Split
from annotation.models import Candidate, Comparison, Completion, CompletionSource, Prompt, User
from annotation.record.questions import Choice, Question
from annotation.services.projects.project_questions import save_question
from annotation.services.projects.projects import add_member, create_project
from annotation.services.texts import completion_set
from annotation.text.identity import content_hash, text_hash
from tests.benchmarks.labelling.tasks import make_tasks

OWN_QUESTIONS = (
    Question(
        key="domain",
        kind="choice",
        text="Which domain?",
        choices=(
            Choice(key="law", label="Law"),
            Choice(key="medicine", label="Medicine"),
            Choice(key="other", label="Other"),
        ),
        is_required=True,
    ),
    Question(
        key="faults",
        kind="choices",
        text="Which faults are there?",
        choices=(
            Choice(key="wrong", label="Wrong"),
            Choice(key="long", label="Too long"),
            Choice(key="rude", label="Rude"),
        ),
    ),
    Question(
        key="clarity",
        kind="scale",
        text="How clear is it?",
        subject="completion",
        choices=tuple(Choice(key=str(point), label="") for point in range(1, 6)),
        is_required=True,
    ),
    Question(key="minutes", kind="number", text="Minutes to check it?", least=0, most=60),
)
"""One about each response and three about the comparison, of four kinds."""


@transaction.atomic
def fill(
    *, tasks: int, annotators: int, overlap: int, has_questions: bool = False, **project_settings: Any
) -> list[str]:
    """A project `load` with its pairs and its annotators; the annotators' session keys."""
    project = create_project(
        name="Load",
        slug="load",
        guideline="Prefer what helps.",
        overlap=overlap,
        **{"retest_share": 0.0, **project_settings},
    )
    source = CompletionSource.objects.create(name="load", kind=SourceKind.IMPORT)
    made = make_tasks(tasks)
    prompts = Prompt.objects.bulk_create(
        [
            Prompt(project=project, messages=messages, content_hash=content_hash(messages), split=Split.TRAIN)
            for messages in ([{"role": "user", "content": task.prompt}] for task in made)
        ],
        batch_size=500,
    )
    completions = Completion.objects.bulk_create(
        [
            Completion(prompt=prompt, source=source, text=text, text_hash=text_hash(text), seed=seed)
            for prompt, task in zip(prompts, made, strict=True)
            for seed, text in enumerate(task.answers)
        ],
        batch_size=500,
    )
    pairs = list(zip(completions[::2], completions[1::2], strict=True))
    comparisons = Comparison.objects.bulk_create(
        [
            Comparison(
                project=project,
                prompt=prompt,
                size=2,
                overlap=overlap,
                open_slots=overlap,
                completion_set=completion_set([pair[0].pk, pair[1].pk]),
            )
            for prompt, pair in zip(prompts, pairs, strict=True)
        ],
        batch_size=500,
    )
    Candidate.objects.bulk_create(
        [
            Candidate(comparison=comparison, completion=completion, index=index)
            for comparison, pair in zip(comparisons, pairs, strict=True)
            for index, completion in enumerate(pair)
        ],
        batch_size=500,
    )
    people = [User.objects.create_user(username=f"annotator{n}") for n in range(annotators)]
    for person in people:
        add_member(project=project, user=person, role=Role.ANNOTATOR)
    if has_questions:
        for question in OWN_QUESTIONS:
            save_question(project=project, question=question, saved_by=people[0], is_new=True)
    return [session_of(person) for person in people]


def session_of(user: User) -> str:
    """The key of a session that somebody is signed in with."""
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(user.pk)
    store[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[-1]
    store[HASH_SESSION_KEY] = user.get_session_auth_hash()
    store.create()
    return str(store.session_key)
