"""Bulk actions on chosen comparisons and prompts, each with a preview of its effect."""

from annotation.services.bulk.comparisons import (
    close,
    open_comparisons,
    quarantine,
    raise_open_overlap,
    raise_overlap,
    release,
    requeue,
    reserve,
    send_to_review,
    set_priority,
)
from annotation.services.bulk.effect import Effect
from annotation.services.bulk.prompts import add_tag, remove_tag

__all__ = [
    "Effect",
    "add_tag",
    "close",
    "open_comparisons",
    "quarantine",
    "raise_open_overlap",
    "raise_overlap",
    "release",
    "remove_tag",
    "requeue",
    "reserve",
    "send_to_review",
    "set_priority",
]
