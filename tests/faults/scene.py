"""The database of a test about faults, written and read in a process of its own.

python -m tests.faults.scene prepare JSON      a project with prompts, people and an open round; session keys
python -m tests.faults.scene look              everything that the test holds against its ledger
"""

import json
import sys
from typing import Any

import django

django.setup()

from annotation.models import Assignment, Completion, Judgment, Prompt, User  # noqa: E402 - after set-up
from annotation.services.assignments.display_order import tokens_of  # noqa: E402
from tests import factories  # noqa: E402
from tests.benchmarks.labelling.fill import session_of  # noqa: E402
from tests.faults.ledger import PROJECT  # noqa: E402
from tests.loop.recipe import tiny_recipe  # noqa: E402
from training.models import Checkpoint, Round, RoundStep, Run, Snapshot  # noqa: E402
from training.services.rounds.controls import open_first_round  # noqa: E402

_HELD_OUT_EVERY = 5


def prepare(
    *, prompts: int, people: int, overlap: int, steps: int, save_every: int, judgments: int
) -> list[str]:
    """A round that begins to train by itself after so many judgments; the session of each annotator."""
    annotators = [User.objects.create_user(f"annotator{number}") for number in range(people)]
    project = factories.make_project(slug=PROJECT, annotators=annotators, overlap=overlap)
    for number in range(prompts):
        held_out = number % _HELD_OUT_EVERY == 0
        split = "held-out" if held_out else "train"
        factories.make_prompt(project, f"What is {number} and {number}?", split=split)
    recipe = tiny_recipe(steps=steps)
    for method in ("reward", "policy"):
        recipe[method]["optimiser"]["save_every"] = save_every
    sampling = recipe["sampling"]
    recipe |= {
        "samplers": [{"checkpoint": "policy", "completions": 2, "sampling": sampling}],
        "ready_prompts": 2,
        "start": {"judgments": judgments},
        "evaluation": {"prompts": 2, "sampling": sampling},
        # A tiny model is better or worse by chance alone: one condition that holds stands for all.
        "promotion": {"not_worse": False, "most_length_ratio": 1000.0},
    }
    open_first_round(project=project, recipe=recipe)
    return [session_of(person) for person in annotators]


def look() -> dict[str, Any]:
    """Rounds, runs, what was learned from, every judgment, and what constraints should have held."""
    return {
        "rounds": [
            {
                "number": round_.number,
                "state": round_.state,
                "policy": round_.policy.name,
                "errors": [step.error for step in round_.steps.all() if step.error],
                "held": [step.kind for step in round_.steps.all() if step.worker],
            }
            for round_ in Round.objects.order_by("number").select_related("policy").prefetch_related("steps")
        ],
        "runs": [
            {
                "name": run.name,
                "state": run.state,
                "step": run.step,
                "total": run.total_steps,
                "folder": run.folder,
                "steps_of_rounds": RoundStep.objects.filter(run=run).count(),
            }
            for run in Run.objects.order_by("pk")
        ],
        "checkpoints": sorted(Checkpoint.objects.filter(run__isnull=False).values_list("name", flat=True)),
        "snapshots": Snapshot.objects.count(),
        "learned_from_twice": _learned_from_twice(),
        "answered_twice": Completion.objects.count()
        - Completion.objects.values("prompt", "source", "seed").distinct().count(),
        "prompts": Prompt.objects.count(),
        "judgments": [_form_values(judgment) for judgment in Judgment.objects.select_related("assignment")],
    }


def _learned_from_twice() -> int:
    """Judgments that stand more than once in one snapshot."""
    through = Snapshot.judgments.through
    pairs = list(through.objects.values_list("snapshot_id", "judgment_id"))
    return len(pairs) - len(set(pairs))


def _form_values(judgment: Judgment) -> dict[str, Any]:
    """A judgment in the words of the form that it came in."""
    assignment: Assignment = judgment.assignment
    best = judgment.ranks.get(rank=1).completion_id
    token = next(name for name, pk in tokens_of(assignment).items() if pk == best)
    strength = f":{judgment.strength}" if judgment.strength else ""
    return {
        "key": str(judgment.idempotency_key),
        "assignment": assignment.pk,
        "annotator": judgment.annotator_id,
        "comparison": judgment.comparison_id,
        "choice": f"win:{token}{strength}",
        "comment": judgment.comment,
    }


if __name__ == "__main__":
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    json.dump(prepare(**arguments) if sys.argv[1] == "prepare" else look(), sys.stdout)
