"""Rewrites as the script of the labelling page writes them, and as the page gives them back."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from django.db.models import BigIntegerField

from annotation.record.judgment import Edit, Origin
from annotation.text.edits import applied, usual_line_break, with_own_line_breaks
from annotation.text.rewrites import is_faithful, retyped


def rewrite_shown(edit: Edit) -> dict[str, Any]:
    """Return a stored edit as the page holds it."""
    span = edit.origin.span
    return {
        "start": edit.start,
        "end": edit.end,
        "text": edit.replacement,
        "continuation": edit.origin.continuation,
        "span": span and dict(zip(("category", "start", "end"), span, strict=True)),
    }


def rewrites_sent(sent: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Read the page's field. Raises `ValueError` for anything that is not of its form."""
    rewrites = json.loads(sent)
    if not isinstance(rewrites, dict) or not all(isinstance(edits, list) for edits in rewrites.values()):
        raise ValueError("rewrites are lists of edits by response")
    return rewrites


def corrected(
    original: str,
    sent: str,
    rewrites: Sequence[Mapping[str, Any]],
    categories: Collection[str],
) -> tuple[str, tuple[Edit, ...]]:
    """Return the corrected text and its edits: rewrites first, then what was typed into the text field.

    Raises `ValueError`, `KeyError` or `TypeError` for rewrites that are not those of this original.
    """
    changes = [_edit(original, rewrite, categories) for rewrite in rewrites]
    if not changes:
        return with_own_line_breaks(original, sent), ()
    if not is_faithful(original, changes):
        raise ValueError("the rewrites are of another text")
    rewritten = applied(original, changes)
    text = with_own_line_breaks(rewritten, sent)
    return text, tuple(changes) if text == rewritten else retyped(original, changes, text)


def _edit(original: str, rewrite: Mapping[str, Any], categories: Collection[str]) -> Edit:
    start, end = int(rewrite["start"]), int(rewrite["end"])
    continuation, span = rewrite.get("continuation"), rewrite.get("span")
    if continuation is not None and not 0 < int(continuation) <= BigIntegerField.MAX_BIGINT:
        raise ValueError("a continuation has another number")
    text = str(rewrite["text"])
    if continuation is None:
        # A text field knows line feeds alone.
        text = text.replace("\r\n", "\n").replace("\n", usual_line_break(original))
    return Edit(
        start=start,
        end=end,
        quote=original[start:end],
        replacement=text,
        origin=Origin(
            continuation=None if continuation is None else int(continuation),
            span=span and _span(span, categories),
        ),
    )


def _span(span: Mapping[str, Any], categories: Collection[str]) -> tuple[str, int, int]:
    if span["category"] not in categories:
        raise KeyError(span["category"])
    return str(span["category"]), int(span["start"]), int(span["end"])
