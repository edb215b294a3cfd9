"""How Rondo stands: every check there is, in the order in which one would mend things.

The page, `manage.py doctor` and the probes show the same findings.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import DatabaseError
from django.utils.translation import gettext as _

from webapp.operations import conditions, reach
from webapp.operations.findings import Finding, Level, attention, wrong

_NEEDS_THE_DATABASE: tuple[Callable[[], Finding | list[Finding]], ...] = (
    conditions.workers,
    conditions.waiting_messages,
    conditions.jobs,
    conditions.leases,
    conditions.clock,
    conditions.other_versions,
)
_NEEDS_NOTHING: tuple[Callable[[], Finding | list[Finding]], ...] = (
    conditions.deployment,
    conditions.backups,
    conditions.versions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Everything that one look found."""

    findings: list[Finding]

    @property
    def worst(self) -> Level:
        """The level of the worst finding."""
        return max((one.level for one in self.findings), default=Level.FINE)

    def of(self, level: Level) -> list[Finding]:
        """The findings of a level."""
        return [one for one in self.findings if one.level is level]


def look() -> State:
    """Look at everything. Never raises: a check that fails is a finding."""
    database = reach.database()
    migrations = reach.migrations()
    found = [database, migrations, reach.broker(), reach.model_server(), reach.disk()]
    if database.is_wrong or migrations.is_wrong:
        found.append(
            attention(
                "work",
                _("Workers, jobs and leases cannot be looked at."),
                _("See to the database and its migrations first."),
            )
        )
    else:
        found += _all_of(_NEEDS_THE_DATABASE)
    return State(findings=[*found, *_all_of(_NEEDS_NOTHING)])


def _all_of(questions: Iterable[Callable[[], Finding | list[Finding]]]) -> list[Finding]:
    found: list[Finding] = []
    for ask in questions:
        try:
            told = ask()
        except DatabaseError as error:
            told = wrong(
                ask.__name__,
                _("The database failed when it was asked about %(subject)s: %(why)s.")
                % {"subject": ask.__name__, "why": type(error).__name__},
                _("See the log of the database server."),
            )
        found += told if isinstance(told, list) else [told]
    return found
