"""Prompt sets: named choices of a project's prompts, on which checkpoints are compared one by one."""

from collections.abc import Collection, Mapping

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, Prompt, User
from annotation.selectors import access
from annotation.services import audit
from training.models import PromptSet

MOST_SETS = 100
MOST_PROMPTS = 500
LONGEST_NAME = 100


@transaction.atomic
def create_prompt_set(
    *, project: Project, name: str, prompts: Collection[int] = (), created_by: User
) -> PromptSet:
    """Create a prompt set with these prompts of the project.

    Refuses who does not manage the project, a name in use, too many sets, and what `add_prompts` refuses.
    """
    access.refuse_unless_manager(created_by, project, "manager_changes_prompt_sets")
    name = _checked_name(name)
    Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if project.prompt_sets.count() >= MOST_SETS:
        raise Refusal(
            "too_many_prompt_sets",
            _("A project has at most %(most)d prompt sets. Delete one."),
            most=MOST_SETS,
        )
    try:
        with transaction.atomic():
            made = PromptSet.objects.create(project=project, name=name, created_by=created_by)
    except IntegrityError:
        raise _name_in_use() from None
    audit.record(
        action="prompt_set.create", subject=made, actor=created_by, project=project, details={"name": name}
    )
    if prompts:
        add_prompts(prompt_set=made, prompts=prompts, changed_by=created_by)
    return made


@transaction.atomic
def rename_prompt_set(*, prompt_set: PromptSet, name: str, changed_by: User) -> None:
    """Give a prompt set another name. Refuses a name in use."""
    access.refuse_unless_manager(changed_by, prompt_set.project, "manager_changes_prompt_sets")
    name = _checked_name(name)
    locked = PromptSet.objects.select_for_update().get(pk=prompt_set.pk)
    if locked.name == name:
        return
    details = {"before": locked.name, "after": name}
    locked.name = name
    try:
        with transaction.atomic():
            locked.save(update_fields=["name"])
    except IntegrityError:
        raise _name_in_use() from None
    _record("rename", locked, changed_by, details)
    prompt_set.name = name


@transaction.atomic
def add_prompts(*, prompt_set: PromptSet, prompts: Collection[int], changed_by: User) -> int:
    """Add prompts of the project by their ids; return the number that are new in the set.

    Refuses prompts that the project lacks and more than `MOST_PROMPTS` in a set.
    """
    access.refuse_unless_manager(changed_by, prompt_set.project, "manager_changes_prompt_sets")
    locked = PromptSet.objects.select_for_update().get(pk=prompt_set.pk)
    prompt_ids = set(prompts)
    known = set(
        Prompt.objects.filter(project=locked.project_id, pk__in=prompt_ids).values_list("pk", flat=True)
    )
    if prompt_ids - known:
        raise Refusal("unknown_prompt", _("The project has no such prompt. Search again."), field="prompts")
    there = set(locked.prompts.values_list("pk", flat=True))
    if len(there | prompt_ids) > MOST_PROMPTS:
        raise Refusal(
            "too_many_prompts",
            _("A prompt set holds at most %(most)d prompts."),
            field="prompts",
            most=MOST_PROMPTS,
        )
    new = sorted(prompt_ids - there)
    if new:
        locked.prompts.add(*new)
        _record("add", locked, changed_by, {"prompts": new})
    return len(new)


@transaction.atomic
def remove_prompts(*, prompt_set: PromptSet, prompts: Collection[int], changed_by: User) -> int:
    """Take prompts out of a set; return the number that were in it. Comparisons on them stay."""
    access.refuse_unless_manager(changed_by, prompt_set.project, "manager_changes_prompt_sets")
    locked = PromptSet.objects.select_for_update().get(pk=prompt_set.pk)
    gone = sorted(locked.prompts.filter(pk__in=set(prompts)).values_list("pk", flat=True))
    if gone:
        locked.prompts.remove(*gone)
        _record("remove", locked, changed_by, {"prompts": gone})
    return len(gone)


@transaction.atomic
def delete_prompt_set(*, prompt_set: PromptSet, deleted_by: User) -> None:
    """Delete a prompt set. Its prompts and the comparisons on them stay."""
    access.refuse_unless_manager(deleted_by, prompt_set.project, "manager_changes_prompt_sets")
    _record("delete", prompt_set, deleted_by, {"name": prompt_set.name})
    prompt_set.delete()


def _checked_name(name: str) -> str:
    name = " ".join(name.replace("\0", "").split())
    if not name:
        raise Refusal("name_missing", _("Enter a name."), field="name")
    if len(name) > LONGEST_NAME:
        raise Refusal(
            "name_too_long", _("The name has more than %(most)d characters."), field="name", most=LONGEST_NAME
        )
    return name


def _name_in_use() -> Refusal:
    return Refusal(
        "prompt_set_name_in_use",
        _("The project has a prompt set of this name. Choose another."),
        field="name",
    )


def _record(what: str, prompt_set: PromptSet, actor: User, details: Mapping[str, object]) -> None:
    audit.record(
        action=f"prompt_set.{what}",
        subject=prompt_set,
        actor=actor,
        project=prompt_set.project,
        details=dict(details),
    )
