"""Compare: ask checkpoints side by side, show the stored responses, vote, follow up."""

import json
from collections.abc import Iterator, Sequence

from django.contrib import messages
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.models import Project
from annotation.services.people.shortcuts import keys_of
from annotation.views.access import Request, refusals_shown
from training.engine import Engine, EngineError
from training.forms.comparing import SIDES, AgainForm, CompareForm, VoteForm
from training.models import SideBySide, SideBySideAnswer
from training.selectors.projects import checkpoints_for, managed_projects, require_manager, system_of
from training.selectors.prompt_sets import PromptSetProgress, progress_on, prompt_sets_of, prompts_matching
from training.services.side_by_side import (
    ask_side_by_side,
    continue_side_by_side,
    next_of_set,
    regenerate_side_by_side,
    reveal_names,
    trouble_of,
    vote_side_by_side,
    write_answer,
    write_answers,
)
from training.views.responses import responses_of, vote_in_words

_LATEST = 20
_PROMPTS_LISTED = 8


@require_safe
def compare(request: Request) -> HttpResponse:
    """Show the form and the latest comparisons. For managers."""
    named = request.GET.getlist("checkpoint")[: len(SIDES)]
    project = _project(request, request.GET.get("project") or _project_of(request, named))
    sides = dict(zip(SIDES, named, strict=False))
    form = (
        CompareForm(project=project, user=request.user, initial={**request.GET.dict(), **sides})
        if project
        else None
    )
    with Engine() as engine:
        health = engine.health(timeout=1.0)
    latest = project.side_by_sides.select_related("created_by")[:_LATEST] if project else ()
    return _form_page(request, project, form, health=health, latest=latest)


@require_safe
def compare_prompts(request: Request) -> HttpResponse:
    """Show the prompts of a project that contain a text, to choose one. For managers."""
    project = _project(request, request.GET.get("project"))
    if project is None:
        raise Http404
    context = _prompt_choices(project, text=request.GET.get("find", ""), chosen=request.GET.get("prompt"))
    return render(request, "training/comparing/prompt_choices.html", context)


@require_POST
def compare_answer(request: Request) -> HttpResponse:
    """Ask, and go to the permanent page with the responses. For managers.

    With `stream` the script of that page has them generated; without it they are generated first.
    """
    project = _project(request, request.POST.get("project"))
    if project is None:
        raise Http404
    form = CompareForm(request.POST, project=project, user=request.user)
    if form.is_valid():
        try:
            made = ask_side_by_side(
                project=project,
                created_by=request.user,
                checkpoints=form.checkpoints,
                question=form.question,
                sampling=form.sampling,
                seed=form.cleaned_data["seed"],
                scorer=form.cleaned_data["reward"],
                blind=not form.cleaned_data["unblinded"],
                system=form.cleaned_data["system"],
                prompt_set=form.cleaned_data["prompt_set"],
            )
        except Refusal as refusal:
            form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
        else:
            return _go_to(request, made)
    return _form_page(request, project, form)


@require_safe
@never_cache
def compare_shown(request: Request, slug: str) -> HttpResponse:
    """Show the stored responses; with `part` only the fragment for the script. For managers."""
    shown = _stored(request, slug)
    responses = responses_of(shown)
    context = {
        "shown": shown,
        "project": shown.project,
        "responses": responses,
        "chat": shown.messages if shown.shared else None,
        "complete": all(response.written for response in responses),
        "form": VoteForm(positions=[response.position for response in responses]),
        "verdict": vote_in_words(shown.judgment, responses),
        "again": AgainForm(
            initial={**shown.sampling, "system": system_of(shown.messages), "unblinded": False}
        ),
        "progress": _progress_of(shown),
        "keys": keys_of(request.user),
    }
    page = "responses" if request.GET.get("part") == "answers" else "shown"
    return render(request, f"training/comparing/{page}.html", context)


@require_POST
def compare_write(request: Request, slug: str) -> HttpResponseBase:
    """Generate missing responses: one as events, or all and back to the page. For managers.

    Blind, always all: the speed of each would identify its model.
    """
    shown = _stored(request, slug)
    position = request.POST.get("position", "")
    if not position.isdigit() or shown.is_hidden:
        return _go_to(request, shown, stream=False)
    answers = SideBySideAnswer.objects.select_related("checkpoint", "side_by_side__scorer")
    answer = get_object_or_404(answers, side_by_side=shown, position=int(position))
    response = StreamingHttpResponse(_events(answer), content_type="text/event-stream")
    response["Cache-Control"] = "no-store"
    # A proxy that buffers the response would make the stream pointless.
    response["X-Accel-Buffering"] = "no"
    return response


@require_POST
def compare_again(request: Request, slug: str) -> HttpResponse:
    """Have the same checkpoints answer the same chat again, with other settings. For managers."""
    shown = _stored(request, slug)
    form = AgainForm(request.POST)
    if not form.is_valid():
        messages.error(request, form.first_error)
        return redirect(shown)
    made = regenerate_side_by_side(
        shown=shown,
        created_by=request.user,
        sampling=form.sampling,
        seed=form.cleaned_data["seed"],
        system=form.cleaned_data["system"],
        blind=not form.cleaned_data["unblinded"],
    )
    return _go_to(request, made)


