"""A Rondo to back up: `python -m tests.webapp.backup_scene fill`, and `… write` until it is stopped.

Run as a process with the environment of that Rondo.
"""

import json
import random
import sys
import uuid
from pathlib import Path

import django
from django.conf import settings
from django.core.management import call_command

django.setup()

from annotation.models import User  # noqa: E402 - models need set-up Django
from annotation.services.assignments.next import assign_next  # noqa: E402
from annotation.services.judgments.submission import submit_judgment  # noqa: E402
from tests import factories  # noqa: E402
from tests.records import judgment_record  # noqa: E402


def fill() -> None:
    call_command("migrate", verbosity=0)
    alice = User.objects.create(username="alice")
    project = factories.make_project(annotators=[alice])
    for number in range(12):
        _one_more(project, number)
    home, drawn = Path(settings.RONDO_HOME), random.Random(7)
    for place, size in {
        "checkpoints/tea-1/adapter.safetensors": 5_000_000,
        "checkpoints/tea-1/deep/er.json": 0,
        "snapshots/abc/judgments.jsonl": 70_000,
        "runs/tea-1/state/step-3/state.safetensors": 4_194_304,
        "runs/tea-1/log.txt": 1,
        "imports/0a1b.csv": 500,
        "models/tiny/model.safetensors": 100_000,
    }.items():
        path = home / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn.randbytes(size))


def _one_more(project: object, number: int) -> None:
    prompt = factories.make_prompt(project, f"What is {number} and {number}? ☕\n", split="train")  # type: ignore[arg-type]
    factories.make_comparison(project, [f"It is {2 * number}.", "I cannot say."], prompt=prompt)  # type: ignore[arg-type]


def write() -> None:
    """Judge and write into a run, as people and a trainer do, until standard input ends."""
    import select

    from annotation.models import Project

    project, alice = Project.objects.get(), User.objects.get(username="alice")
    run, number = Path(settings.RONDO_HOME) / "runs" / "tea-1", 100
    while not select.select([sys.stdin], [], [], 0)[0]:
        number += 1
        _one_more(project, number)
        assignment = assign_next(project=project, annotator=alice)
        assert assignment is not None
        best, other = sorted(assignment.display_order)
        answer = judgment_record(verdict="ranked", ranks={best: 1, other: 2})
        submit_judgment(assignment=assignment, annotator=alice, answer=answer, idempotency_key=uuid.uuid4())
        with (run / "metrics.jsonl").open("a") as stream:
            stream.write(json.dumps({"step": number}) + "\n")
        new = run / "state" / ".partial"
        new.mkdir(exist_ok=True)
        (new / "state.json").write_text(str(number))
        new.rename(run / "state" / f"step-{number}")
        if (old := run / "state" / f"step-{number - 1}").exists():
            (old / "state.json").unlink()
            old.rmdir()
        print(number, flush=True)


if __name__ == "__main__":
    {"fill": fill, "write": write}[sys.argv[1]]()
