"""The project created on a first start: sixty prompts, guidelines, three error categories."""

from pathlib import Path

from django.db import transaction

from annotation.choices import Role
from annotation.exchange.prompts import import_prompts
from annotation.models import Project, User
from annotation.services.projects.projects import add_member, create_project
from training.services.rounds import open_first_round

SLUG = "first-project"
NAME = "First project"
FOLDER = Path(__file__).resolve().parent
PROMPTS = FOLDER / "prompts.jsonl"
GUIDELINES = FOLDER / "guidelines.md"


def ensure_first_project() -> str:
    """Create the first project in a database without projects. Return a line for the screen.

    A database with any project stays unchanged, so a deleted or renamed first project does not return.
    """
    complete = Project.objects.filter(is_incomplete=False)
    if complete.exists():
        return f"not needed, {complete.count()} projects are there"
    with transaction.atomic():
        project = create_project(
            name=NAME,
            slug=SLUG,
            description="Everyday questions to a small model: facts, tone, code, sums, given passages.",
            guideline=GUIDELINES.read_text(encoding="utf-8"),
        )
        report = import_prompts(
            project=project, lines=PROMPTS.read_text(encoding="utf-8").splitlines(), name=PROMPTS.name
        )
        for user in User.objects.filter(is_active=True):
            add_member(project=project, user=user, role=Role.MANAGER if user.is_superuser else Role.ANNOTATOR)
        open_first_round(project=project)
    return f"{report.added} prompts, guidelines, first round open"
