"""Sides of the split: which new prompts of a project are held out. Nothing else decides it."""

from collections.abc import Mapping
from types import MappingProxyType

from annotation.choices import Split
from annotation.models import Project, Prompt
from annotation.text.identity import ENOUGH_HELD_OUT, opening_hash, split_new

_EARLY = 1_000
"""Held-out prompts among which all are that the quota added: it is met by the first `ENOUGH_HELD_OUT`."""


def assign_splits(
    *,
    project: Project,
    openings: Mapping[str, str],
    stated: Mapping[str, Split] = MappingProxyType({}),
) -> dict[str, Split]:
    """Return the side of each new prompt, by content hash; prompts that are there keep theirs.

    openings: each prompt's content hash → its `opening_hash`, which decides: all turns of a conversation are
    on one side. stated: the sides that a file states, by content hash; they count where the project has no
    turn of the conversation yet.

    Call it in the transaction that adds the prompts, with the project locked: of two imports at once the
    second counts what the first has added.
    """
    if not openings:
        return {}
    there = _sides_there(project, {opening for digest, opening in openings.items() if opening != digest})
    sides = {openings[digest]: side for digest, side in stated.items()} | there
    prompts = Prompt.objects.filter(project=project)
    # Counted no further than the quota goes: a large project is not counted for every batch.
    held_out = prompts.filter(split=Split.HELD_OUT)[:ENOUGH_HELD_OUT].count()
    total = prompts.count() if held_out < ENOUGH_HELD_OUT else 0
    sides |= split_new(set(openings.values()) - sides.keys(), prompts=total, held_out=held_out)
    return {
        digest: there.get(opening) or stated.get(digest) or sides[opening]
        for digest, opening in openings.items()
    }


def _sides_there(project: Project, openings: set[str]) -> dict[str, Split]:
    """Return the sides of conversations of which the project has an earlier or another turn."""
    if not openings:
        return {}
    prompts = Prompt.objects.filter(project=project)
    # A hash in the held-out share is held out whenever it comes: the quota's additions alone need a look.
    early = prompts.filter(split=Split.HELD_OUT).order_by("pk").values_list("messages", "context")[:_EARLY]
    there = {opening_hash(messages, context) for messages, context in early if len(messages) > 1}
    known = prompts.filter(content_hash__in=openings).values_list("content_hash", "split")
    return {**dict.fromkeys(there & openings, Split.HELD_OUT), **{key: Split(side) for key, side in known}}
