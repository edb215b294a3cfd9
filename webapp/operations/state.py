"""The status of Rondo: all checks, in the order in which one would repair things.

The page, `manage.py doctor` and the probes show the same findings.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import DatabaseError
from django.utils.translation import gettext as _

from webapp.operations import health, launchers, reach
from webapp.operations.health import Finding, Level, attention, wrong

_NEEDS_THE_DATABASE: tuple[Callable[[], Finding | list[Finding]], ...] = (
    health.workers,
    health.waiting_messages,
    health.jobs,
    health.leases,
    launchers.launchers,
    launchers.cluster_jobs,
    launchers.waiting_steps,
    launchers.gpus,
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
