"""Pages of AI annotators: judges, suggestions, rubric drafts."""

from django import forms
from django.contrib import messages
from django.db.models import BigIntegerField, Q, QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import JobState, Role
from annotation.errors import Refusal
from annotation.forms import offer
from annotation.forms.rubrics import RubricForm, criterion_forms
from annotation.models import Project, RubricVersion
from annotation.selectors.rubrics import published_versions
from annotation.views.access import Request, project_page, refusals_shown
from training.choices import WRITES_TEXT
from training.forms.suggestions import SuggestionsForm
from training.judging import DEFAULT_TEMPLATE
from training.models import Checkpoint, Judge, RubricDraft, SuggestionSource
from training.services.checkpoints import register_served_model
from training.services.judges import create_judge, rounds_to_judge, set_judge
from training.services.rubric_drafts import LEAST_PAIRS, MOST_PAIRS, request_draft, save_draft
from training.services.suggestions import set_suggestions

# Forms of judges and of rubric drafts.

# ── Judges ──


def _writing_checkpoints(project: Project) -> QuerySet[Checkpoint]:
    """Return the project's checkpoints that write text, and models that belong to no project."""
    return Checkpoint.objects.filter(
        Q(project=project) | Q(project__isnull=True), kind__in=WRITES_TEXT, files_deleted_at__isnull=True
    )


class JudgeForm(forms.Form):
    """A new judge of a project."""

    name = forms.CharField(max_length=100, label=gettext_lazy("Name"))
    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=gettext_lazy("Model"),
        help_text=gettext_lazy(
            "A checkpoint of this project, or a model of another server that an administrator added."
        ),
    )
    round_number = forms.TypedChoiceField(
        coerce=int,
        empty_value=None,
        required=False,
        label=gettext_lazy("Round"),
        help_text=gettext_lazy("Whose comparisons it judges."),
    )
    rubric = forms.ModelChoiceField(
        RubricVersion.objects.none(),
        required=False,
        label=gettext_lazy("Rubric"),
        empty_label=gettext_lazy("None: it ranks by the guidelines"),
        help_text=gettext_lazy("It scores each response by every criterion; the weighted sum decides."),
    )
    most_judgments = forms.IntegerField(
        min_value=1,
        required=False,
        label=gettext_lazy("Max. annotations"),
        help_text=gettext_lazy("Empty: no limit."),
    )
    most_tokens = forms.IntegerField(
        min_value=1,
        required=False,
        label=gettext_lazy("Max. tokens in total"),
        help_text=gettext_lazy("Read and written together. Empty: no limit."),
    )
    max_tokens = forms.IntegerField(
        min_value=16, max_value=8192, initial=512, label=gettext_lazy("Longest reply, in tokens")
    )
    template = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 16, "spellcheck": "false"}),
        initial=DEFAULT_TEMPLATE,
        strip=False,
        label=gettext_lazy("What it is asked"),
        help_text=gettext_lazy(
            "{guidelines} is the newest version of the guidelines, {conversation} the prompt, "
            "{answers} the responses with their letters, {example} a ranking in the expected "
            "form. With a rubric, {rubric} is its criteria; unchanged, a template for rubrics is used."
        ),
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        offer(self, "checkpoint", _writing_checkpoints(project))
        offer(self, "rubric", published_versions(project))
        offer(
            self,
            "round_number",
            [
                ("", gettext_lazy("The newest, whichever that is")),
                *(
                    (number, gettext_lazy("Round %(number)s") % {"number": number})
                    for number in rounds_to_judge(project)
                ),
            ],
        )


class ServedModelForm(forms.Form):
    """A model of another OpenAI-compatible server."""

    name = forms.CharField(
        max_length=100,
        label=gettext_lazy("Name"),
        help_text=gettext_lazy("What it is called here: letters, digits, . - _"),
    )
    url = forms.CharField(
        max_length=200,
        label=gettext_lazy("Address"),
        help_text=gettext_lazy("Of the server, such as https://models.example.org/v1"),
    )
    model = forms.CharField(
        max_length=200,
        required=False,
        label=gettext_lazy("Its name there"),
        help_text=gettext_lazy("Empty: the same name."),
    )
    key = forms.CharField(
        max_length=100,
        required=False,
        label=gettext_lazy("Variable with the key"),
        help_text=gettext_lazy(
            "The environment variable that holds the server's key. Its name begins with RONDO_SERVER_KEY_; "
            "the key itself is never stored."
        ),
    )
    project = forms.ModelChoiceField(
        Project.objects.filter(is_incomplete=False).order_by("name"),
        required=False,
        label=gettext_lazy("Project"),
        help_text=gettext_lazy("Whose managers may use it. Empty: those of every project."),
    )


# ── Rubric drafts ──


class RubricDraftForm(forms.Form):
    """A model that drafts criteria, and the number of pairs that it gets."""

    checkpoint = forms.ModelChoiceField(
        Checkpoint.objects.none(),
        label=gettext_lazy("Model"),
        help_text=gettext_lazy(
            "A checkpoint of this project, or a model of another server that an administrator added."
        ),
    )
    pairs = forms.IntegerField(
        min_value=LEAST_PAIRS,
        max_value=MOST_PAIRS,
        initial=24,
        label=gettext_lazy("Max. pairs"),
        help_text=gettext_lazy(
            "Drawn at random from decided pairs of training prompts; a third checks the criteria."
        ),
    )
    max_tokens = forms.IntegerField(
        min_value=64, max_value=8192, initial=1024, label=gettext_lazy("Longest reply, in tokens")
    )

    def __init__(self, *args: object, project: Project) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        offer(self, "checkpoint", _writing_checkpoints(project))


