"""Identity of texts: what makes two prompts the same, and on which side of the split one is."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from annotation.choices import Split

HELD_OUT_SHARE = 0.1
"""Share of prompts that no training may see."""


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


def split_of(content_hash: str) -> Split:
    """The side of the split on which a prompt is for good: decided by its hash, 90 to 10.

    The first eight bytes, read as a number in [0, 1), fall below `HELD_OUT_SHARE` or not.
    """
    place = int(content_hash[:16], 16) / 16**16
    return Split.HELD_OUT if place < HELD_OUT_SHARE else Split.TRAIN
