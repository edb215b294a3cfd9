"""The project of a command."""

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from annotation.models import Project


def project_named(slug: str | None) -> Project:
    """The project of that slug; without one, the only project. Refuses with the slugs that there are."""
    projects = list(Project.objects.filter(slug=slug) if slug else Project.objects.all()[:2])
    if len(projects) == 1:
        return projects[0]
    slugs = ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:20])
    if not slugs:
        message = _("There are no projects yet. Add one in the admin.")
    elif slug:
        message = _("There is no project %(slug)r. Projects: %(slugs)s.")
    else:
        message = _("Name the project with --project SLUG. Projects: %(slugs)s.")
    raise CommandError(message % {"slug": slug, "slugs": slugs})
