"""Jobs at work: how many of a project, and those that an import waits behind."""

from datetime import timedelta

from django.apps import apps
from django.conf import settings
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from annotation.choices import Cap, ImportState
from annotation.models import FileImport
from annotation.models.jobs import Claimable

IMPORTS_PER_PROJECT = 1
"""A second import of a project would wait for the rows of the first one anyway."""
IMPORTS_AT_ONCE = 4
"""Of the six jobs of the short lane: mail, webhooks and sweeps always find room beside imports."""


def project_is_full(kind: type[Claimable], pk: int) -> bool:
    """Return whether a job must wait because its project has as many at work as it may.

    Counted, not locked: of two that begin at the same moment both may pass.
    """
    if not kind.CAP:
        return False
    project_id = kind._default_manager.filter(pk=pk).values_list(kind.PROJECT, flat=True).first()
    if project_id is None:
        return False
    if kind.CAP == Cap.IMPORTS:
        projects = list(_at_work(FileImport).exclude(pk=pk).values_list(kind.PROJECT, flat=True))
        return len(projects) >= IMPORTS_AT_ONCE or projects.count(project_id) >= IMPORTS_PER_PROJECT
    return has_enough_long_jobs(project_id, is_round=kind.CAP == Cap.ROUNDS)


def has_enough_long_jobs(project_id: int, *, is_round: bool = False) -> bool:
    """Return whether a project has as many long jobs at work as it may: `RONDO_JOBS_PER_PROJECT`.

    One of them is for its round: judges, suggestions and measurements never keep a round waiting.
    """
    most: int = settings.RONDO_JOBS_PER_PROJECT
    others = _long_jobs(project_id, Cap.LONG)
    if not is_round and others >= max(1, most - 1):
        return True
    return others + _long_jobs(project_id, Cap.ROUNDS) >= most


def _long_jobs(project_id: int, cap: Cap) -> int:
    kinds = (kind for kind in apps.get_models() if issubclass(kind, Claimable) and cap == kind.CAP)
    return sum(_at_work(kind).filter(**{kind.PROJECT: project_id}).count() for kind in kinds)


def imports_ahead(record: FileImport) -> int:
    """Return the number of imports that a waiting import waits behind; 0 where it is the next."""
    if record.state != ImportState.WAITING:
        return 0
    others = FileImport.objects.filter(FileImport.UNFINISHED).exclude(pk=record.pk)
    ahead = Q(pk__lt=record.pk) | _is_alive()
    of_project = others.filter(ahead, project=record.project_id).count()
    at_work = _at_work(FileImport).exclude(pk=record.pk).count()
    return max(of_project, others.filter(ahead).count() if at_work >= IMPORTS_AT_ONCE else 0)


def _at_work(kind: type[Claimable]) -> QuerySet[Claimable]:
    return kind._default_manager.filter(kind.UNFINISHED, _is_alive())


def _is_alive() -> Q:
    stale = timedelta(seconds=settings.RONDO_STALE_SECONDS)
    return ~Q(worker="") & Q(heartbeat_at__gte=Now() - stale, heartbeat_at__lte=Now() + stale)
