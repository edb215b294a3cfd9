"""The effect of a bulk action: previewed before it happens, reported after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from annotation.errors import Refusal
from annotation.models import Project, User
from annotation.selectors import access

MOST_ROWS = 10_000
"""Rows of one action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Numbers of rows that an action changes, and that it skips, by reason."""

    changed: int
    skipped: Mapping[str | Promise, int] = field(default_factory=dict)

    @property
    def chosen(self) -> int:
        """Return the number of rows that were chosen."""
        return self.changed + sum(self.skipped.values())


def check(*, project: Project, actor: User, rows: int) -> None:
    """Raise `NotAllowed` unless `actor` manages the project, `Refusal` for too many rows."""
    access.refuse_unless_manager(actor, project, "manager_changes_data")
    if rows > MOST_ROWS:
        raise Refusal(
            "too_many_selected_rows",
            _("An action changes at most %(most)s rows; these are more. Narrow the filters."),
            most=MOST_ROWS,
        )
