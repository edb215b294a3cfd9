"""Projects, their rules and their members."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Max, Q
from django.utils import timezone
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from annotation.choices import CategoryScope, Granularity, Role
from annotation.errors import NotAllowed, Refusal
from annotation.models import Category, Criterion, Guideline, Membership, Project, User
from annotation.selectors import access, annotator_work
from annotation.services import audit
from annotation.services.assignments.acquisition import score_open_comparisons

_LONGEST_SHOWN = 120

FINE_GRAINED_CATEGORIES: Sequence[dict[str, Any]] = (
    {
        "key": "irrelevant",
        "label": "Irrelevant, redundant or incoherent",
        "description": "It does not help to answer, says something twice, or cannot be followed.",
        "scope": CategoryScope.SPAN,
        "granularity": Granularity.SUB_SENTENCE,
        "shortcut": "i",
        "colour": "#b45309",
    },
    {
        "key": "untruthful",
        "label": "Unverifiable or untruthful",
        "description": "It contradicts the context or what is known, or nothing supports it.",
        "scope": CategoryScope.SPAN,
        "granularity": Granularity.SENTENCE,
        "shortcut": "u",
        "colour": "#be123c",
    },
    {
        "key": "missing",
        "label": "Missing information",
        "description": "A good answer would have said it.",
        "scope": CategoryScope.MISSING,
        "granularity": Granularity.WHOLE,
        "shortcut": "m",
        "colour": "#0369a1",
    },
)
"""The three categories of fine-grained RLHF (Wu et al. 2023, section 3.1), as fields of `Category`."""


@transaction.atomic
def create_project(
    *,
    name: str,
    slug: str,
    description: str = "",
    guideline: str = "",
    categories: Sequence[Mapping[str, Any]] = FINE_GRAINED_CATEGORIES,
    criteria: Sequence[Mapping[str, Any]] = (),
    created_by: User | None = None,
    **settings: Any,
) -> Project:
    """Create a project with its categories, criteria and, when a text is given, its first guideline.

    `settings` are fields of `Project` such as `overlap` and `lease_minutes`. Who creates it manages it; None
    for Rondo itself. Refuses a person who may not create projects, a slug that is taken, and a value that a
    field does not accept, naming the field.
    """
    if created_by is not None and not access.may_create_projects(created_by):
        raise NotAllowed("may_not_create_projects", _("You may not create projects. Ask an administrator."))
    project = Project(name=name, slug=slug, description=description, **settings)
    # Before the other fields: the message for a taken address says what to do.
    if Project.objects.filter(slug=slug).exists():
        raise Refusal(
            "slug_in_use",
            _("The address %(slug)s is taken. Choose another name or address."),
            field="slug",
            slug=slug,
        )
    _clean(project)
    project.save()
    for kind, rows in ((Category, categories), (Criterion, criteria)):
        for position, fields in enumerate(rows, start=1):
            row = kind(**{"project": project, "position": position, **fields})
            _clean(row)
            row.save()
    if guideline:
        publish_guideline(project=project, text=guideline, author=created_by)
    if created_by is not None:
        add_member(project=project, user=created_by, role=Role.MANAGER)
    audit.record(action="project.create", subject=project, actor=created_by, project=project)
    return project


@transaction.atomic
def archive_project(*, project: Project, archived: bool, changed_by: User) -> Project:
    """Archive a project, or restore it. An archived one leaves the list of projects and hands out no work."""
    if (project.archived_at is not None) == archived:
        return project
    project.archived_at = timezone.now() if archived else None
    project.save(update_fields=["archived_at"])
    audit.record(
        action="project.archive" if archived else "project.restore",
        subject=project,
        actor=changed_by,
        project=project,
    )
    return project


@transaction.atomic
def publish_guideline(*, project: Project, text: str, author: User | None) -> Guideline:
    """Add a version of the rules. Annotators see it from their next page on.

    Publishing the text that is already current adds nothing and returns that version.
    Refuses an empty text.
    """
    if not text.strip():
        raise Refusal(
            "guideline_empty",
            _("A guideline needs a text. Write what annotators should go by."),
            field="text",
        )
    # Two who publish at once wait here for each other, so that no version number is drawn twice.
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    newest = project.guidelines.order_by("-version").first()
    if newest is not None and newest.text == text:
        return newest
    highest = project.guidelines.aggregate(version=Max("version"))["version"] or 0
    return Guideline.objects.create(project=project, version=highest + 1, text=text, created_by=author)


@transaction.atomic
def change_settings(*, project: Project, settings: Mapping[str, Any], changed_by: User) -> Project:
    """Give fields of a project other values; another strategy reorders what is open after the commit.

    Refuses a value that a field does not accept, naming the field. What changed is written to the audit log.
    """
    changed = sorted(name for name, value in settings.items() if getattr(project, name) != value)
    if not changed:
        return project
    before = {name: _shown(getattr(project, name)) for name in changed}
    for name in changed:
        setattr(project, name, settings[name])
    _clean(project)
    project.save(update_fields=changed)
    audit.record(
        action="project.settings",
        subject=project,
        actor=changed_by,
        project=project,
        details={
            "changed": changed,
            "from": before,
            "to": {name: _shown(getattr(project, name)) for name in changed},
        },
    )
    if "acquisition" in changed:
        transaction.on_commit(lambda: score_open_comparisons(project=project))
    return project


def _shown(value: object) -> object:
    """Return a setting as the audit log keeps it: long texts shortened."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return Truncator(str(value)).chars(_LONGEST_SHOWN)


def add_member(*, project: Project, user: User, role: Role = Role.ANNOTATOR) -> Membership:
    """Make `user` a member of `project` with `role`, or change the role that they have."""
    return Membership.objects.update_or_create(project=project, user=user, defaults={"role": Role(role)})[0]


def acknowledge_guideline(*, project: Project, user: User, version: int) -> None:
    """Remember that `user` has read the rules up to `version`; never less than before.

    Refuses a version that the project does not have. Of who is no member nothing is remembered.
    """
    if not Guideline.objects.filter(project=project, version=version).exists():
        raise Refusal(
            "unknown_guideline_version",
            _("These guidelines have no version %(version)s. Reload the page."),
            field="version",
            version=version,
        )
    membership = Membership.objects.filter(project=project, user=user).first()
    if membership is not None:
        _mark_seen(membership, version)


def note_guideline_on_screen(*, membership: Membership, guideline: Guideline) -> None:
    """At a person's first submit: the rules that were on screen count as read. Later it does nothing.

    Who judged before such things were remembered has read what stood beside their last answer.
    """
    if not membership.guideline_seen:
        worked_by = annotator_work.worked_by(membership.project, membership.user_id)
        _mark_seen(membership, worked_by or guideline.version)


def _mark_seen(membership: Membership, version: int) -> None:
    older = Q(guideline_seen__isnull=True) | Q(guideline_seen__lt=version)
    if Membership.objects.filter(older, pk=membership.pk).update(guideline_seen=version):
        membership.guideline_seen = version


def _clean(row: Project | Category | Criterion) -> None:
    try:
        row.full_clean(exclude=None if isinstance(row, Project) else ["project"])
    except ValidationError as error:
        field, messages = next(iter(error.message_dict.items()))
        sentence = {
            Project: _("This project cannot be saved: %(name)s: %(messages)s"),
            Category: _("This category cannot be saved: %(name)s: %(messages)s"),
            Criterion: _("This criterion cannot be saved: %(name)s: %(messages)s"),
        }[type(row)]
        raise Refusal(
            "invalid_fields", sentence, field=field, name=field, messages=" ".join(messages)
        ) from None
