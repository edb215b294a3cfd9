"""Lineage of checkpoints as a picture: coordinates of boxes and lines for an SVG. Uses no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BOX_WIDTH = 168
BOX_HEIGHT = 44
_COLUMN = 224
_ROW = 64
_MARGIN = 8
_LONGEST_NAME = 18
"""Characters of 12 pixels that fit between the margins of a box, in the widest of the fonts in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A checkpoint to draw."""

    name: str
    kind: str
    parent: str | None
    """The checkpoint or base model that its training started from; None for a base."""
    rewarded_by: tuple[str, ...] = ()
    """Reward models whose scores it was trained for."""
    round_number: int | None = None
    url: str = ""
    note: str = ""
    """A few words below the name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A drawn node."""

    node: Node
    x: int
    y: int
    is_here: bool

    @property
    def short_name(self) -> str:
        """Return the name shortened to fit the box, keeping its end, which is more specific than its
        middle."""
        name = self.node.name
        if len(name) <= _LONGEST_NAME:
            return name
        return f"{name[: _LONGEST_NAME // 3]}…{name[-(_LONGEST_NAME - _LONGEST_NAME // 3 - 1) :]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line between two boxes, as an SVG path."""

    path: str
    is_reward: bool
    """True if the line means a reward, not a parent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """The whole picture."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def picture_of(nodes: Sequence[Node], *, here: str = "") -> Picture:
    """Return a picture with columns from left to right: bases, then each checkpoint by its round and parents.

    Within a column the policies stand above the reward models. A parent or reward model that is not among the
    nodes gets no line.
    """
    known = {node.name: node for node in nodes}
    columns = _columns(known)
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    # Reward models are drawn last, below the policies, so that a line of policies is straight.
    for node in sorted(nodes, key=lambda node: node.kind == "reward"):
        column = columns[node.name]
        row = rows.get(column, 0)
        if node.parent in places and places[node.parent][1] > row:
            row = places[node.parent][1]
        rows[column] = row + 1
        places[node.name] = (column, row)
    boxes = tuple(
        Box(
            node=node,
            x=_MARGIN + places[node.name][0] * _COLUMN,
            y=_MARGIN + places[node.name][1] * _ROW,
            is_here=node.name == here,
        )
        for node in nodes
    )
    by_name = {box.node.name: box for box in boxes}
    lines = [
        _line(by_name[parent], by_name[node.name], is_reward)
        for node in nodes
        for parent, is_reward in [(node.parent, False), *((name, True) for name in node.rewarded_by)]
        if parent in by_name and parent != node.name
    ]
    return Picture(
        width=2 * _MARGIN + max((columns.values()), default=0) * _COLUMN + BOX_WIDTH,
        height=2 * _MARGIN + max((row for _, row in places.values()), default=0) * _ROW + BOX_HEIGHT,
        boxes=boxes,
        lines=tuple(lines),
    )


def _columns(known: Mapping[str, Node]) -> dict[str, int]:
    """Return the column of each node: right of its parents and rewards, and by its round."""
    columns: dict[str, int] = {}

    def column_of(name: str, seen: frozenset[str]) -> int:
        if name in columns:
            return columns[name]
        node = known[name]
        # `seen` ends the recursion even in data with a cycle.
        origins = [
            origin for origin in (node.parent, *node.rewarded_by) if origin in known and origin not in seen
        ]
        least = max((column_of(origin, seen | {name}) + 1 for origin in origins if origin), default=0)
        columns[name] = max(least, node.round_number or 0)
        return columns[name]

    for name in known:
        column_of(name, frozenset((name,)))
    return columns


def _line(origin: Box, target: Box, is_reward: bool) -> Line:
    x1, y1 = origin.x + BOX_WIDTH, origin.y + BOX_HEIGHT // 2
    x2, y2 = target.x, target.y + BOX_HEIGHT // 2
    bend = max(20, (x2 - x1) // 2)
    return Line(path=f"M{x1},{y1}C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}", is_reward=is_reward)
