"""The project of a command."""

from django.core.management.base import CommandError

from annotation.models import Project


def project_named(slug: str | None) -> Project:
    """The project of that slug; without one, the only project. Refuses with the slugs that there are."""
    projects = list(Project.objects.filter(slug=slug) if slug else Project.objects.all()[:2])
    if len(projects) == 1:
        return projects[0]
    slugs = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:20])
    known = f"Projects: {slugs}." if slugs else "There are none yet; add one in the admin."
    wrong = f"There is no project {slug!r}." if slug else "Say which project with --project SLUG."
    raise CommandError(f"{wrong} {known}")
