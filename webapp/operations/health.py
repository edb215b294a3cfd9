"""Health checks and their findings: workers, queues, jobs, leases, clocks, settings, versions, back-ups."""

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

import django
from django.conf import settings
from django.core import checks
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from training.services.runs.runs import version_of_rondo
from training.services.workers import clock_ahead
from webapp import __version__
from webapp.operations import work

# Calls with a deadline, for resources that may never answer.

Answer = TypeVar("Answer")

_threads: dict[str, Thread] = {}
_guard = Lock()


class OverdueError(Exception):
    """The call did not return in time."""


def within(seconds: float, name: str, ask: Callable[[], Answer]) -> Answer:
    """Return or raise the outcome of `ask`, called in a thread; raise `OverdueError` after `seconds`.

    Raise it at once while an earlier call of the same name is still running: a database that hangs for an
    hour costs one thread, not one per check.
    """
    outcome: list[Answer] = []
    problem: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(ask())
        except Exception as error:
            problem.append(error)

    with _guard:
        earlier = _threads.get(name)
        if earlier is not None and earlier.is_alive():
            raise OverdueError
        thread = Thread(target=work, name=f"within-{name}", daemon=True)
        _threads[name] = thread
        thread.start()
    thread.join(seconds)
    if problem:
        raise problem[0]
    if not outcome:
        raise OverdueError
    return outcome[0]


# ── Health ──

_QUEUE_SECONDS = 2.0
_WAITS_LONG = timedelta(minutes=10)
_CLOCK_ATTENTION_SECONDS = 2.0
_CLOCK_WRONG_SECONDS = 30.0
_OLD_BACKUP = timedelta(days=2)
_BROKER_CHECK = "rondo.E009"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


Text = str | Promise


class Level(IntEnum):
    """The severity of a finding."""

    FINE = 0
    ATTENTION = 1
    """Nothing is broken, but somebody should know."""
    WRONG = 2
    """Something does not work, or will stop working soon."""

    @property
    def called(self) -> str:
        """The name in the API."""
        return self.name.lower()


LEVELS = tuple((level.called, level.called) for level in Level)
"""The choices of the API."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a check. `remedy` is empty if all is well."""

    subject: str
    """Identifier for programs: `database`, `broker`, …"""
    level: Level
    says: Text
    remedy: Text = ""
    link: str = ""
    """URL of a page with details."""

    @property
    def is_wrong(self) -> bool:
        return self.level is Level.WRONG


def fine(subject: str, says: Text, *, link: str = "") -> Finding:
    """Return a finding that all is well."""
    return Finding(subject=subject, level=Level.FINE, says=says, link=link)


def attention(subject: str, says: Text, remedy: Text, *, link: str = "") -> Finding:
    """Return a finding that somebody should know."""
    return Finding(subject=subject, level=Level.ATTENTION, says=says, remedy=remedy, link=link)


def wrong(subject: str, says: Text, remedy: Text, *, link: str = "") -> Finding:
    """Return a finding that something does not work."""
    return Finding(subject=subject, level=Level.WRONG, says=says, remedy=remedy, link=link)


def workers() -> list[Finding]:
    """Report live and silent workers."""
    findings = []
    alive = 0
    for worker, silent in work.workers_heard_of():
        link = _admin("training_worker_changelist")
        if work.is_silent(silent):
            findings.append(
                attention(
                    "workers",
                    _("Worker %(name)s was last heard of %(seconds)d seconds ago.")
                    % {"name": worker.name, "seconds": silent},
                    _(
                        "See whether its process and its machine still run. What it did is taken over by "
                        "another worker; this line goes after a day."
                    ),
                    link=link,
                )
            )
            continue
        alive += 1
        findings.append(
            fine(
                "workers",
                ngettext(
                    "Worker %(name)s does %(count)d job at once from %(queues)s.",
                    "Worker %(name)s does %(count)d jobs at once from %(queues)s.",
                    worker.concurrency,
                )
                % {"name": worker.name, "count": worker.concurrency, "queues": ", ".join(worker.queues)},
                link=link,
            )
        )
    if not alive:
        findings.insert(
            0,
            wrong(
                "workers",
                _("No worker is at work: nothing is trained, imported, exported or scored."),
                _("Start one: celery --app webapp worker --beat-thread. manage.py up keeps one running."),
            ),
        )
    return findings


