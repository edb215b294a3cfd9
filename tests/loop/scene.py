"""The scene for a real worker: a database of its own with a judged round whose training was started.

Run as a process with the worker's environment: `python -m tests.loop.scene round STEPS`; with `live` in place
of `round` the project learns live, and an update is due.
"""

import sys
import uuid

import django
from django.core.management import call_command

django.setup()

from annotation.models import User  # noqa: E402 - models need set-up Django
from annotation.services.assignments.next import assign_next  # noqa: E402
from annotation.services.judgments.submission import submit_judgment  # noqa: E402
from tests import factories  # noqa: E402
from tests.loop.recipe import tiny_recipe  # noqa: E402
from tests.records import judgment_record  # noqa: E402
from training.services.live import set_live  # noqa: E402
from training.services.rounds.controls import open_first_round, start_round  # noqa: E402


def main(learns: str, steps: int) -> None:
    call_command("migrate", verbosity=0)
    alice = User.objects.create(username="alice")
    carol = User.objects.create(username="carol")
    project = factories.make_project(annotators=[alice], managers=[carol])
    for number in range(6):
        prompt = factories.make_prompt(project, f"What is {number} and {number}?", split="train")
        factories.make_comparison(project, [f"It is {2 * number}.", "I cannot say."], prompt=prompt)
    while assignment := assign_next(project=project, annotator=alice):
        best, other = sorted(assignment.display_order)
        submit_judgment(
            assignment=assignment,
            annotator=alice,
            answer=judgment_record(verdict="ranked", ranks={best: 1, other: 2}),
            idempotency_key=uuid.uuid4(),
        )
    recipe = tiny_recipe(steps=steps)
    round_ = open_first_round(project=project, recipe=recipe)
    if learns == "live":
        set_live(project=project, by=carol, is_active=True, every=4, ahead=2, policy=recipe["policy"])
    else:
        start_round(round_=round_, started_by=carol)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
