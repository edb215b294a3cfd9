"""One dataclass per training method: every setting with its meaning, checked when built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from training.contract.files import ContractError, known_fields
from training.contract.methods.common import BASE, PARENT, LoraSettings, MethodSettings, OptimiserSettings
from training.contract.methods.policy import KtoSettings, PreferenceSettings, SftSettings
from training.contract.methods.policy_gradient import (
    AdvantageSettings,
    KlSettings,
    PolicyGradientSettings,
    RewardPart,
    RolloutServerSettings,
    RolloutSettings,
    UpdateSettings,
    WatchSettings,
)
from training.contract.methods.reward import CompletenessHead, RatingHead, RewardSettings, SegmentHead

__all__ = [
    "BASE",
    "PARENT",
    "SETTINGS",
    "AdvantageSettings",
    "CompletenessHead",
    "KlSettings",
    "KtoSettings",
    "LoraSettings",
    "Method",
    "MethodSettings",
    "OptimiserSettings",
    "PolicyGradientSettings",
    "PreferenceSettings",
    "RatingHead",
    "RewardPart",
    "RewardSettings",
    "RolloutServerSettings",
    "RolloutSettings",
    "SegmentHead",
    "Settings",
    "SftSettings",
    "UpdateSettings",
    "WatchSettings",
    "settings_from_json",
]

Method = Literal["reward", "sft", "preference", "kto", "policy_gradient"]
Settings = RewardSettings | SftSettings | PreferenceSettings | KtoSettings | PolicyGradientSettings
SETTINGS: dict[str, type[Settings]] = {
    cls.method: cls
    for cls in (RewardSettings, SftSettings, PreferenceSettings, KtoSettings, PolicyGradientSettings)
}


def settings_from_json(method: str, values: Mapping[str, Any]) -> Settings:
    """The settings of a method, defaults filled in. Raises `ContractError` naming the field."""
    if method not in SETTINGS:
        raise ContractError(f"method {method!r} is not known; it is one of {', '.join(sorted(SETTINGS))}")
    cls = SETTINGS[method]
    where = f"{method} settings"
    known = known_fields(cls, values, where)
    if "optimiser" in known:
        # A method's own defaults stand for what the caller leaves out.
        optimiser = known_fields(OptimiserSettings, known["optimiser"], f"{where}, optimiser")
        known["optimiser"] = dataclasses.replace(_own_optimiser(cls), **optimiser)
    settings: Settings = _built(cls, known, where)
    return settings


def _own_optimiser(cls: type[Settings]) -> OptimiserSettings:
    """A method's default; asked of the field, as not every method can be built of defaults alone."""
    factory = next(field.default_factory for field in dataclasses.fields(cls) if field.name == "optimiser")
    if factory is dataclasses.MISSING:
        raise TypeError(f"{cls.__name__}.optimiser has no default")
    found: OptimiserSettings = factory()
    return found


def _built(cls: Any, values: Mapping[str, Any], where: str) -> Any:
    """A dataclass from decoded JSON, or from `asdict`: lists become tuples, objects the dataclasses that are
    wanted."""
    known = known_fields(cls, values, where)
    hints = get_type_hints(cls)
    return cls(**{name: _decoded(hints[name], value, f"{where}, {name}") for name, value in known.items()})


def _decoded(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and not isinstance(value, hint):
        return _built(hint, value, where)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        inner = get_args(hint)[0]
        return tuple(_decoded(inner, item, f"{where} item {index}") for index, item in enumerate(value))
    if get_origin(hint) in (Union, UnionType) and isinstance(value, Mapping):
        inner = next((kind for kind in get_args(hint) if dataclasses.is_dataclass(kind)), None)
        return _decoded(inner, value, where) if inner else value
    return value