def waiting_messages() -> list[Finding]:
    """Report the messages in each queue, and queues that no worker serves."""
    served = work.served_queues()
    names = work.known_queues() | served
    try:
        depths = within(_QUEUE_SECONDS + 1, "queues", lambda: work.depths(names, seconds=_QUEUE_SECONDS))
    except Exception as error:  # every transport has its own exceptions
        why = _("no response") if isinstance(error, OverdueError) else type(error).__name__
        return [
            attention(
                "queues",
                _("It is not known how many messages wait: %(why)s.") % {"why": why},
                _("See to the message broker first."),
            )
        ]
    return [_of_queue(name, depth, is_served=name in served) for name, depth in depths.items()]


def _of_queue(name: str, depth: int, *, is_served: bool) -> Finding:
    says = ngettext(
        "%(count)d message waits in the queue %(name)s.",
        "%(count)d messages wait in the queue %(name)s.",
        depth,
    ) % {"count": depth, "name": name}
    if is_served or not depth:
        return fine("queues", says)
    return wrong(
        "queues",
        f"{says} {_('No worker takes messages from it.')}",
        _("Start a worker for it: celery --app webapp worker --queues %(name)s.") % {"name": name},
    )


def jobs() -> list[Finding]:
    """Report jobs that wait long, whose worker is silent, or that failed in the last day."""
    findings = []
    for job in work.jobs():
        words = {"kind": capfirst(str(job.name)), "failed": job.failed_lately}
        if job.silent:
            findings.append(
                attention(
                    "jobs",
                    _("%(kind)s: %(count)d run by their row, but their worker has fallen silent.")
                    % {**words, "count": job.silent},
                    _("The next worker takes them over within seconds. If this line stays, none is at work."),
                    link=f"{job.link}?state__exact=running",
                )
            )
        if job.oldest_waiting and timezone.now() - job.oldest_waiting > _WAITS_LONG:
            findings.append(
                attention(
                    "jobs",
                    _("%(kind)s: the first of those that wait has waited for %(time)s.")
                    % {**words, "time": timesince(job.oldest_waiting)},
                    _("Workers are busy or away. More of them share the work: start another."),
                    link=f"{job.link}?state__exact=waiting",
                )
            )
        if job.failed_lately:
            findings.append(
                attention(
                    "jobs",
                    _("%(kind)s: %(failed)d failed in the last 24 hours.") % words,
                    _("Each states the cause and the remedy."),
                    link=f"{job.link}?state__exact=failed",
                )
            )
    return findings or [fine("jobs", _("No job failed in the last 24 hours, and none waits for long."))]


def leases() -> Finding:
    """Report held and expired leases."""
    now = work.leases()
    says = ngettext("Annotators hold %(count)d item.", "Annotators hold %(count)d items.", now.held) % {
        "count": now.held
    }
    if now.overdue:
        ran_out = ngettext(
            "%(count)d lease has run out; its item goes to whoever asks for work next.",
            "%(count)d leases have run out; their items go to whoever asks for work next.",
            now.overdue,
        ) % {"count": now.overdue}
        says = f"{says} {ran_out}"
    return fine("leases", says, link=f"{_admin('annotation_assignment_changelist')}?state__exact=leased")


def clock() -> list[Finding]:
    """Compare the clocks of this process, the workers and the database, on which leases depend."""
    here = _("The clock of this machine is %(seconds).1f seconds off that of the database.")
    away = _("The clock of worker %(name)s is %(seconds).1f seconds off that of the database.")
    findings = [_of_clock(here, clock_ahead())]
    findings += [
        _of_clock(away, worker.clock_ahead, name=worker.name)
        for worker, silent in work.workers_heard_of()
        if not work.is_silent(silent)
    ]
    amiss = [finding for finding in findings if finding is not None]
    return amiss or [fine("clock", _("The clocks of this machine, the workers and the database agree."))]