# ── Judges ──

# ── Judges ──


_RELATED = ("checkpoint", "project", "user", "rubric__rubric__project")


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def judges(request: Request, project: Project) -> HttpResponse:
    """The judges of a project, and a form for another. For managers."""
    form = JudgeForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            judge = create_judge(project=project, created_by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("%(name)s judges as soon as a worker finds it.") % {"name": judge})
            return redirect(judge)
    context = {
        "project": project,
        "judges": project.judges.select_related("checkpoint"),
        "form": form,
    }
    return render(request, "training/judges.html", context, status=422 if form.errors else 200)


@require_safe
@project_page(role=Role.MANAGER)
def judge(request: Request, project: Project, pk: int) -> HttpResponse:
    """A judge: its agreement with people, its leaning, its cost, what it said last. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.judges import report_of

    judge = _judge(project, pk)
    verdicts = (
        judge.verdicts.filter(judgment__comparison__is_sealed=False)
        .select_related("judgment__comparison__prompt")
        .prefetch_related("judgment__rubric_scores__criterion")[:10]
    )
    context = {"project": project, "judge": judge, "report": report_of(judge), "verdicts": verdicts}
    return render(request, "training/judge.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def judge_set(request: Request, project: Project, pk: int) -> HttpResponse:
    """Pause a judge, or let it go on. For managers."""
    judge = _judge(project, pk)
    with refusals_shown(request):
        set_judge(judge=judge, active="resume" in request.POST, by=request.user)
    return redirect(judge)


@require_http_methods(["GET", "HEAD", "POST"])
def served_model(request: Request) -> HttpResponse:
    """A form to write down a model of another server. For who is a superuser."""
    if not request.user.is_superuser:
        raise Http404
    form = ServedModelForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            checkpoint = register_served_model(by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("%(name)s can be asked now.") % {"name": checkpoint})
            return redirect(checkpoint)
    return render(request, "training/served_model.html", {"form": form}, status=422 if form.errors else 200)


def _judge(project: Project, pk: int) -> Judge:
    judge = (
        project.judges.select_related(*_RELATED).filter(pk=pk).first()
        if pk <= BigIntegerField.MAX_BIGINT
        else None
    )
    if judge is None:
        raise Http404
    return judge


# ── Suggestions ──


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def suggestions(request: Request, project: Project) -> HttpResponse:
    """Settings of suggestions, their progress, and the effect of help with intervals. For managers."""
    # NumPy is loaded when somebody opens this page, not with the web server.
    from annotation.statistics.help import HelpPage, help_report

    form = SuggestionsForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            set_suggestions(project=project, by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            messages.success(request, _("The settings of the suggestions are stored."))
            return redirect("suggestions", project.slug)
    source = SuggestionSource.objects.filter(project=project).select_related("checkpoint").first()
    context = {
        "project": project,
        "form": form,
        "source": source,
        "page": HelpPage(help_report(project)),
    }
    return render(request, "training/suggestions.html", context, status=422 if form.errors else 200)


# ── Rubric drafts ──


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def drafts(request: Request, project: Project) -> HttpResponse:
    """The drafts of a project's rubrics, and a form for another. For managers."""
    form = RubricDraftForm(request.POST or None, project=project)
    if request.method == "POST" and form.is_valid():
        try:
            draft = request_draft(project=project, requested_by=request.user, **form.cleaned_data)
        except Refusal as error:
            form.add_error(error.field if error.field in form.fields else None, error.message)
        else:
            return redirect(draft)
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    context = {"project": project, "drafts": rows, "form": form}
    return render(request, "training/rubrics/drafts.html", context, status=422 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@project_page(role=Role.MANAGER)
def draft(request: Request, project: Project, pk: int) -> HttpResponse:
    """A draft: its progress, the check of each criterion, and the form that saves it. For managers."""
    draft = _draft(project, pk)
    if request.htmx:
        answer = render(request, "training/rubrics/progress.html", {"project": project, "draft": draft})
        if not draft.goes_on:
            answer["HX-Refresh"] = "true"
        return answer
    return _edited(request, draft)


def _edited(request: Request, draft: RubricDraft) -> HttpResponse:
    # NumPy is loaded when somebody opens this page, not with the web server.
    from training.selectors.rubrics import checked_criteria

    is_done = draft.state == JobState.FINISHED and draft.version_id is None
    checked = checked_criteria(draft)
    form = RubricForm(request.POST or None)
    criteria = criterion_forms(
        request.POST or None,
        [
            {name: criterion.values[name] for name in ("name", "text", "scale", "weight")}
            for criterion in checked
        ],
    )
    if request.method == "POST" and is_done and form.is_valid() and criteria.is_valid():
        try:
            version = save_draft(
                draft=draft,
                name=form.cleaned_data["name"],
                criteria=criteria.criteria,
                saved_by=request.user,
            )
        except Refusal as refusal:
            form.add_error("name" if refusal.field == "name" else None, refusal.message)
        else:
            messages.success(request, _("Saved as version %(number)s.") % {"number": version.number})
            return redirect(version.rubric)
    context = {
        "project": draft.project,
        "draft": draft,
        "checked": checked,
        "is_done": is_done,
        "form": form,
        "criteria": criteria,
    }
    return render(request, "training/rubrics/draft.html", context, status=422 if form.is_bound else 200)


def _draft(project: Project, pk: int) -> RubricDraft:
    rows = project.rubric_drafts.select_related("project", "checkpoint", "version__rubric__project")
    draft = rows.filter(pk=pk).first() if pk <= BigIntegerField.MAX_BIGINT else None
    if draft is None:
        raise Http404
    return draft
