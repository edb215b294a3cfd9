"""Conversations in Rondo's own format: the turns that a line belongs to, in.

`conversations` is a list, for two people may be given the same responses to the same message; a line whose
prompt is of no conversation has none. Each holds

- `id`, `annotator`, `task` (its name or ""), `system`, `seed`, `rating` (1 to 5 or null), `attack_success`
  (0 to 4 or null), `comment`, `created_at`, `ended_at` (null while it is open): the same in all its lines
- `turn`: from 1; `continued_with`: the completion id with which it went on, or null; `continued_text`: the
  annotator's edit of that response, or ""
- `unjudged`: its turns that nobody judged, which have no line: `turn`, `messages`, `tags`, `split`,
  `completions`, `continued_with`, `continued_text`
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from annotation.exchange.formats import fields
from annotation.exchange.formats.fields import FieldError, excerpt, out_of_range, unknown_value
from annotation.exchange.formats.items import (
    ImportedCompletion,
    ImportedConversation,
    ImportedItem,
    ImportedTurn,
    Row,
)
from annotation.models.conversations import MOST_TURNS

_NAME = "conversations"
ReadCompletion = Callable[[str, Mapping[str, Any]], ImportedCompletion]


def split_of(values: Row) -> str:
    """The side of the split that a line states; "" where it states none."""
    split = fields.optional_text(values.get("split"), "split")
    if split not in ("", "train", "held-out"):
        raise unknown_value(split, ("train", "held-out"), "split")
    return split


def turns_of(row: Row, places: Mapping[str, int]) -> tuple[ImportedTurn, ...]:
    """The turns that a line is, in whatever conversations. places: completion id → its place in the line."""
    return tuple(
        _turn(entry, _conversation(entry, where), places, where)
        for where, entry in _listed(row.get(_NAME), _NAME)
    )


def unjudged_of(row: Row, completion: ReadCompletion) -> Iterator[ImportedItem]:
    """The turns without a judgment that a line tells of, as items. completion: reads one of them."""
    for where, entry in _listed(row.get(_NAME), _NAME):
        conversation = _conversation(entry, where)
        for at, turn in _listed(entry.get("unjudged"), f"{where}.unjudged"):
            completions = _listed(turn.get("completions"), f"{at}.completions")
            places = {str(each.get("id")): number for number, (_, each) in enumerate(completions)}
            yield ImportedItem(
                messages=fields.prompt(turn.get("messages"), f"{at}.messages"),
                tags=[fields.text(value, f"{at}.tags") for value in fields.items_of(turn.get("tags"), at)],
                completions=tuple(completion(place, each) for place, each in completions),
                split=split_of(turn),
                turns=(_turn(turn, conversation, places, at),),
            )


def _listed(value: Any, where: str) -> Sequence[tuple[str, Mapping[str, Any]]]:
    return [
        (f"{where}[{number}]", fields.object_of(entry, f"{where}[{number}]"))
        for number, entry in enumerate(fields.items_of(value, where))
    ]


def _turn(
    values: Mapping[str, Any], conversation: ImportedConversation, places: Mapping[str, int], where: str
) -> ImportedTurn:
    chosen = values.get("continued_with")
    if chosen is not None and str(chosen) not in places:
        raise FieldError(
            "completion_not_there",
            _("The turn has no completion %(name)s."),
            field=f"{where}.continued_with",
            name=excerpt(chosen),
        )
    text = fields.optional_text(values.get("continued_text"), f"{where}.continued_text")
    if text and chosen is None:
        raise FieldError(
            "continuation_unclear",
            _(
                "The text is an edited response, but continued_with does not say of which one. Write "
                "continued_with."
            ),
            field=f"{where}.continued_text",
        )
    return ImportedTurn(
        conversation=conversation,
        index=_number(values.get("turn"), f"{where}.turn", 1, MOST_TURNS),
        continued_with=None if chosen is None else places[str(chosen)],
        continued_text=text,
    )


def _conversation(values: Mapping[str, Any], where: str) -> ImportedConversation:
    name = fields.text(values.get("id"), f"{where}.id")
    try:
        uuid.UUID(name)
    except ValueError:
        raise FieldError(
            "id_invalid", _("%(value)s is no UUID."), field=f"{where}.id", value=excerpt(name)
        ) from None
    rating, success = values.get("rating"), values.get("attack_success")
    return ImportedConversation(
        id=name,
        annotator=fields.optional_text(values.get("annotator"), f"{where}.annotator"),
        task=fields.optional_text(values.get("task"), f"{where}.task"),
        system=fields.optional_text(values.get("system"), f"{where}.system"),
        seed=_number(values.get("seed"), f"{where}.seed", 0, 2**63 - 1),
        rating=None if rating is None else _number(rating, f"{where}.rating", 1, 5),
        attack_success=None if success is None else _number(success, f"{where}.attack_success", 0, 4),
        comment=fields.optional_text(values.get("comment"), f"{where}.comment"),
        created_at=_time(values.get("created_at"), f"{where}.created_at"),
        ended_at=_time(values.get("ended_at"), f"{where}.ended_at"),
    )


def _number(value: Any, where: str, least: int, most: int) -> int:
    number = fields.whole_number(value, where)
    if not least <= number <= most:
        raise out_of_range(number, least, most, where)
    return number


def _time(value: Any, where: str) -> str:
    timestamp = fields.optional_text(value, where)
    try:
        if timestamp and datetime.fromisoformat(timestamp).tzinfo is None:
            raise ValueError
    except ValueError:
        raise FieldError(
            "time_invalid",
            _("%(value)s is no time with a time zone. Write it as ISO 8601: 2026-01-31T09:30:00Z."),
            field=where,
            value=excerpt(timestamp),
        ) from None
    return timestamp
