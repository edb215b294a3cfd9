"""Identity of texts: what makes two prompts the same, and which new ones are held out."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import orjson
from django.utils.translation import gettext as _

from annotation.choices import Split

# Orders of responses in words.

# Texts in short, for lists and titles.


def shortened(text: str, length: int = 80) -> str:
    """Return a text in one line of at most `length` characters, cut between words where it has any."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    kept = line[: length - 1]
    last_space = line.rfind(" ", 0, length)
    # Languages without spaces, and addresses, are cut where they are.
    return (kept[:last_space] if last_space > length // 2 else kept) + "…"


def in_order(places: Sequence[tuple[int, str]]) -> str:
    """`[(1, "B"), (2, "A"), (2, "C")]` → `B > A = C`."""
    ordered = sorted(places)
    text = ordered[0][1] if ordered else ""
    for (before, _letter), (rank, letter) in pairwise(ordered):
        text += f" {'=' if rank == before else '>'} {letter}"
    return text


def with_rest(order: str, rest: Sequence[str]) -> str:
    """Return an order with what it leaves unordered: `B > C; not ordered: A, D`."""
    if not rest:
        return order
    return _("%(order)s; not ordered: %(rest)s") % {"order": order, "rest": ", ".join(rest)}


# ── Identity ──

# Bounds of a chat.

MOST_TURNS = 1_000
"""Messages of one prompt: pages render each, templates of models loop over them, and none has more in use."""


HELD_OUT_SHARE = 0.1
"""Share of a large project's prompts that no training may see."""
SMALL_SHARE_PERCENT = 30
"""Of a small project so many prompts in a hundred are held out, rounded up, …"""
ENOUGH_HELD_OUT = 20
"""… until there are so many: a decision between two policies needs about that number of prompts."""


def text_hash(text: str) -> str:
    """SHA-256 of the text in UTF-8, in hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def content_hash(messages: Sequence[Mapping[str, Any]], context: Sequence[Mapping[str, Any]] = ()) -> str:
    """SHA-256 of what a model is shown: the messages and the context passages, in hex.

    Hashed is their JSON in UTF-8, keys sorted and without spaces. References and tags are not part of it:
    they may differ between two files of the same prompts.
    """
    content = {"context": list(context), "messages": list(messages)}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def opening_hash(messages: Sequence[Mapping[str, Any]], context: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the `content_hash` of a conversation up to its first user message."""
    first = next(
        (place for place, message in enumerate(messages) if message["role"] == "user"), len(messages)
    )
    return content_hash(messages[: first + 1], context)


def in_held_out_share(content_hash: str) -> bool:
    """Return whether the hash, its first eight bytes read as a number in [0, 1), is in the held-out share."""
    return int(content_hash[:16], 16) / 16**16 < HELD_OUT_SHARE


def held_out_quota(prompts: int) -> int:
    """Return the least number of held-out prompts of a project with so many: min(⌈30 %⌉, 20)."""
    # In whole numbers: 0.3 · 10 is above 3.
    return min(-(-prompts * SMALL_SHARE_PERCENT // 100), ENOUGH_HELD_OUT)


def split_new(content_hashes: Collection[str], *, prompts: int, held_out: int) -> dict[str, Split]:
    """Return the side of each new prompt, by content hash.

    prompts, held_out: how many the project has already, and how many of those are held out. Held out is
    every hash in the held-out share, and of the others the smallest hashes until `held_out_quota` of all
    prompts is met. The order in which the hashes come changes nothing; prompts that are there keep
    their side.
    """
    new = set(content_hashes)
    shared = sum(map(in_held_out_share, new))
    # The held-out share is an interval from 0: whatever is added to it comes next in order.
    quota = max(shared, held_out_quota(prompts + len(new)) - held_out)
    return {
        digest: Split.HELD_OUT if place < quota else Split.TRAIN for place, digest in enumerate(sorted(new))
    }
