"""Questions of a project: what is asked, its criteria and its categories, for its managers."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import BigIntegerField
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.text import slugify
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import CategoryScope, Granularity, Role
from annotation.errors import Refusal
from annotation.forms.judgment import Entered
from annotation.forms.projects import QUESTIONS
from annotation.forms.rubrics import RubricForm, criterion_forms, initial_of
from annotation.models import Category, Criterion, Project, ProjectQuestion, Rubric, RubricVersion
from annotation.selectors.configuration import MOST_RESPONSES, example_of_work, in_groups
from annotation.selectors.questions import add_progress, add_split_progress
from annotation.selectors.rubrics import changes_between, rubrics_of
from annotation.services.projects.project_questions import ask_split_again, ask_split_only_new
from annotation.services.projects.projects import change_settings
from annotation.services.projects.questions import (
    add_question,
    archive_question,
    delete_question,
    move_question,
    set_category,
    set_criterion,
)
from annotation.services.projects.rubrics import ask_rubric, publish_rubric, save_rubric
from annotation.views.access import Request, project_page, refusals_shown
from annotation.views.labelling.screen import Screen

# Forms of a project's questions: what is asked, its categories and its criteria.


class AskedForm(forms.ModelForm):  # type: ignore[type-arg]  # not subscriptable at run time
    """The parts of the labelling screen that a project asks for."""

    class Meta:
        model = Project
        fields = list(QUESTIONS)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for name, (label, help_text) in QUESTIONS.items():
            self.fields[name].label = label  # type: ignore[assignment]
            self.fields[name].help_text = help_text  # type: ignore[assignment]


class QuestionForm(forms.ModelForm):  # type: ignore[type-arg]
    """The fields that categories and criteria share. The key and one more are chosen once."""

    chosen_once = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.instance.pk is not None:
            for name in ("key", self.chosen_once):
                del self.fields[name]
        else:
            self.fields["key"].required = False

    def clean(self) -> dict[str, Any]:
        """Derive the key from the label where none is entered."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if (
            "key" in self.fields
            and values.get("label")
            and not values.get("key")
            and "key" not in self.errors
        ):
            values["key"] = slugify(values["label"])[:60]
            if not values["key"]:
                self.add_error("key", gettext("The label has no letter for a key. Enter one, such as tone."))
        return values

    def _post_clean(self) -> None:
        """Leave the model's checks to the service, which names the field as well."""


_KEY_HELP = gettext_lazy("Name in exports; made of the label if empty. It stays.")


_COLOURS = (
    *("#b45309", "#be123c", "#0369a1", "#6d28d9", "#15803d", "#a21caf", "#0f766e", "#4d7c0f"),
    *("#9f1239", "#1d4ed8", "#7c2d12", "#475569"),
)
"""What a new category is offered: the first that no other has."""


