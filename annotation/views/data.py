"""Tables of a project's data, and bulk actions on what is chosen in them."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext, gettext_lazy, ngettext
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from annotation.choices import Purpose, Role, Verdict
from annotation.errors import Refusal
from annotation.exchange.file_exports import MOST_COMPARISONS
from annotation.exchange.formats.items import ImportedItem
from annotation.exchange.prompts import write_prompt
from annotation.forms.judgment import QUESTION
from annotation.models import Project, Prompt
from annotation.record.judgment import AnswerPart, JudgmentRecord
from annotation.record.questions import Question, value_from_text
from annotation.selectors.changes import LABELS, TABLE_OF, changes_of, undoable_changes
from annotation.selectors.configuration import configuration_of
from annotation.selectors.saved_views import MOST_SHOWN, views_for
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.search import near_duplicates
from annotation.selectors.tables.table import View
from annotation.services import bulk
from annotation.services.bulk import LONGEST_TAG, MOST_ROWS, MOST_TAGS, TAG
from annotation.services.calibration import MOST_ITEMS
from annotation.services.changes import undo_change
from annotation.text.identity import MOST_TURNS
from annotation.views.access import Request, project_page, refusals_shown
from annotation.views.labelling.questions import questions_on_screen

_ADDRESSES = {name: f"data-{name}" for name in TABLES}


ACTIONS: dict[str, Callable[..., bulk.Effect]] = {
    "comparisons.requeue": bulk.requeue,
    "comparisons.overlap": bulk.raise_overlap,
    "comparisons.priority": bulk.set_priority,
    "comparisons.answer": bulk.answer,
    "comparisons.close": bulk.close,
    "comparisons.review": bulk.send_to_review,
    "comparisons.release": bulk.release,
    "comparisons.quarantine": bulk.quarantine,
    "comparisons.reserve": bulk.reserve,
    "comparisons.delete": bulk.delete_comparisons,
    "prompts.delete": bulk.delete_prompts,
    "responses.delete": bulk.delete_responses,
    "prompts.tag": bulk.add_tag,
    "prompts.untag": bulk.remove_tag,
}


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def table(request: Request, project: Project, table: str) -> HttpResponse:
    """Show a table of the project's data. For managers."""
    view = View(TABLES[table], project, request.GET)
    context = {"project": project, "view": view, "address": reverse(_ADDRESSES[table], args=[project.slug])}
    if request.htmx:
        return render(request, "annotation/data/rows.html", context)
    context["changes"] = [(change, LABELS[change.action]) for change in undoable_changes(project)]
    context["saved_views"] = views_for(request.user, project).filter(table=table)[:MOST_SHOWN]
    return render(request, "annotation/data/table.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def act(request: Request, project: Project, table: str) -> HttpResponse:
    """Show the effect of a bulk action on the chosen rows, and carry it out once confirmed. For managers."""
    if table not in TABLES:
        raise Http404
    declared = next(
        (action for action in TABLES[table].actions if action.name == request.POST.get("action")), None
    )
    query = request.POST.get("query", "")[:2000]
    address = reverse(_ADDRESSES[table], args=[project.slug]) + (f"?{query}" if query else "")
    if declared is None:
        messages.error(request, _("Choose an action."))
        return redirect(address)
    chosen = _chosen(request, View(TABLES[table], project, QueryDict(query)))
    leads_to = _LEADS_TO.get(declared.name)
    if leads_to is not None and "answered" not in request.POST:
        return leads_to(request, project, chosen, address)
    value = request.POST.get(f"value-{declared.name}") or request.POST.get("value", "")
    arguments: dict[str, Any] = {"project": project, "actor": request.user, "chosen": chosen}
    if declared.value:
        arguments["value"] = value
    elif declared.name == "answer":
        arguments["answer"] = _bulk_answer(project, request.POST)
    confirmed = request.POST.get("confirmed") == "yes"
    try:
        if not chosen:
            raise Refusal("no_row_selected", _("No row is selected. Select rows first."))
        effect = ACTIONS[f"{table}.{declared.name}"](**arguments, dry_run=not confirmed)
    except Refusal as refusal:
        messages.error(request, str(refusal))
        if declared.name == "answer" and chosen:
            return _to_answer(request, project, chosen, address)
        return redirect(address)
    if confirmed:
        done = ngettext("%(number)s row changed.", "%(number)s rows changed.", effect.changed)
        messages.success(request, done % {"number": effect.changed})
        return redirect(address)
    context = {
        "project": project,
        "table": TABLES[table],
        "action": declared,
        "value": value if declared.value else "",
        "given": _in_words(project, arguments["answer"]) if "answer" in arguments else [],
        "sent": _sent(request.POST),
        "effect": effect,
        "chosen": ",".join(map(str, chosen)),
        "query": query,
        "address": address,
    }
    return render(request, "annotation/data/effect.html", context)


@require_POST
@project_page(role=Role.MANAGER)
def undo(request: Request, project: Project, pk: int) -> HttpResponse:
    """Undo a bulk change of the last day. For managers."""
    change = get_object_or_404(changes_of(project), pk=pk)
    with refusals_shown(request):
        restored = undo_change(change=change, undone_by=request.user)
        done = ngettext(
            "Undone: %(number)s row is as before.", "Undone: %(number)s rows are as before.", restored
        )
        messages.success(request, done % {"number": restored})
        if restored < change.changed:
            messages.warning(request, _("Rows that were changed again meanwhile stay as they are."))
    return redirect(_ADDRESSES[TABLE_OF.get(change.action, "comparisons")], project.slug)


def _to_export(request: Request, project: Project, chosen: list[int], address: str) -> HttpResponse:
    """Open the export with the chosen comparisons as a filter."""
    if not 0 < len(chosen) <= MOST_COMPARISONS:
        messages.error(
            request,
            _("Select 1 to %(most)s comparisons to export; for more, use the filters of the export.")
            % {"most": MOST_COMPARISONS},
        )
        return redirect(address)
    named = ",".join(map(str, chosen))
    return redirect(f"{reverse('export-choose', args=[project.slug])}?comparisons={named}")


def _to_similar(request: Request, project: Project, chosen: list[int], address: str) -> HttpResponse:
    """Open the prompts that are most like the chosen one."""
    if len(chosen) != 1:
        messages.error(request, _("Select one prompt to find others like it."))
        return redirect(address)
    return redirect("prompt-similar", project.slug, chosen[0])


def _to_calibration(request: Request, project: Project, chosen: list[int], address: str) -> HttpResponse:
    """Open a new calibration session of the chosen comparisons."""
    if not 0 < len(chosen) <= MOST_ITEMS:
        messages.error(
            request, _("Select 1 to %(most)s comparisons for a calibration session.") % {"most": MOST_ITEMS}
        )
        return redirect(address)
    named = ",".join(map(str, chosen))
    return redirect(f"{reverse('calibration-new', args=[project.slug])}?comparisons={named}")


# One judgment for many comparisons: its form comes before the page with the effect.


def _sent(data: QueryDict) -> dict[str, list[str]]:
    """Return the fields of the form of a bulk answer, as they were sent."""
    return {
        name: data.getlist(name)
        for name in data
        if name in ("answered", "preference") or name.startswith(QUESTION)
    }


def _bulk_answer(project: Project, data: QueryDict) -> JudgmentRecord:
    """Return the judgment that the form describes, as it stands: the service checks it.

    An answer to an earlier version of a question names that version.
    """
    questions = {question.key: question for question in _questions_of_comparison(project)}
    answers = []
    for name in data:
        if name.startswith(QUESTION):
            key, _dot, version = name.removeprefix(QUESTION).rpartition(".")
            question = questions.get(key)
            value = value_from_text(question, data.getlist(name)) if question else data.get(name, "")
            if value is not None:
                number = int(version) if version.isdecimal() and len(version) < 9 else None
                answers.append(AnswerPart(question=key, value=value, version=number))
    verdict = data.get("preference", "")
    return JudgmentRecord(
        verdict=verdict if verdict in bulk.BULK_VERDICTS else Verdict.NOT_ASKED, answers=tuple(answers)
    )


def _questions_of_comparison(project: Project) -> list[Question]:
    """Return the questions about comparisons, without the keys of the labelling page."""
    return [
        replace(question, choices=tuple(replace(choice, shortcut="") for choice in question.choices))
        for question in configuration_of(project).asked_questions
        if question.subject == "comparison"
    ]


def _in_words(project: Project, answer: JudgmentRecord) -> list[tuple[str, str]]:
    """Return what a bulk answer says, each with the words of its question."""
    verdict = Verdict(answer.verdict)
    said = [] if verdict == Verdict.NOT_ASKED else [(_("Preference"), str(verdict.label))]
    questions = {question.key: question for question in _questions_of_comparison(project)}
    for part in answer.answers:
        question = questions[part.question]
        labels = {choice.key: choice.label for choice in question.choices}
        values = part.value if isinstance(part.value, tuple) else (str(part.value),)
        said.append((question.text, ", ".join(labels.get(value) or value for value in values)))
    return said


def _to_answer(request: Request, project: Project, chosen: list[int], address: str) -> HttpResponse:
    """Show the form of a bulk answer, with what was entered."""
    if not 0 < len(chosen) <= bulk.MOST_ANSWERED:
        messages.error(
            request, _("Select 1 to %(most)s comparisons to annotate at once.") % {"most": bulk.MOST_ANSWERED}
        )
        return redirect(address)
    context = {
        "project": project,
        "number": len(chosen),
        "verdicts": [
            (value.value, value.label)
            for value in bulk.BULK_VERDICTS
            if project.ask_verdict or value == Verdict.CANNOT_JUDGE
        ],
        "preference": request.POST.get("preference", ""),
        # What an answer shows is there at once, as on the labelling page without JavaScript.
        "places": [
            replace(place, is_shown=True)
            for place in questions_on_screen(_questions_of_comparison(project), _sent(request.POST), {})
        ],
        "chosen": ",".join(map(str, chosen)),
        "query": request.POST.get("query", "")[:2000],
        "address": address,
    }
    return render(request, "annotation/data/answer.html", context)


_LEADS_TO = {
    "answer": _to_answer,
    "export": _to_export,
    "calibrate": _to_calibration,
    "similar": _to_similar,
}
"""Actions that open another page with the selection first."""


def _chosen(request: Request, view: View) -> list[int]:
    """Return the selected rows, or all that match; one more than may be changed is enough to refuse them."""
    if request.POST.get("matching") == "1":
        return list(view.matching.order_by("pk").values_list("pk", flat=True)[: MOST_ROWS + 1])
    values = ",".join(request.POST.getlist("chosen")).split(",")
    chosen = [value for value in values if value.isdecimal() and len(value) < 19]
    return list(dict.fromkeys(map(int, chosen[: MOST_ROWS + 1])))


# One prompt with what belongs to it, and new prompts, written or copied from another.

# The form of a new prompt.

_LONGEST = 100_000


class PromptForm(forms.Form):
    """A prompt of one turn, with the turns before it where it was taken from another prompt."""

    system = forms.CharField(
        label=gettext_lazy("System prompt"),
        required=False,
        max_length=_LONGEST,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 2}),
    )
    question = forms.CharField(
        label=gettext_lazy("Prompt"),
        max_length=_LONGEST,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 6}),
    )
    reference = forms.CharField(
        label=gettext_lazy("Reference response"),
        required=False,
        max_length=_LONGEST,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 3}),
    )
    tags = forms.CharField(
        label=gettext_lazy("Tags"), required=False, max_length=1_000, help_text=gettext_lazy("With commas.")
    )

    def __init__(self, *args: object, copied: Prompt | None = None, **options: object) -> None:
        self.copied = copied
        if copied is not None:
            options["initial"] = _initial(copied)
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def clean_question(self) -> str:
        """Refuse a prompt of spaces."""
        question: str = self.cleaned_data["question"]
        if not question.strip():
            raise forms.ValidationError(gettext("Enter a prompt."))
        return question

    def clean(self) -> dict[str, Any]:
        """Refuse a chat of more messages than a prompt has; the turns are those of the copied prompt."""
        # With a system prompt and the last turn.
        if len(self.turns_before) + 2 > MOST_TURNS:
            raise forms.ValidationError(
                gettext("A prompt has at most %(most)s messages.") % {"most": MOST_TURNS},
                code="too_many_turns",
            )
        return super().clean() or self.cleaned_data

    def clean_tags(self) -> list[str]:
        """Return the tags, each once; refuse one that tags cannot be."""
        tags = list(dict.fromkeys(tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()))
        wrong = next((tag for tag in tags if not re.fullmatch(TAG, tag)), None)
        if wrong is not None or len(tags) > MOST_TAGS:
            raise forms.ValidationError(
                gettext("Enter at most %(most)s tags of up to %(longest)s letters, digits and dashes.")
                % {"most": MOST_TAGS, "longest": LONGEST_TAG}
            )
        return tags

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the chat: system prompt, the turns before of the copied prompt, the new last turn."""
        system, question = self.cleaned_data["system"], self.cleaned_data["question"]
        first = [{"role": "system", "content": system}] if system.strip() else []
        return [*first, *self.turns_before, {"role": "user", "content": question}]

    @property
    def turns_before(self) -> list[dict[str, str]]:
        """Return the turns between system prompt and last turn of the prompt that is copied."""
        if self.copied is None:
            return []
        return [turn for turn in self.copied.messages[:-1] if turn["role"] != "system"]

    @property
    def parts(self) -> dict[str, Any]:
        """Return the fields of the new prompt. Passages are those of the prompt that is copied."""
        reference = self.cleaned_data["reference"]
        return {
            "messages": self.messages,
            "context": self.copied.context if self.copied else [],
            "references": [reference] if reference.strip() else [],
            "tags": self.cleaned_data["tags"],
        }


def _initial(prompt: Prompt) -> dict[str, str]:
    first = prompt.messages[0]
    return {
        "system": first["content"] if first["role"] == "system" else "",
        "question": prompt.last_question,
        "reference": prompt.references[0] if prompt.references else "",
        "tags": ", ".join(map(str, prompt.tags)),
    }


_LISTED = 50


@require_safe
@never_cache
@project_page(role=Role.MANAGER)
def prompt(request: Request, project: Project, pk: int) -> HttpResponse:
    """Show a prompt, its comparisons and responses, and prompts that say almost the same. For managers."""
    shown = get_object_or_404(project.prompts, pk=pk)
    context = {
        "project": project,
        "prompt": shown,
        "comparisons": shown.comparisons.exclude(purpose=Purpose.DELETED).order_by("-pk")[:_LISTED],
        "completions": shown.completions.filter(deleted_at__isnull=True)
        .select_related("source")
        .order_by("-pk")[:_LISTED],
        "similar": near_duplicates(project, shown.messages, besides=shown),
    }
    return render(request, "annotation/data/prompt.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@never_cache
@project_page(role=Role.MANAGER)
def prompt_new(request: Request, project: Project) -> HttpResponse:
    """Add a prompt, empty or copied by `?from=`; near-duplicates are shown first. For managers."""
    source = request.GET.get("from", "")
    is_key = source.isdecimal() and len(source) < 19
    copied = get_object_or_404(project.prompts, pk=source) if is_key else None
    form = PromptForm(request.POST or None, copied=copied)
    similar = []
    if request.method == "POST" and form.is_valid():
        similar = near_duplicates(project, form.messages, besides=copied)
        if not similar or request.POST.get("confirmed") == "yes":
            return _add(request, project, form)
    context = {"project": project, "form": form, "copied": copied, "similar": similar}
    return render(
        request, "annotation/data/prompt_new.html", context, status=422 if request.method == "POST" else 200
    )


def _add(request: Request, project: Project, form: PromptForm) -> HttpResponse:
    added, is_new = write_prompt(project=project, actor=request.user, parsed=ImportedItem(**form.parts))
    if is_new:
        messages.success(request, _("The prompt was added. The next round asks for responses to it."))
    else:
        messages.warning(request, _("The project has this prompt already."))
    return redirect("prompt", project.slug, added.pk)
