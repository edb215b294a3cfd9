"""The help sentence under each field of a settings class.

pydantic keeps them as field descriptions. `.ci/messages.py` collects them for translators through
`sentences`; the form translates them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_IN_A_RECIPE = {
    ("RewardPart", "checkpoint"): (
        'The reward model, for kinds model and served: "round" is the one that this round trains; or the '
        "name of an earlier one. One of another base than the policy's is served in any case."
    ),
    ("RewardPart", "checkpoint_digest"): (
        "Digest of that checkpoint's manifest; filled in when training starts, so leave it empty."
    ),
    ("RewardPart", "options"): (
        "Options by name; see the guide. For kind rubric: rubric, the name of a published rubric, and "
        "judge, the name of an AI annotator that scores by it."
    ),
    **{
        (cls, "reference"): (
            "The policy that divergence is measured from: parent, the one that the round continues; base, "
            "the model under all adapters, so that rounds do not drift on and on; or a checkpoint's name."
        )
        for cls in ("PreferenceSettings", "KtoSettings", "PolicyGradientSettings")
    },
}
"""Overrides for a recipe, where a field differs in meaning from the run's."""


@functools.cache
def help_of(cls: type[Any]) -> dict[str, str]:
    """Return the sentence of each field of a record by its name, inherited fields included."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name, field in getattr(base, "__pydantic_fields__", {}).items():
            texts[name] = " ".join((field.description or texts.get(name, "")).split())
    return {name: _IN_A_RECIPE.get((cls.__name__, name)) or text for name, text in texts.items()}


def sentences() -> Iterator[tuple[Path, str]]:
    """Yield the help sentences of all recipe forms, each with its file."""
    # Imported here: the recipe itself needs no help texts.
    from training.recipe.recipe import Recipe

    classes: list[Any] = sorted(_within(Recipe, set()), key=lambda cls: cls.__name__)
    for cls in classes:
        source = Path(inspect.getfile(cls))
        for text in help_of(cls).values():
            yield source, text


def _within(cls: type[Any], seen: set[type[Any]]) -> set[type[Any]]:
    """Collect a dataclass and those of its fields, the settings of every policy method included."""
    if cls not in seen:
        seen.add(cls)
        for hint in typing.get_type_hints(cls).values():
            for leaf in _leaves(hint):
                if dataclasses.is_dataclass(leaf) and isinstance(leaf, type):
                    _within(leaf, seen)
    return seen


def _leaves(hint: Any) -> Iterator[Any]:
    yield hint
    for arg in typing.get_args(hint):
        yield from _leaves(arg)
