"""Work allocation: rules of who gets what, and the skills, limits and groups of members. For managers."""

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST, require_safe

from annotation.choices import Role
from annotation.errors import Refusal
from annotation.models import Membership, Project
from annotation.models.people import ALL, LONGEST_GROUP, LONGEST_SKILL, LONGEST_TAG
from annotation.selectors.allocation import rule_rows, submitted_by_member
from annotation.selectors.cached_counts import cached, is_cached
from annotation.selectors.tables.table import tags_of
from annotation.services.projects.invitations import change_allotment
from annotation.services.projects.projects import change_settings
from annotation.statistics.cached import is_large
from annotation.views.access import Request, project_page, refusals_shown

# Forms of work allocation: a rule of a project, and what a member gets.

_MOST = 2**31 - 1


class RuleForm(forms.Form):
    """A tag of prompts, the skill that their comparisons ask for, and the share of them that does."""

    tag = forms.CharField(
        max_length=LONGEST_TAG,
        label=gettext_lazy("Tag of the prompt"),
        widget=forms.TextInput(attrs={"list": "tags"}),
    )
    skill = forms.CharField(
        max_length=LONGEST_SKILL,
        label=gettext_lazy("Skill asked for"),
        widget=forms.TextInput(attrs={"list": "skills"}),
    )
    share = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=ALL,
        initial=ALL,
        label=gettext_lazy("Share in percent"),
        help_text=gettext_lazy("The rest of the tag's comparisons goes to everybody."),
    )

    def clean_share(self) -> int:
        """Return the share; all where none is named."""
        return self.cleaned_data["share"] or ALL


class AllotmentForm(forms.Form):
    """The skills, the limits and the group of a member."""

    skills = forms.CharField(required=False, max_length=5_000)
    daily_limit = forms.IntegerField(required=False, min_value=1, max_value=_MOST)
    total_limit = forms.IntegerField(required=False, min_value=1, max_value=_MOST)
    group = forms.CharField(required=False, max_length=LONGEST_GROUP)

    def clean_group(self) -> str:
        """Return the name with single spaces."""
        return " ".join(self.cleaned_data["group"].split())

    def clean_skills(self) -> list[str]:
        """Return the names between the commas, each once."""
        names = (" ".join(name.split()) for name in self.cleaned_data["skills"].split(","))
        return list(dict.fromkeys(name for name in names if name))


@require_safe
@project_page(role=Role.MANAGER)
def allocation(request: Request, project: Project) -> HttpResponse:
    """Show the rules, and what each member may get. For managers."""
    return _page(request, project, RuleForm())


@require_POST
@project_page(role=Role.MANAGER)
def change_rules(request: Request, project: Project) -> HttpResponse:
    """Add a rule, or remove that of a tag. For managers."""
    form = RuleForm(request.POST)
    removed = request.POST.get("remove")
    if removed is None and not form.is_valid():
        return _page(request, project, form)
    try:
        with transaction.atomic():
            # Two who change the rules at once wait here for each other, and neither's change is lost.
            locked = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
            remaining = [rule for rule in locked.allocation if rule["tag"] != removed]
            rules = remaining if removed is not None else [*remaining, dict(form.cleaned_data)]
            change_settings(project=locked, settings={"allocation": rules}, changed_by=request.user)
    except Refusal as refusal:
        form.add_error(None, refusal.message)
        return _page(request, project, form)
    messages.success(request, _("Saved."))
    return redirect("allocation", project.slug)


@require_POST
@project_page(role=Role.MANAGER)
def change_member(request: Request, project: Project, pk: int) -> HttpResponse:
    """Change the skills, the limits and the group of a member. For managers."""
    membership = get_object_or_404(
        Membership.objects.select_related("user", "project"), pk=pk, project=project
    )
    form = AllotmentForm(request.POST)
    if not form.is_valid():
        messages.error(request, _("A limit is 1 or more. Leave it empty for no limit."))
        return redirect("allocation", project.slug)
    with refusals_shown(request):
        # A form without the group leaves it as it is.
        changes = {name: value for name, value in form.cleaned_data.items() if name in form.data}
        change_allotment(membership=membership, changes=changes, changed_by=request.user)
        messages.success(request, _("Saved."))
    return redirect("allocation", project.slug)


def _page(request: Request, project: Project, form: RuleForm) -> HttpResponse:
    memberships = list(project.memberships.select_related("user").order_by("user__username"))
    counts = ("submitted by member", project.pk)
    # In a large project the page comes first and asks for the counts.
    has_counts = bool(request.htmx) or not is_large(project) or is_cached(*counts)
    submitted = cached(lambda: submitted_by_member(project), *counts) if has_counts else {}
    named = {rule["skill"] for rule in project.allocation}
    context = {
        "project": project,
        "form": form,
        "rules": rule_rows(project, memberships),
        "members": [(membership, submitted.get(membership.user_id, 0)) for membership in memberships],
        "has_counts": has_counts,
        "tags": tags_of(project),
        "groups": sorted({membership.group for membership in memberships} - {""}),
        "skills": sorted(named.union(*(membership.skills for membership in memberships))),
    }
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/allocation.html", context, status=status)