@require_POST
def compare_next(request: Request, slug: str) -> HttpResponse:
    """Compare the same checkpoints on the next prompt of the set. For managers."""
    shown = _stored(request, slug)
    try:
        made = next_of_set(shown=shown, created_by=request.user)
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect(shown)
    return _go_to(request, made)


@require_POST
def compare_reveal(request: Request, slug: str) -> HttpResponse:
    """Show names before the vote, which is unblinded then. For managers."""
    shown = _stored(request, slug)
    reveal_names(shown=shown, user=request.user)
    return redirect(shown)


@require_POST
def compare_vote(request: Request, slug: str) -> HttpResponse:
    """Store a vote, which reveals the names. For managers."""
    shown = _stored(request, slug)
    form = VoteForm(request.POST, positions=list(shown.answers.values_list("position", flat=True)))
    if not form.is_valid():
        messages.error(request, form.first_error)
        return redirect(shown)
    with refusals_shown(request):
        vote_side_by_side(shown=shown, voter=request.user, vote=form.decision)
    return redirect(shown)


@require_POST
def compare_continue(request: Request, slug: str) -> HttpResponse:
    """Create the next turn, after one of the responses or each after its own. For managers."""
    shown = _stored(request, slug)
    after = request.POST.get("after", "")
    try:
        made = continue_side_by_side(
            shown=shown,
            created_by=request.user,
            text=request.POST.get("text", ""),
            position=int(after) if after.isdigit() else None,
        )
    except Refusal as refusal:
        messages.error(request, refusal.message)
        return redirect(shown)
    return _go_to(request, made)


def _project(request: Request, slug: str | None) -> Project | None:
    """Return the named project, or the first that this person manages."""
    require_manager(request.user, None)
    if not slug:
        return managed_projects(request.user).first()
    project = get_object_or_404(Project, slug=slug)
    require_manager(request.user, project)
    return project


def _stored(request: Request, slug: str) -> SideBySide:
    shown = get_object_or_404(
        SideBySide.objects.select_related(
            "project", "scorer", "continues", "judgment", "prompt_set", "prompt", "base_prompt"
        ),
        slug=slug,
    )
    require_manager(request.user, shown.project)
    return shown


def _form_page(
    request: Request, project: Project | None, form: CompareForm | None, **more: object
) -> HttpResponse:
    context: dict[str, object] = {"projects": managed_projects(request.user), "form": form, **more}
    if project is not None and form is not None:
        chosen = str(form["prompt"].value() or "")
        context |= _prompt_choices(project, text=request.GET.get("find", ""), chosen=chosen)
        context["prompt_sets"] = prompt_sets_of(project)
    context["project"] = project
    return render(request, "training/comparing/compare.html", context)


def _project_of(request: Request, names: Sequence[str]) -> str | None:
    """Return the slug of the project of the first named checkpoint that belongs to one."""
    named = checkpoints_for(request.user).filter(name__in=names, project__isnull=False)
    return named.values_list("project__slug", flat=True).first()


def _prompt_choices(project: Project, *, text: str, chosen: str | None) -> dict[str, object]:
    """Return the newest prompts that contain a text, with the chosen one in front."""
    prompts = list(prompts_matching(project, text)[: _PROMPTS_LISTED + 1])
    number = int(chosen) if chosen and chosen.isascii() and chosen.isdecimal() and len(chosen) < 19 else 0
    picked = project.prompts.filter(pk=number).first() if number else None
    listed = [prompt for prompt in prompts[:_PROMPTS_LISTED] if prompt != picked]
    return {
        "project": project,
        "find": text[:200],
        "picked": picked,
        "choices": [*([picked] if picked else []), *listed],
        "more": len(prompts) > _PROMPTS_LISTED,
    }


def _progress_of(shown: SideBySide) -> PromptSetProgress | None:
    if shown.prompt_set is None:
        return None
    checkpoints = [answer.checkpoint for answer in shown.answers.select_related("checkpoint")]
    return progress_on(shown.prompt_set, checkpoints, after=shown.base_prompt_id)


def _go_to(request: Request, shown: SideBySide, *, stream: bool | None = None) -> HttpResponse:
    """Redirect to the page; generate its responses first where no script will."""
    if not (bool(request.POST.get("stream")) if stream is None else stream):
        try:
            write_answers(shown=shown)
        except EngineError as error:
            messages.error(request, trouble_of(error, hidden=shown.is_hidden))
    return redirect(shown)


def _events(answer: SideBySideAnswer) -> Iterator[bytes]:
    """Yield the text as it comes, then the end; or why it could not be generated."""
    try:
        for text in write_answer(answer=answer):
            yield _event({"text": text})
    except EngineError as error:
        yield _event({"error": str(error)})
        return
    yield _event({"done": True})


def _event(data: dict[str, object]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()
