"""How the work goes: workers, queues, jobs, leases, clocks, settings, versions, back-ups."""

import json
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from importlib import metadata
from pathlib import Path

import django
from django.conf import settings
from django.core import checks
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.text import capfirst
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from training.services.runs import version_of_rondo
from training.services.workers import clock_ahead
from webapp.operations import queues, work
from webapp.operations.deadlines import OverdueError, within
from webapp.operations.findings import Finding, attention, fine, wrong

_QUEUE_SECONDS = 2.0
_WAITS_LONG = timedelta(minutes=10)
_CLOCK_ATTENTION_SECONDS = 2.0
_CLOCK_WRONG_SECONDS = 30.0
_OLD_BACKUP = timedelta(days=2)
_BROKER_CHECK = "rondo.E009"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


def workers() -> list[Finding]:
    """Who does jobs, and who was not heard of."""
    found = []
    alive = 0
    for worker, silent in work.workers_heard_of():
        link = _admin("training_worker_changelist")
        if work.is_silent(silent):
            found.append(
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
        found.append(
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
        found.insert(
            0,
            wrong(
                "workers",
                _("No worker is at work: nothing is trained, imported, exported or scored."),
                _("Start one: celery --app webapp worker --beat-thread. manage.py up keeps one running."),
            ),
        )
    return found


def waiting_messages() -> list[Finding]:
    """Queues in which messages wait, and whether anybody takes them."""
    served = work.served_queues()
    names = queues.known_queues() | served
    try:
        depths = within(_QUEUE_SECONDS + 1, "queues", lambda: queues.depths(names, seconds=_QUEUE_SECONDS))
    except Exception as error:  # every transport has exceptions of its own
        why = _("no answer") if isinstance(error, OverdueError) else type(error).__name__
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
    """Jobs that wait for long, whose worker fell silent, and that failed in the last day."""
    found = []
    for one in work.jobs():
        said = {"kind": capfirst(str(one.name)), "failed": one.failed_lately}
        if one.silent:
            found.append(
                attention(
                    "jobs",
                    _("%(kind)s: %(count)d run by their row, but their worker has fallen silent.")
                    % {**said, "count": one.silent},
                    _("The next worker takes them over within seconds. If this line stays, none is at work."),
                    link=f"{one.link}?state__exact=running",
                )
            )
        if one.oldest_waiting and timezone.now() - one.oldest_waiting > _WAITS_LONG:
            found.append(
                attention(
                    "jobs",
                    _("%(kind)s: the first of those that wait has waited for %(time)s.")
                    % {**said, "time": timesince(one.oldest_waiting)},
                    _("Workers are busy or away. More of them share the work: start another."),
                    link=f"{one.link}?state__exact=waiting",
                )
            )
        if one.failed_lately:
            found.append(
                attention(
                    "jobs",
                    _("%(kind)s: %(failed)d failed in the last 24 hours.") % said,
                    _("Each says why and what to do."),
                    link=f"{one.link}?state__exact=failed",
                )
            )
    return found or [fine("jobs", _("No job failed in the last 24 hours, and none waits for long."))]


def leases() -> Finding:
    """What annotators hold, and leases that ran out long ago."""
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
    """Whether this process, workers and the database agree on the time; leases and heartbeats hang on it."""
    found = [_of_clock(_("The clock of this machine"), clock_ahead())]
    found += [
        _of_clock(_("The clock of worker %(name)s") % {"name": worker.name}, worker.clock_ahead)
        for worker, silent in work.workers_heard_of()
        if not work.is_silent(silent)
    ]
    amiss = [one for one in found if one is not None]
    return amiss or [fine("clock", _("The clocks of this machine, the workers and the database agree."))]


def _of_clock(whose: str, ahead: float) -> Finding | None:
    if abs(ahead) <= _CLOCK_ATTENTION_SECONDS:
        return None
    grade = wrong if abs(ahead) > _CLOCK_WRONG_SECONDS else attention
    return grade(
        "clock",
        _("%(whose)s is %(seconds).1f seconds off that of the database.")
        % {"whose": whose, "seconds": abs(ahead)},
        _("Have both machines ask a time server (chrony, systemd-timesyncd)."),
    )


def deployment() -> list[Finding]:
    """What `manage.py check --deploy` complains of; on one machine alone there is nothing to complain of."""
    if all(host in _LOOPBACK for host in settings.ALLOWED_HOSTS):
        return [
            fine(
                "settings",
                _(
                    "Rondo answers on this machine alone. What is missing for others to reach it is told by "
                    "manage.py check --deploy."
                ),
            )
        ]
    found = [
        (wrong if message.level >= checks.ERROR else attention)(
            "settings", str(message.msg), str(message.hint or "")
        )
        for message in _complaints()
    ]
    return found or [fine("settings", _("The settings are fit for others to reach Rondo."))]


def _complaints() -> Iterable[checks.CheckMessage]:
    told = checks.run_checks(include_deployment_checks=True)
    # The broker has a line of its own.
    return [
        one
        for one in told
        if one.level >= checks.WARNING and not one.is_silenced() and one.id != _BROKER_CHECK
    ]


def versions() -> Finding:
    """What runs here."""
    return fine(
        "versions",
        _("Rondo %(rondo)s, Django %(django)s, torch %(torch)s, Python %(python)s.")
        % {
            "rondo": _commit()[:12] or _("of an unknown commit"),
            "django": django.get_version(),
            "torch": _installed("torch"),
            "python": sys.version.split()[0],
        },
    )


def other_versions() -> list[Finding]:
    """Workers that run another commit than this process: after an update, those that were not restarted."""
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
    """How old the last back-up is, by the stamp that `manage.py backup` leaves."""
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
    """When the last back-up was made; None where none was, or its stamp cannot be read."""
    try:
        stamp = json.loads((Path(settings.RONDO_HOME) / "backups.json").read_text(encoding="utf-8"))
        made = datetime.fromisoformat(_newest_time(stamp))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return made if timezone.is_aware(made) else timezone.make_aware(made)


def _newest_time(stamp: object) -> str:
    """The time in a stamp: an object with `time`, or a list of them with the newest last."""
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
