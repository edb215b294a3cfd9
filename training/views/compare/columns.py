"""One answer beside others as its template writes it. While names are hidden nothing of a model is in it."""

from collections.abc import Sequence
from dataclasses import dataclass

from annotation.corrections import Piece, sides
from training.models import SideBySide, SideBySideAnswer

_SHADES = 4
_KL_OF_FULL_SHADE = 2.0
"""Nats: a token that the reference took for seven times less likely is as dark as it gets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A piece of an answer with a number and its colour."""

    text: str
    value: float | None
    shade: str
    """A class, from shade-n4 (lowest) to shade-p4; empty for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One of the answers."""

    position: int
    name: str
    """Empty while it is hidden."""
    url: str
    written: bool
    pieces: Sequence[Piece]
    """Of kind "deleted" is what only the first has, "inserted" what only this one has; none while hidden."""
    answer: SideBySideAnswer | None
    """With its figures; None while they are hidden."""
    heads: Sequence[tuple[str, Sequence[float]]]
    segments: Sequence[tuple[str, Sequence[Stretch]]]
    tokens: Sequence[Stretch]
    kl_sum: float | None


def columns_of(shown: SideBySide) -> list[Column]:
    """The answers in their order, with what differs from the first."""
    answers = list(shown.answers.select_related("checkpoint"))
    hidden = shown.is_hidden
    texts = [answer.text for answer in answers]
    return [
        Column(
            position=answer.position,
            name="" if hidden else answer.checkpoint.name,
            url="" if hidden else answer.checkpoint.get_absolute_url(),
            written=answer.written_at is not None,
            pieces=_plain(answer.text) if hidden else _pieces(texts, place),
            answer=None if hidden else answer,
            heads=() if hidden else sorted(answer.heads.items()),
            segments=() if hidden else _segments(answer),
            tokens=() if hidden else _tokens(answer),
            kl_sum=None if hidden or not answer.token_kl else sum(one[2] for one in answer.token_kl),
        )
        for place, answer in enumerate(answers)
    ]


def _pieces(texts: Sequence[str], place: int) -> Sequence[Piece]:
    """What differs from the first answer; in the first, from the second where there are but two."""
    if place:
        return sides(texts[0], texts[place])[1]
    if len(texts) == 2 and texts[1]:
        return sides(texts[0], texts[1])[0]
    return _plain(texts[0])


def _plain(text: str) -> Sequence[Piece]:
    return [Piece("same", text)] if text else []


def _segments(answer: SideBySideAnswer) -> list[tuple[str, list[Stretch]]]:
    found = []
    for head, told in sorted(answer.segments.items()):
        largest = max((abs(reward) for _start, _end, reward in told), default=0.0)
        found.append((head, _stretches(answer.text, told, largest)))
    return found


def _tokens(answer: SideBySideAnswer) -> list[Stretch]:
    return _stretches(answer.text, answer.token_kl, _KL_OF_FULL_SHADE)


def _stretches(text: str, told: Sequence[Sequence[float]], largest: float) -> list[Stretch]:
    """The whole text in pieces: those with a number, and what lies between."""
    found = []
    place = 0
    for start, end, value in told:
        low, high = max(int(start), place), int(end)
        if high <= low:
            continue
        if low > place:
            found.append(Stretch(text=text[place:low], value=None, shade=""))
        found.append(Stretch(text=text[low:high], value=value, shade=_shade(value, largest)))
        place = high
    if place < len(text):
        found.append(Stretch(text=text[place:], value=None, shade=""))
    return found


def _shade(value: float, largest: float) -> str:
    level = min(_SHADES, round(abs(value) / largest * _SHADES)) if largest else 0
    return f"shade-{'p' if value >= 0 else 'n'}{level}" if level else ""
