"""The status of Rondo: all checks, in the order in which one would repair things.

The page, `manage.py doctor` and the probes show the same findings.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError
from django.urls import reverse
from django.utils import timezone
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from annotation.errors import Refusal
from training.choices import LIVE_LAUNCH, LaunchState
from training.launchers import LauncherError
from training.models import GpuLease, Launch, RoundStep
from training.services.runs.clusters import LOCAL, allowed_launchers, cluster
from webapp.operations import health, reach, work
from webapp.operations.health import Finding, Level, OverdueError, attention, fine, within, wrong

# Findings about launchers: whether clusters answer, which jobs wait or run there, which GPUs are leased.

_SECONDS = 5.0
_MOST_SHOWN = 20


def launchers() -> list[Finding]:
    """Report the launchers that recipes may choose: the clusters among them are asked."""
    findings = [fine("launchers", _("Runs train where recipes say: %(names)s.") % {"names": _names()})]
    for name in allowed_launchers():
        if name != LOCAL:
            findings += _of_cluster(name)
    return findings


def _names() -> str:
    first, *others = allowed_launchers()
    return ", ".join([_("%(name)s by default") % {"name": first}, *others])


def _of_cluster(name: str) -> list[Finding]:
    remedy = _("Jobs there run on, and their runs wait. See to it, and to the settings of this launcher.")
    try:
        # Read before the thread begins, which has no settings of a request.
        launcher = cluster(name)
        lines = within(_SECONDS, name, launcher.look)
    except (LauncherError, Refusal) as error:
        return [wrong("launchers", f"{error}.", remedy)]
    except OverdueError:
        says = _("%(name)s did not answer within %(seconds)d seconds.") % {"name": name, "seconds": _SECONDS}
        return [wrong("launchers", says, remedy)]
    return [fine("launchers", f"{name}: {line}") for line in lines]


def cluster_jobs() -> list[Finding]:
    """Report jobs that wait or run at launchers, and those that were lost or refused in the last day."""
    link = reverse("admin:training_launch_changelist")
    findings = []
    for launch in Launch.objects.filter(state__in=LIVE_LAUNCH).select_related("run")[:_MOST_SHOWN]:
        since = timesince(launch.started_at or launch.submitted_at)
        words = {
            "run": launch.run.name,
            "job": launch.handle or launch.name,
            "launcher": launch.launcher,
            "time": since,
            "reason": launch.reason or "–",
            "nodes": launch.nodes or "–",
        }
        if launch.state == LaunchState.RUNNING:
            says = _("%(run)s runs as job %(job)s of %(launcher)s on %(nodes)s for %(time)s.") % words
        else:
            says = _("%(run)s waits as job %(job)s of %(launcher)s for %(time)s: %(reason)s.") % words
        findings.append(fine("cluster jobs", says, link=launch.run.get_absolute_url()))
    lately = Launch.objects.filter(ended_at__gt=timezone.now() - timedelta(days=1))
    lost = lately.filter(state__in=(LaunchState.LOST, LaunchState.REFUSED)).count()
    if lost:
        says = ngettext(
            "%(count)d job of a cluster was lost or refused in the last 24 hours.",
            "%(count)d jobs of a cluster were lost or refused in the last 24 hours.",
            lost,
        ) % {"count": lost}
        remedy = _("Each row says why. Lost jobs are submitted again while they come further.")
        findings.append(attention("cluster jobs", says, remedy, link=f"{link}?state__exact=lost"))
    return findings


def gpus() -> list[Finding]:
    """Report the GPUs of every worker's host, and what trains on them."""
    link = reverse("admin:training_gpulease_changelist")
    leases: dict[str, list[GpuLease]] = defaultdict(list)
    for lease in GpuLease.objects.select_related("run"):
        leases[lease.host].append(lease)
    findings = []
    for host, count in sorted(_gpus_by_host().items()):
        held = leases.pop(host, [])
        says = ngettext("%(host)s has %(count)d GPU", "%(host)s has %(count)d GPUs", count) % {
            "host": host,
            "count": count,
        }
        entries = [f"{lease.gpu}: {lease.run.name}" for lease in held]
        what = "; ".join(entries) if entries else _("none is leased")
        findings.append(fine("gpus", f"{says}: {what}.", link=link))
    for host, held in leases.items():
        names = ", ".join(sorted({lease.run.name for lease in held}))
        findings.append(
            attention(
                "gpus",
                _("GPUs of %(host)s are leased to %(runs)s, and no worker of it is at work.")
                % {"host": host, "runs": names},
                _("The leases end by themselves after %(seconds)d seconds.")
                % {"seconds": settings.RONDO_STALE_SECONDS},
                link=link,
            )
        )
    return findings


def _gpus_by_host() -> dict[str, int]:
    hosts: dict[str, int] = {}
    for worker, silent in work.workers_heard_of():
        if worker.machine.get("gpus") and not work.is_silent(silent):
            host = worker.name.split(":", 1)[0]
            hosts[host] = max(hosts.get(host, 0), len(worker.machine["gpus"]))
    return hosts


def waiting_steps() -> list[Finding]:
    """Report steps of rounds that wait, with what they wait for."""
    return [*_waiting()]


def _waiting() -> Iterator[Finding]:
    steps = RoundStep.objects.filter(state="waiting", run__isnull=False).exclude(message="")
    for step in steps.select_related("round__project")[:_MOST_SHOWN]:
        yield fine("waiting", f"{step}: {step.message}.", link=step.round.get_absolute_url())


_NEEDS_THE_DATABASE: tuple[Callable[[], Finding | list[Finding]], ...] = (
    health.workers,
    health.waiting_messages,
    health.jobs,
    health.leases,
    launchers,
    cluster_jobs,
    waiting_steps,
    gpus,
    health.clock,
    health.other_versions,
)
_NEEDS_NOTHING: tuple[Callable[[], Finding | list[Finding]], ...] = (
    health.deployment,
    health.backups,
    health.versions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The findings of all checks."""

    findings: list[Finding]

    @property
    def worst(self) -> Level:
        """The level of the worst finding."""
        return max((finding.level for finding in self.findings), default=Level.FINE)

    def of(self, level: Level) -> list[Finding]:
        """Return the findings of a level."""
        return [finding for finding in self.findings if finding.level is level]


def look() -> State:
    """Run all checks. Never raises: a check that fails becomes a finding."""
    database = reach.database()
    migrations = reach.migrations()
    findings = [
        database,
        migrations,
        reach.broker(),
        reach.model_server(),
        *reach.base_models(),
        reach.disk(),
    ]
    if database.is_wrong or migrations.is_wrong:
        findings.append(
            attention(
                "work",
                _("Workers, jobs and leases cannot be looked at."),
                _("See to the database and its migrations first."),
            )
        )
    else:
        findings += _all_of(_NEEDS_THE_DATABASE)
    return State(findings=[*findings, *_all_of(_NEEDS_NOTHING)])


def _all_of(questions: Iterable[Callable[[], Finding | list[Finding]]]) -> list[Finding]:
    findings: list[Finding] = []
    for ask in questions:
        try:
            result = ask()
        except DatabaseError as error:
            result = wrong(
                ask.__name__,
                _("The database failed when it was asked about %(subject)s: %(why)s.")
                % {"subject": ask.__name__, "why": type(error).__name__},
                _("See the log of the database server."),
            )
        findings += result if isinstance(result, list) else [result]
    return findings
