"""Refusals: what a service will not do, told so that the person asking can act on it."""

from collections.abc import Sequence


class Refusal(Exception):  # noqa: N818 - a refusal is an answer to a person, not a fault of the program
    """A request that cannot be carried out. Nothing was written.

    `message` is a sentence for people: what was wrong, and what to do. `field` names the
    part of the request that it is about, where there is one.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


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
        count = f"more than {len(self.errors)}" if more else str(len(self.errors))
        noun = "error" if len(self.errors) == 1 and not more else "errors"
        super().__init__("\n".join([f"{name}: nothing was imported, {count} {noun}.", *self.errors]))


class WrittenOnceError(Exception):
    """The program tried to change or delete a row that is written once."""
