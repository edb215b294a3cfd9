"""The sentence under each field of a settings class: the one place where it is explained.

Python keeps no docstrings of fields, so they are read from the source, once. `.ci/messages.py` collects them
for translators by `sentences`; the form says them in the reader's language.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_IN_A_RECIPE = {
    ("RewardPart", "checkpoint"): (
        'The reward model, for kind model: "round" is the one that this round trains; or the name of an '
        "earlier one."
    ),
    ("RewardPart", "checkpoint_digest"): (
        "Digest of that checkpoint's manifest; filled in when training starts, so leave it empty."
    ),
    **{
        (cls, "reference"): (
            "The policy that divergence is measured from: parent, the one that the round continues; base, "
            "the model under all adapters, so that rounds do not drift on and on; or a checkpoint's name."
        )
        for cls in ("PreferenceSettings", "KtoSettings", "PolicyGradientSettings")
    },
}
"""Where a recipe means another thing than the run that is made of it."""


@functools.cache
def help_of(cls: type[Any]) -> dict[str, str]:
    """What each field of a dataclass does, by its name, those of its bases among them."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        if dataclasses.is_dataclass(one):
            found |= _own(one)
    names = [field.name for field in dataclasses.fields(cls)]
    return {name: _IN_A_RECIPE.get((cls.__name__, name)) or found.get(name, "") for name in names}


def sentences() -> Iterator[tuple[Path, str]]:
    """What stands under the fields of every recipe's form, each with the file that it is written in."""
    # The recipe reads no help: only who asks for all of it knows both.
    from training.recipe.recipe import Recipe

    classes: list[Any] = sorted(_within(Recipe, set()), key=lambda one: one.__name__)
    for cls in classes:
        source = Path(inspect.getfile(cls))
        for text in help_of(cls).values():
            yield source, text


def _within(cls: type[Any], found: set[type[Any]]) -> set[type[Any]]:
    """A dataclass and all that its fields are made of, the settings of every way to train a policy too."""
    if cls not in found:
        found.add(cls)
        for hint in typing.get_type_hints(cls).values():
            for one in _leaves(hint):
                if dataclasses.is_dataclass(one) and isinstance(one, type):
                    _within(one, found)
    return found


def _leaves(hint: Any) -> Iterator[Any]:
    yield hint
    for one in typing.get_args(hint):
        yield from _leaves(one)


def _own(cls: type[Any]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101 - the source of a class
    found = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found
