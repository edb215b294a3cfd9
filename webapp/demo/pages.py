"""The first-run page: start with an empty project, the starter or the demo. For administrators."""

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from annotation.errors import Refusal
from annotation.models import Project
from annotation.services.jobs import send
from annotation.views.access import Request
from training.contract.files import write_atomically
from webapp import first_project
from webapp.demo.project import SLUG, STEPS

# Creation of the demo project from a page, by a worker, with its progress in a file.
#
# The worker starts another process, because the demo sets the clock of the process that writes it.

TASK = "webapp.demo.write"
_SILENT_SECONDS = 300
"""A demo that has said nothing for so long was interrupted."""


class DemoState(StrEnum):
    """State of the demo's creation."""

    NONE = "none"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoProgress:
    """Progress of the demo: steps begun of all, and what is being written or went wrong."""

    state: DemoState = DemoState.NONE
    step: int = 0
    total: int = STEPS
    message: str = ""
    updated_at: float = 0.0

    @property
    def goes_on(self) -> bool:
        return self.state in (DemoState.WAITING, DemoState.RUNNING)


def progress() -> DemoProgress:
    """Return the progress of the demo; finished where its complete project exists."""
    if Project.objects.filter(slug=SLUG, is_incomplete=False).exists():
        return DemoProgress(state=DemoState.FINISHED, step=STEPS)
    try:
        values = json.loads(_file().read_text(encoding="utf-8"))
        record = DemoProgress(**{**values, "state": DemoState(values["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return DemoProgress()
    if record.goes_on and time.time() - record.updated_at > _SILENT_SECONDS:
        return DemoProgress(
            state=DemoState.FAILED, message=_("It was interrupted. Nothing was kept; start it again.")
        )
    # A demo that was deleted can be created again.
    return DemoProgress() if record.state == DemoState.FINISHED else record


def request_demo() -> None:
    """Have a worker create the demo project. Refuses while one is being created or exists."""
    if progress().state not in (DemoState.NONE, DemoState.FAILED):
        raise Refusal("demo_exists", _("The demo is there already, or being created."))
    _tell(DemoProgress(state=DemoState.WAITING))
    send(TASK)


def write_demo() -> None:
    """Create the demo project in a process of its own; record each of its steps."""
    if progress().state != DemoState.WAITING:
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "demo"],
        cwd=settings.BASE_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    step, last = 0, ""
    for line in process.stdout or ():
        last = line.strip() or last
        step = min(step + 1, STEPS)
        _tell(DemoProgress(state=DemoState.RUNNING, step=step, message=last))
    if process.wait():
        _tell(DemoProgress(state=DemoState.FAILED, step=step, message=last.removeprefix("CommandError: ")))
    else:
        _tell(DemoProgress(state=DemoState.FINISHED, step=STEPS))


def _tell(now: DemoProgress) -> None:
    values = asdict(now) | {"state": now.state.value, "updated_at": time.time()}
    write_atomically(_file(), json.dumps(values))


def _file() -> Path:
    return Path(settings.RONDO_HOME) / "demo.json"


# ── Pages ──


@never_cache
@require_safe
def start(request: Request) -> HttpResponse:
    """Offer the three ways to begin, and show the progress of the demo. For administrators."""
    _require_administrator(request)
    template = "operations/start_demo.html" if request.htmx else "operations/start.html"
    return render(request, template, _context())


@require_POST
def start_demo(request: Request) -> HttpResponse:
    """Have a worker create the demo project. For administrators."""
    _require_administrator(request)
    try:
        request_demo()
    except Refusal as error:
        messages.error(request, str(error))
    return redirect("start")


@require_POST
def start_starter(request: Request) -> HttpResponse:
    """Create the first project, where there is none, and open it. For administrators."""
    _require_administrator(request)
    first_project.ensure_first_project()
    is_there = Project.objects.filter(slug=first_project.SLUG).exists()
    return redirect("project", first_project.SLUG) if is_there else redirect("start")


def _require_administrator(request: Request) -> None:
    if not request.user.is_superuser:
        raise PermissionDenied


def _context() -> dict[str, Any]:
    return {
        "progress": progress(),
        "demo": SLUG,
        "starter": Project.objects.filter(slug=first_project.SLUG).first(),
        "has_projects": Project.objects.filter(is_incomplete=False).exists(),
    }
