"""The project created on a first start: 180 prompts, guidelines, three error categories.

Those of `prompts.jsonl` are split by their hashes, as in any project; those of `held_out.jsonl` are held out,
so that a decision has enough of them, and come last.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from django.db import transaction

from annotation.choices import Role, Split
from annotation.errors import Refusal
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.formats.prompts_jsonl import parse_line
from annotation.exchange.prompts import add_prompts
from annotation.models import Project, User
from annotation.services.projects.projects import add_member, create_project
from training.recipe.recipe import default_recipe
from training.services.rounds.controls import draft_first_round, open_first_round

SLUG = "first-project"
NAME = "First project"
FOLDER = Path(__file__).resolve().parent
PROMPTS = FOLDER / "prompts.jsonl"
HELD_OUT = FOLDER / "held_out.jsonl"
GUIDELINES = FOLDER / "guidelines.md"
_ATTEMPTS = 4


def ensure_first_project() -> str:
    """Create the first project in a database without projects. Return a line for the screen.

    A database with any project stays unchanged, so a deleted or renamed first project does not return.
    """
    complete = Project.objects.filter(is_incomplete=False)
    if complete.exists():
        return f"not needed, {complete.count()} projects are there"
    with transaction.atomic():
        project, prompts = write_project(name=NAME, slug=SLUG)
        for user in User.objects.filter(is_active=True):
            add_member(project=project, user=user, role=Role.MANAGER if user.is_superuser else Role.ANNOTATOR)
        draft_first_round(project=project, created_by=None, recipe=first_recipe())
    return f"{prompts} prompts, guidelines, {_open_round(project)}"


def _open_round(project: Project) -> str:
    """Open the first round; return what came of it. Where that is refused it stays a draft.

    On a busy machine the check of the starter's chat template may not get its turn: a first start does not
    fail for that.
    """
    refused = ""
    for _attempt in range(_ATTEMPTS):
        try:
            open_first_round(project=project)
        except Refusal as refusal:
            refused = refusal.message
        else:
            return "first round open"
    return f"first round a draft, to be opened on its page: {refused}"


def write_project(*, name: str, slug: str) -> tuple[Project, int]:
    """Create a project with the guidelines and the prompts, without members and rounds; return it and the
    number of prompts. Call it inside a transaction."""
    project = create_project(
        name=name,
        slug=slug,
        description="Everyday questions to a small model: facts, lists, steps, rewriting, given passages.",
        guideline=GUIDELINES.read_text(encoding="utf-8"),
    )
    held_out = [replace(item, split=Split.HELD_OUT) for item in _items(HELD_OUT)]
    _, added = add_prompts(project=project, prompts=[*_items(PROMPTS), *held_out])
    return project, len(added)


def first_recipe() -> dict[str, Any]:
    """Return the recipe of the first round: it waits for ten blind judgments by people, who decide with the
    reward model about the project's held-out prompts, too few of them for a decision about others, and plans
    with 25 answers."""
    recipe = default_recipe()
    recipe["evaluation"] |= {"people": True, "people_judgments": 10}
    recipe["promotion"] |= {"claim": "these_prompts", "planned_answers": 25}
    return recipe


def _items(path: Path) -> list[ImportedItem]:
    """Return the prompts of a file in the import format."""
    parsed = map(parse_line, path.read_text(encoding="utf-8").splitlines())
    return [item for item in parsed if item is not None]
