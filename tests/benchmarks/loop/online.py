"""The time of an update of the choice: 10,000 annotations, 100,000 candidate pairs, an SQLite database.

python -m tests.benchmarks.loop.online [--pairs 100000] [--judgments 10000] [--strategy head_uncertainty]

The first update reads and computes everything; what an annotator's work causes are the later ones, after
every five annotations. Beside it: how long the next assignment takes by age, and with the strategy.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import uuid
from random import Random

_WORDS = [
    "tea",
    "rivers",
    "music",
    "bread",
    "rain",
    "is",
    "was",
    "seems",
    "warm",
    "old",
    "quiet",
    "useful",
    "bright",
    "simple",
    "and",
    "the",
    "of",
    "a",
]


def main() -> None:
    """Fill a database and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--judgments", type=int, default=10_000)
    parser.add_argument("--strategy", default="head_uncertainty")
    parser.add_argument("--updates", type=int, default=8)
    options = parser.parse_args()
    home = tempfile.mkdtemp(prefix="rondo-online-")
    try:
        os.environ |= {"RONDO_HOME": home, "DJANGO_SETTINGS_MODULE": "webapp.settings"}
        os.environ.pop("DATABASE_URL", None)
        import django

        django.setup()
        from django.apps import apps
        from django.conf import settings
        from django.core.management import call_command

        settings.MIGRATION_MODULES = {app.label: None for app in apps.get_app_configs()}
        call_command("migrate", run_syncdb=True, verbosity=0)
        _measure(options)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure(options: argparse.Namespace) -> None:
    from annotation.models import AcquisitionFigures, Project
    from annotation.services.assignments.online import EVERY, update_acquisition

    begun = time.monotonic()
    project, people = _fill(options.pairs, options.judgments)
    print(f"filled in {time.monotonic() - begun:.0f} s; load average {os.getloadavg()[0]:.1f}", flush=True)
    by_age = [_next_and_submit(project, people[0]) for _ in range(50)]
    Project.objects.update(acquisition=options.strategy)
    project.refresh_from_db()
    seconds = []
    for number in range(options.updates + 1):
        begun, processor = time.monotonic(), time.process_time()
        update_acquisition(project.pk)
        took = time.monotonic() - begun, time.process_time() - processor
        figures = AcquisitionFigures.objects.get(project=project)
        measured = (
            " with the learning curve" if figures.figures.get("measured_at") == figures.judgments else ""
        )
        print(
            f"update {number}: {took[0]:.2f} s ({took[1]:.2f} s of processor time; choosing "
            f"{figures.figures['seconds']:.2f} s){measured}, {figures.judgments} rankings",
            flush=True,
        )
        seconds.append(took[0])
        followed = [_next_and_submit(project, people[number % 2]) for _ in range(EVERY)]
    with_strategy = followed + [_next_and_submit(project, people[0]) for _ in range(50)]
    print(f"later updates: median {statistics.median(seconds[1:]):.2f} s, longest {max(seconds[1:]):.2f} s")
    for name, times in (("by age", by_age), ("with the strategy", with_strategy)):
        p95 = statistics.quantiles(times, n=20)[-1]
        median = 1000 * statistics.median(times)
        print(f"next and submit {name}: median {median:.0f} ms, p95 {1000 * p95:.0f} ms")


def _next_and_submit(project, annotator):
    from annotation.services.assignments.next import assign_next
    from annotation.services.judgments.submission import submit_judgment
    from tests.records import judgment_record

    begun = time.monotonic()
    assignment = assign_next(project=project, annotator=annotator)
    first, second = assignment.display_order
    submit_judgment(
        assignment=assignment,
        annotator=annotator,
        answer=judgment_record(verdict="ranked", ranks={first: 1, second: 2}),
        idempotency_key=uuid.uuid4(),
    )
    return time.monotonic() - begun


def _fill(pairs: int, judgments: int):
    from django.db import transaction
    from django.utils import timezone

    from annotation.choices import AssignmentState, Role, SourceKind, Split, Verdict
    from annotation.models import (
        Assignment,
        Candidate,
        Comparison,
        Completion,
        CompletionSource,
        Judgment,
        Prompt,
        RankedCompletion,
        User,
    )
    from annotation.services.projects.projects import add_member, create_project
    from annotation.services.texts import completion_set
    from annotation.text.identity import content_hash, text_hash

    random = Random(0)

    def text() -> str:
        return " ".join(random.choices(_WORDS, k=random.randint(5, 40)))

    with transaction.atomic():
        project = create_project(name="Load", slug="load", guideline="Prefer what helps.", retest_share=0.0)
        people = [User.objects.create_user(username=f"annotator{n}") for n in range(2)]
        for person in people:
            add_member(project=project, user=person, role=Role.ANNOTATOR)
        source = CompletionSource.objects.create(name="load", kind=SourceKind.IMPORT)
        chats = [[{"role": "user", "content": f"{number}: {text()}"}] for number in range(pairs // 10)]
        prompts = Prompt.objects.bulk_create(
            [
                Prompt(project=project, messages=m, content_hash=content_hash(m), split=Split.TRAIN)
                for m in chats
            ],
            batch_size=500,
        )
        texts = [text() for _ in range(2 * pairs)]
        completions = Completion.objects.bulk_create(
            [
                Completion(
                    prompt=prompts[index // 2 % len(prompts)],
                    source=source,
                    text=response,
                    text_hash=text_hash(response),
                    seed=index,
                )
                for index, response in enumerate(texts)
            ],
            batch_size=500,
        )
        both = list(zip(completions[::2], completions[1::2], strict=True))
        comparisons = Comparison.objects.bulk_create(
            [
                Comparison(
                    project=project,
                    prompt=pair[0].prompt,
                    size=2,
                    overlap=1,
                    open_slots=int(index >= judgments),
                    completion_set=completion_set([pair[0].pk, pair[1].pk]),
                )
                for index, pair in enumerate(both)
            ],
            batch_size=500,
        )
        Candidate.objects.bulk_create(
            [
                Candidate(comparison=comparison, completion=completion, index=index)
                for comparison, pair in zip(comparisons, both, strict=True)
                for index, completion in enumerate(pair)
            ],
            batch_size=500,
        )
        now = timezone.now()
        assignments = Assignment.objects.bulk_create(
            [
                Assignment(
                    comparison=comparison,
                    annotator=people[0],
                    slot=0,
                    state=AssignmentState.SUBMITTED,
                    display_order=[pair[0].pk, pair[1].pk],
                    leased_at=now,
                    lease_expires_at=now,
                    closed_at=now,
                )
                for comparison, pair in zip(comparisons[:judgments], both, strict=False)
            ],
            batch_size=500,
        )
        made = Judgment.objects.bulk_create(
            [
                Judgment(
                    assignment=assignment,
                    comparison=assignment.comparison,
                    annotator=people[0],
                    verdict=Verdict.RANKED,
                    idempotency_key=uuid.uuid4(),
                )
                for assignment in assignments
            ],
            batch_size=500,
        )
        RankedCompletion.objects.bulk_create(
            [
                RankedCompletion(judgment=judgment, completion=completion, rank=rank)
                for judgment, pair in zip(made, both, strict=False)
                for completion, rank in zip(
                    sorted(pair, key=lambda candidate: -len(candidate.text) * random.random()),
                    (1, 2),
                    strict=True,
                )
            ],
            batch_size=500,
        )
    return project, people


if __name__ == "__main__":
    main()
