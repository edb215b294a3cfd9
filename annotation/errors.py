"""Refusals: requests that are not carried out, with a code for programs and a sentence for people."""

from collections.abc import Sequence

from django.utils.translation import gettext as _
from django.utils.translation import ngettext


class Refusal(Exception):  # noqa: N818 - a refusal is an answer to a person, not a fault of the program
    """A request that cannot be carried out. Nothing was written.

    code: the reason for programs and tests. It stays when the sentence changes; `reference/refusals` of the
    guide lists every code.
    message: a whole sentence for people, marked for translation: what was wrong, and what to do. Its named
    placeholders are filled from `params`: values only, no words of ours.
    field: the part of the request that it is about, where there is one.
    """

    def __init__(self, code: str, message: str, /, *, field: str | None = None, **params: object) -> None:
        self.code = code
        self.message = message % params if params else message
        self.field = field
        self.params = params
        super().__init__(self.message)


class Unavailable(Refusal):
    """Something that the work needs does not answer now. The same may be tried again."""


class NotAllowed(Refusal):
    """This person may not do this here."""


class LeaseLost(Refusal):
    """The comparison went to someone else while this person was away."""


class StaleAnswer(Refusal):
    """The answer speaks of a text that is not the one it should stand on."""


class AnsweredElsewhere(Refusal):
    """This person submitted an answer on another page since this page was opened."""


class InvalidAnswer(Refusal):
    """The answer contradicts itself or its comparison."""


class ImportErrors(Refusal):
    """A file that was not imported, with every fault that was found in it, up to a bound."""

    def __init__(self, name: str, errors: Sequence[str], *, more: bool = False) -> None:
        self.name = name
        self.errors = list(errors)
        self.more = more
        count = len(self.errors)
        if more:
            headline = _("%(name)s: nothing was imported, more than %(count)s errors.")
        else:
            headline = ngettext(
                "%(name)s: nothing was imported, %(count)s error.",
                "%(name)s: nothing was imported, %(count)s errors.",
                count,
            )
        self.headline = headline % {"name": name, "count": count}
        super().__init__("nothing_imported", "\n".join([self.headline, *self.errors]))


class WrittenOnceError(Exception):
    """The program tried to change or delete a row that is written once."""