def _of_clock(message: str, ahead: float, **params: str) -> Finding | None:
    if abs(ahead) <= _CLOCK_ATTENTION_SECONDS:
        return None
    grade = wrong if abs(ahead) > _CLOCK_WRONG_SECONDS else attention
    return grade(
        "clock",
        message % {"seconds": abs(ahead), **params},
        _("Have both machines ask a time server (chrony, systemd-timesyncd)."),
    )


def deployment() -> list[Finding]:
    """Report the warnings of `manage.py check --deploy`; none if only this machine reaches Rondo."""
    if all(host in _LOOPBACK for host in settings.ALLOWED_HOSTS):
        return [
            fine(
                "settings",
                _(
                    "Rondo is reachable from this machine only. manage.py check --deploy lists "
                    "what is missing for others to reach it."
                ),
            )
        ]
    findings = [
        (wrong if message.level >= checks.ERROR else attention)(
            "settings", str(message.msg), str(message.hint or "")
        )
        for message in _complaints()
    ]
    return findings or [fine("settings", _("The settings are fit for others to reach Rondo."))]


@cache
def _complaints() -> Iterable[checks.CheckMessage]:
    """Return what the checks say. They look at code and settings, which a process never changes."""
    messages = checks.run_checks(include_deployment_checks=True)
    # The broker has a separate finding.
    return [
        message
        for message in messages
        if message.level >= checks.WARNING and not message.is_silenced() and message.id != _BROKER_CHECK
    ]


def versions() -> Finding:
    """Report the installed versions."""
    return fine(
        "versions",
        _("Rondo %(rondo)s, Django %(django)s, torch %(torch)s, Python %(python)s.")
        % {
            "rondo": " ".join(dict.fromkeys([__version__, _commit()[:12]])).strip(),
            "django": django.get_version(),
            "torch": _installed("torch"),
            "python": sys.version.split()[0],
        },
    )


def other_versions() -> list[Finding]:
    """Report workers that run another commit, because they were not restarted after an update."""
    here = _commit()
    return [
        attention(
            "versions",
            _("Worker %(name)s runs Rondo %(version)s.")
            % {"name": worker.name, "version": worker.version[:12]},
            _("Start it again, so that all run the same."),
        )
        for worker, silent in work.workers_heard_of()
        if here and worker.version and worker.version != here and not work.is_silent(silent)
    ]


def backups() -> Finding:
    """Report the age of the last back-up, from the stamp of `manage.py backup`."""
    made = _last_backup()
    remedy = _("Run manage.py backup, and have the machine's timer run it every night.")
    if made is None:
        return attention("backups", _("No back-up was ever made here."), remedy)
    when = date_format(timezone.localtime(made), "DATETIME_FORMAT")
    says = _("The last back-up was made %(when)s.") % {"when": when}
    return (
        attention("backups", says, remedy) if timezone.now() - made > _OLD_BACKUP else fine("backups", says)
    )


def _last_backup() -> datetime | None:
    """Return the time of the last back-up; None if there is none or its stamp is unreadable."""
    try:
        stamp = json.loads((Path(settings.RONDO_HOME) / "backups.json").read_text(encoding="utf-8"))
        made = datetime.fromisoformat(_newest_time(stamp))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return made if timezone.is_aware(made) else timezone.make_aware(made)


def _newest_time(stamp: object) -> str:
    """Return the time in a stamp: an object with `time`, or a list of them, newest last."""
    if isinstance(stamp, list):
        stamp = stamp[-1] if stamp else {}
    if not isinstance(stamp, dict):
        raise TypeError(stamp)
    return str(stamp["time"])


@cache
def _commit() -> str:
    return version_of_rondo()


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _("not installed")


def _admin(name: str) -> str:
    return reverse(f"admin:{name}")
