"""Two checkpoints answer the same prompt, side by side. The page works without JavaScript."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django.http import Http404, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST, require_safe

from annotation.corrections import Piece, sides
from annotation.models import Project
from annotation.views.access import Request
from training.engine import Answer, Engine, EngineError
from training.forms import CompareForm
from training.models import Checkpoint
from training.selectors import managed_projects
from training.views.access import require_manager

_TOP_P = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two answers."""

    checkpoint: Checkpoint
    answer: Answer
    pieces: list[Piece]
    """Of kind "deleted" is what is only on the left, "inserted" what is only on the right."""
    score: float | None


@require_safe
def compare(request: Request) -> HttpResponse:
    """The form; the answers come from `compare_answer`. For managers."""
    project = _project(request, request.GET.get("project"))
    form = CompareForm(project=project, initial=request.GET.dict()) if project else None
    with Engine() as engine:
        health = engine.health(timeout=1.0)
    return render(request, "training/compare.html", _context(request, project, form) | {"health": health})


@require_POST
def compare_answer(request: Request) -> HttpResponse:
    """Both answers with differences and scores: a fragment for htmx, else the whole page. For managers."""
    project = _project(request, request.POST.get("project"))
    if project is None:
        raise Http404
    form = CompareForm(request.POST, project=project)
    context = _context(request, project, form)
    if form.is_valid():
        try:
            context["sides"] = _sides(form)
        except EngineError as error:
            context["trouble"] = str(error)
    template = "training/compare_answers.html" if request.htmx else "training/compare.html"
    return render(request, template, context)


def _sides(form: CompareForm) -> tuple[Side, Side]:
    """Ask both checkpoints at once, then the reward model about both answers."""
    values = form.cleaned_data
    checkpoints: list[Checkpoint] = [values["left"], values["right"]]
    with Engine() as engine, ThreadPoolExecutor(max_workers=2) as pool:
        asked = [
            pool.submit(
                engine.complete,
                model=checkpoint.name,
                messages=form.messages,
                seed=values["seed"],
                temperature=values["temperature"],
                top_p=_TOP_P,
                max_tokens=values["max_tokens"],
            )
            for checkpoint in checkpoints
        ]
        answers = [future.result()[0] for future in asked]
        scores: list[float | None] = [None, None]
        if values["reward"]:
            texts = [answer.text for answer in answers]
            scores = [*engine.score(model=values["reward"].name, messages=form.messages, completions=texts)]
    left, right = (
        Side(checkpoint=checkpoint, answer=answer, pieces=pieces, score=score)
        for checkpoint, answer, pieces, score in zip(
            checkpoints, answers, sides(answers[0].text, answers[1].text), scores, strict=True
        )
    )
    return left, right


def _project(request: Request, slug: str | None) -> Project | None:
    """The project that was asked for, or the first that this person manages."""
    require_manager(request.user, None)
    projects = managed_projects(request.user)
    if not slug:
        return projects.first()
    found = Project.objects.filter(slug=slug).first()
    if found is None:
        raise Http404
    require_manager(request.user, found)
    return found


def _context(request: Request, project: Project | None, form: CompareForm | None) -> dict[str, object]:
    return {
        "project": project,
        "projects": managed_projects(request.user),
        "form": form,
        "reward": form.cleaned_data.get("reward") if form and form.is_bound and form.is_valid() else None,
    }
