"""Rewards that are computed from texts alone, as settings name them. Imports no torch.

See `from_settings` for the table of kinds and options.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from training.contract import ContractError, RewardPart
from training.contract.record import require, require_type
from training.rlhf.rewards.mathematics import Mathematics
from training.rlhf.rewards.metrics import Bleu, Chrf, Rouge
from training.rlhf.rewards.protocol import Reward
from training.rlhf.rewards.rules import ExactMatch, Length, LineCount, Pattern, ThinkAnswerFormat
from training.rlhf.rewards.sandbox import Limits
from training.rlhf.rewards.unit_tests import UnitTests

_PLAIN: dict[str, type[Any]] = {
    "exact_match": ExactMatch,
    "think_answer": ThinkAnswerFormat,
    "pattern": Pattern,
    "line_count": LineCount,
    "length": Length,
    "mathematics": Mathematics,
    "bleu": Bleu,
    "rouge": Rouge,
    "chrf": Chrf,
}
"""Kinds whose options are the reward's own arguments."""


KINDS_OF_TEXTS = (*_PLAIN, "unit_tests")
"""Every kind that this module builds."""


def reward_of_texts(part: RewardPart) -> Reward:
    """The reward that `part`, of one of `KINDS_OF_TEXTS`, names. Raises `ContractError` naming the part."""
    where = f"reward {part.name!r}, options"
    if part.kind == "unit_tests":
        return _unit_tests(part.options, where)
    reward: Reward = construct(_PLAIN[part.kind], part.options, where)
    return reward


def construct(
    cls: type[Any],
    options: Mapping[str, Any],
    where: str,
    *,
    hidden: Collection[str] = (),
    **arguments: Any,
) -> Any:
    """`cls(**options, **arguments)`, once the options are arguments that it has, and of their types.

    hidden: arguments that no option may set.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(cls).parameters.items()
        if name not in hidden and name not in arguments
    }
    if odd := sorted(set(options) - set(parameters)):
        known = ", ".join(sorted(parameters)) or "none"
        raise ContractError(f"{where}: unknown option {', '.join(map(repr, odd))}; known are {known}")
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in options
    ]
    require(not missing, where, f"option {', '.join(map(repr, missing))} is missing")
    hints = get_type_hints(cls if is_dataclass(cls) else cls.__init__)
    for name, value in options.items():
        require_type(value, hints[name], f"{where}: option {name!r}")
    try:
        return cls(**options, **arguments)
    except ValueError as error:
        raise ContractError(f"{where}: {error}") from None


def _unit_tests(options: Mapping[str, Any], where: str) -> Reward:
    for name in ("trust", "write_files"):
        require(
            name not in options,
            where,
            f"{name!r} is not for a run to set: a program that nobody has read would leave its sandbox",
        )
    workers = {name: value for name, value in options.items() if name == "workers"}
    limits = {name: value for name, value in options.items() if name != "workers"}
    made: Reward = construct(
        UnitTests,
        workers,
        where,
        hidden=("trust",),
        limits=construct(Limits, limits, where, hidden=("write_files",)),
    )
    for name, value in options.items():
        require(value is None or value > 0, where, f"option {name!r} must be positive")
    return made