class CategoryForm(QuestionForm):
    """A category of spans or of missing information."""

    chosen_once = "scope"

    class Meta:
        model = Category
        fields = (
            *("label", "description", "key", "scope", "granularity"),
            *("parent", "polarity", "severity_steps", "needs_note", "shortcut", "colour"),
        )
        labels = {
            "label": gettext_lazy("Label"),
            "description": gettext_lazy("Description"),
            "key": gettext_lazy("Key (optional)"),
            "scope": gettext_lazy("For"),
            "granularity": gettext_lazy("Segment"),
            "parent": gettext_lazy("Sub-category of"),
            "polarity": gettext_lazy("Meaning"),
            "severity_steps": gettext_lazy("Steps of severity"),
            "needs_note": gettext_lazy("Note required"),
            "shortcut": gettext_lazy("Keyboard key"),
            "colour": gettext_lazy("Colour"),
        }
        help_texts = {
            "label": gettext_lazy("Annotators read it."),
            "description": gettext_lazy("One sentence on when to use it."),
            "key": _KEY_HELP,
            "scope": gettext_lazy("It stays."),
            "granularity": gettext_lazy("Stretch of text that is rewarded by this category."),
            "parent": gettext_lazy("Annotators then choose a sub-category instead of the category itself."),
            "polarity": gettext_lazy("Spans show its sign: − an error, + a merit, ○ neither."),
            "severity_steps": gettext_lazy("1 is the mildest; 0 asks for none."),
            "needs_note": gettext_lazy("Annotators write a note on every span of it."),
            "shortcut": gettext_lazy("One character that annotates a span with this category."),
            "colour": "",
        }
        widgets = {
            "description": forms.Textarea(attrs={"rows": 2}),
            "colour": forms.TextInput(attrs={"type": "color"}),
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        upper = Category.objects.filter(
            project=self.instance.project_id, scope=CategoryScope.SPAN, parent__isnull=True
        ).exclude(pk=self.instance.pk)
        field = self.fields["parent"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101 - a foreign key
        field.queryset = upper.order_by("position", "id")
        field.empty_label = gettext("None")
        if self.instance.pk is None and self.instance.project_id is not None:
            used = Category.objects.filter(project=self.instance.project_id).values_list("colour", flat=True)
            free = [colour for colour in _COLOURS if colour not in {one.lower() for one in used}]
            self.initial["colour"] = (free or _COLOURS)[0]


class CriterionForm(QuestionForm):
    """A criterion by which every response is rated."""

    chosen_once = "scale"

    class Meta:
        model = Criterion
        fields = ("label", "description", "key", "scale")
        labels = {
            "label": gettext_lazy("Label"),
            "description": gettext_lazy("Description"),
            "key": gettext_lazy("Key (optional)"),
            "scale": gettext_lazy("Scale"),
        }
        help_texts = {
            "label": gettext_lazy("Annotators read it."),
            "description": gettext_lazy("The meaning of the lowest and the highest step."),
            "key": _KEY_HELP,
            "scale": gettext_lazy("It stays."),
        }
        widgets = {"description": forms.Textarea(attrs={"rows": 2})}


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionPages:
    """Categories or criteria: their pages and forms. URL names follow from `name`."""

    name: str
    model: type[Any]
    form: type[QuestionForm] | None
    page: str
    list_id: str = "question-list"


CATEGORIES = QuestionPages(
    name="category",
    model=Category,
    form=CategoryForm,
    page="project-categories",
)
CRITERIA = QuestionPages(
    name="criterion",
    model=Criterion,
    form=CriterionForm,
    page="project-questions",
)
QUESTIONS_OF_PROJECT = QuestionPages(
    name="project-question",
    model=ProjectQuestion,
    form=None,
    page="project-questions",
    list_id="project-question-list",
)
"""Additional questions: `views.project_questions` has their form."""


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def project_questions(request: Request, project: Project) -> HttpResponse:
    """Show and change what a project asks, and list its criteria. For managers."""
    # The form writes into its instance, and the service compares with what is stored.
    form = AskedForm(request.POST or None, instance=Project.objects.get(pk=project.pk))
    if request.method == "POST" and form.is_valid():
        try:
            change_settings(project=project, settings=form.cleaned_data, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field or None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect("project-questions", project.slug)
    context = {
        "form": form,
        **_listed(project, CRITERIA),
        "additional": _listed(project, QUESTIONS_OF_PROJECT),
    }
    status = 422 if form.is_bound else 200
    return render(request, "annotation/settings/questions.html", context, status=status)


@require_http_methods(["GET", "HEAD"])
@project_page(role=Role.MANAGER)
def project_categories(request: Request, project: Project) -> HttpResponse:
    """List the categories of spans and of missing information. For managers."""
    return render(request, "annotation/settings/categories.html", _listed(project, CATEGORIES))


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def question_add(request: Request, project: Project, kind: QuestionPages) -> HttpResponse:
    """Add a category or a criterion. For managers."""
    form = _form_of(kind)(
        request.POST or None, initial=_initial(request), instance=kind.model(project=project)
    )
    if request.method == "POST" and form.is_valid():
        values = dict(form.cleaned_data)
        key = values.pop("key")
        try:
            row = add_question(
                kind=kind.model, project=project, key=key, values=values, changed_by=request.user
            )
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Added: %(label)s.") % {"label": row.label})
            return redirect(kind.page, project.slug)
    return _edited(request, project, kind, form)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def question_edit(request: Request, project: Project, kind: QuestionPages, key: str) -> HttpResponse:
    """Change a category or a criterion. For managers."""
    row = get_object_or_404(kind.model, project=project, key=key)
    form = _form_of(kind)(request.POST or None, instance=row)
    if request.method == "POST" and form.is_valid():
        change = set_category if kind is CATEGORIES else set_criterion
        try:
            change(project=project, key=key, values=form.cleaned_data, changed_by=request.user)
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            messages.success(request, _("Saved."))
            return redirect(kind.page, project.slug)
    return _edited(request, project, kind, form, row)


@require_POST
@project_page(role=Role.MANAGER)
def question_change(request: Request, project: Project, kind: QuestionPages, key: str) -> HttpResponse:
    """Move, archive, restore or delete a category or a criterion. For managers."""
    row = get_object_or_404(kind.model.objects.select_related("project"), project=project, key=key)
    action = request.POST.get("action", "")
    error = ""
    try:
        if action in ("up", "down"):
            move_question(question=row, by=-1 if action == "up" else 1, changed_by=request.user)
        elif action in ("archive", "restore"):
            archive_question(question=row, archived=action == "archive", changed_by=request.user)
        elif action == "delete":
            delete_question(question=row, deleted_by=request.user)
        else:
            error = _("Choose one of the actions.")
    except Refusal as refusal:
        error = refusal.message
    if request.htmx:
        context = {**_listed(project, kind), "error": error}
        return render(
            request, "annotation/settings/question_list.html", context, status=422 if error else 200
        )
    if error:
        messages.error(request, error)
    return redirect(kind.page, project.slug)


def _form_of(kind: QuestionPages) -> type[QuestionForm]:
    if kind.form is None:
        raise Http404
    return kind.form


def _listed(project: Project, kind: QuestionPages) -> dict[str, Any]:
    rows = list(kind.model.objects.filter(project=project).order_by("position", "id"))
    if kind is QUESTIONS_OF_PROJECT:
        add_progress(rows)
    elif kind is CATEGORIES:
        rows = in_groups(
            Category.objects.filter(project=project).select_related("parent").order_by("position", "id")
        )
        add_split_progress(rows)
    return {
        "project": project,
        "rows": rows,
        "list_id": kind.list_id,
        "kind": kind.name,
        "edit_url": kind.name,
        "change_url": f"{kind.name}-change",
        "again_url": f"{kind.name}-again",
    }


@require_POST
@project_page(role=Role.MANAGER)
def category_again(request: Request, project: Project, key: str) -> HttpResponse:
    """Put the spans of a split category to who marked them, or only to new annotations. For managers."""
    row = get_object_or_404(Category.objects.select_related("project"), project=project, key=key)
    with refusals_shown(request):
        if request.POST.get("action") == "only-new":
            ask_split_only_new(category=row, asked_by=request.user)
            messages.success(request, _("Only new annotations are asked: %(label)s.") % {"label": row.label})
        else:
            count = ask_split_again(category=row, asked_by=request.user)
            messages.success(
                request,
                ngettext(
                    "%(count)s annotation goes back for a sub-category: %(label)s.",
                    "%(count)s annotations go back for a sub-category: %(label)s.",
                    count,
                )
                % {"count": count, "label": row.label},
            )
    return redirect(CATEGORIES.page, project.slug)


def _initial(request: Request) -> dict[str, Any]:
    """Return the first values of a category of the scope in `?scope=`."""
    if request.GET.get("scope") == CategoryScope.MISSING:
        return {"scope": CategoryScope.MISSING, "granularity": Granularity.WHOLE}
    return {}


def _edited(
    request: Request,
    project: Project,
    kind: QuestionPages,
    form: QuestionForm,
    row: Category | Criterion | None = None,
) -> HttpResponse:
    if kind is CATEGORIES:
        title = _("Edit category") if row else _("New category")
    else:
        title = _("Edit criterion") if row else _("New criterion")
    context = {
        "project": project,
        "title": title,
        "form": form,
        "row": row,
        "list_url": kind.page,
        "change_url": f"{kind.name}-change",
    }
    return render(request, "annotation/settings/question.html", context, status=422 if form.is_bound else 200)


# The labelling screen of a project with an example, for its managers.


@require_safe
@project_page(role=Role.MANAGER)
def project_preview(request: Request, project: Project) -> HttpResponse:
    """Show the labelling screen with an example; nothing is reserved or stored. For managers.

    `?responses=` asks for an invented example of so many responses instead of a comparison of the project.
    """
    requested = request.GET.get("responses", "")
    responses = (
        int(requested) if requested in {str(number) for number in range(1, MOST_RESPONSES + 1)} else None
    )
    assignment = example_of_work(project=project, user=request.user, responses=responses)
    screen = Screen(
        project=project, assignment=assignment, annotator=request.user, entered=Entered(), is_preview=True
    )
    context = {
        "project": project,
        "screen": screen,
        "sizes": range(1, MOST_RESPONSES + 1),
        "is_invented": assignment.comparison.pk is None,
    }
    response = render(request, "annotation/settings/preview.html", context)
    response["Cache-Control"] = "no-store"
    return response


# Rubrics of a project: list, edit, versions with their differences, and use.


@require_safe
@project_page(role=Role.MANAGER)
def rubrics(request: Request, project: Project) -> HttpResponse:
    """List the rubrics. For managers."""
    rows = rubrics_of(project).prefetch_related("versions__criteria")
    return render(request, "annotation/rubrics/list.html", {"project": project, "rubrics": rows})


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def rubric_new(request: Request, project: Project) -> HttpResponse:
    """Write a rubric. For managers."""
    return _edited_rubric(request, project, None)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def rubric_edit(request: Request, project: Project, pk: int) -> HttpResponse:
    """Edit a rubric: a save is a new version. For managers."""
    return _edited_rubric(request, project, _rubric(project, pk))


@require_safe
@project_page(role=Role.MANAGER)
def rubric(request: Request, project: Project, pk: int) -> HttpResponse:
    """A rubric: one version, what it changed, and the others. For managers."""
    row = _rubric(project, pk)
    versions = list(row.versions.select_related("created_by").prefetch_related("criteria"))
    shown = _version(versions, request.GET.get("version", "")) or versions[0]
    before = _version(versions, request.GET.get("against", ""))
    before = before or next((version for version in versions if version.number < shown.number), None)
    context = {
        "project": project,
        "rubric": row,
        "versions": versions,
        "shown": shown,
        "before": before,
        "changes": changes_between(before, shown) if before else [],
    }
    return render(request, "annotation/rubrics/rubric.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def rubric_act(request: Request, project: Project, pk: int) -> HttpResponse:
    """Publish a version, or change whether annotators rate by it. For managers."""
    row = _rubric(project, pk)
    action = request.POST.get("action", "")
    with refusals_shown(request):
        if action == "publish":
            version = _version(list(row.versions.all()), request.POST.get("version", ""))
            if version is None:
                raise Refusal("unknown_rubric_version", _("The rubric has no such version."))
            publish_rubric(version=version, published_by=request.user)
            messages.success(request, _("Version %(number)s is published.") % {"number": version.number})
        elif action in ("ask", "stop"):
            ask_rubric(rubric=row, is_asked=action == "ask", by=request.user)
        else:
            raise Refusal("action_not_chosen", _("Choose one of the actions."))
    return redirect(row)


def _edited_rubric(request: Request, project: Project, row: Rubric | None) -> HttpResponse:
    newest = row.versions.prefetch_related("criteria").first() if row else None
    form = RubricForm(request.POST or None, initial={"name": row.name if row else ""})
    criteria = criterion_forms(request.POST or None, initial_of(newest))
    if request.method == "POST" and form.is_valid() and criteria.is_valid():
        try:
            version = save_rubric(
                project=project,
                name=form.cleaned_data["name"],
                criteria=criteria.criteria,
                saved_by=request.user,
                rubric=row,
            )
        except Refusal as refusal:
            form.add_error("name" if refusal.field == "name" else None, refusal.message)
        else:
            messages.success(request, _("Saved as version %(number)s.") % {"number": version.number})
            return redirect(version.rubric)
    context = {"project": project, "rubric": row, "newest": newest, "form": form, "criteria": criteria}
    status = 422 if form.is_bound else 200
    return render(request, "annotation/rubrics/edit.html", context, status=status)


def _rubric(project: Project, pk: int) -> Rubric:
    row = rubrics_of(project).filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if row is None:
        raise Http404
    return row


def _version(versions: list[RubricVersion], number: Any) -> RubricVersion | None:
    return next((version for version in versions if str(version.number) == number), None)
