"""Rewards that somebody else wrote: a Python function by its dotted path, if the path is allowed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from training.rlhf.rewards.protocol import Chat, Reference, Score

UserFunction = Callable[[Sequence[Chat], Sequence[str], Sequence[Reference]], Sequence[Any]]
"""Takes prompts, completions and references; gives a number, None (cannot score) or `Score` for each."""


class FunctionReward:
    """The function at a dotted path, such as `acme.rewards.politeness`, as a reward.

    `allowed` holds the paths that whoever runs this installation vouches for, each in full:
    importing a module runs its code, so a run's settings alone must not choose one. Raises
    `PermissionError` for a path that is not among them, before anything is imported, and
    `ValueError` for one that leads to no function.
    """

    def __init__(self, path: str, *, allowed: Collection[str]) -> None:
        if path not in allowed:
            raise PermissionError(
                f"{path!r} is not on the allow-list of reward functions; whoever runs this installation "
                "can put it there"
            )
        self._path = path
        self._function = _function_at(path)

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[str], references: Sequence[Reference]
    ) -> list[Score]:
        return [_score(value) for value in self._function(prompts, completions, references)]


def _function_at(path: str) -> UserFunction:
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{path!r} is no dotted path; write package.module.function")
    try:
        function: UserFunction = getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"the reward function {path!r} does not exist: {error}") from error
    if not callable(function):
        raise ValueError(f"{path!r} is no function")
    return function


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if value is None or math.isnan(value):
        return Score.cannot("the function gave no score")
    return Score(float(value))
