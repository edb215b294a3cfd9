"""Selections: the part of a project that a report is about."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A round, a category of marks, one annotator or two; None selects everything."""

    round_number: int | None = None
    category_id: int | None = None
    annotator_id: int | None = None
    other_id: int | None = None

    @property
    def annotator_ids(self) -> tuple[int, ...]:
        """The annotators that are chosen: none, one or two."""
        chosen = (self.annotator_id, self.other_id)
        return tuple(dict.fromkeys(pk for pk in chosen if pk is not None))

    @property
    def rounds(self) -> tuple[int, ...] | None:
        """The rounds to read; None for all."""
        return None if self.round_number is None else (self.round_number,)

    def is_of(self, annotator_id: int) -> bool:
        """Return True where this annotator's work is part of it."""
        return not self.annotator_ids or annotator_id in self.annotator_ids

    @property
    def key(self) -> str:
        """The selection as part of a cache key."""
        return f"{self.round_number}:{self.category_id}:{self.annotator_id}:{self.other_id}"
