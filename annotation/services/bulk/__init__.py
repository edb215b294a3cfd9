"""Bulk actions on chosen comparisons and prompts, each with a preview of its effect."""

from annotation.services.bulk.comparisons import (
    Effect,
    add_tag,
    close,
    open_comparisons,
    quarantine,
    raise_open_overlap,
    raise_overlap,
    release,
    remove_tag,
    requeue,
    reserve,
    send_to_review,
    set_priority,
)

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
