"""Settings of the training methods: a dataclass per method, checked when built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal

from annotation.record.base import ContractError, decode
from training.contract.methods.policy import (
    KtoSettings,
    PolicyGradientSettings,
    PreferenceSettings,
    SftSettings,
)
from training.contract.methods.reward import RewardSettings

Method = Literal["reward", "sft", "preference", "kto", "policy_gradient"]
Settings = RewardSettings | SftSettings | PreferenceSettings | KtoSettings | PolicyGradientSettings
SETTINGS: dict[str, type[Settings]] = {
    cls.method: cls
    for cls in (RewardSettings, SftSettings, PreferenceSettings, KtoSettings, PolicyGradientSettings)
}


def settings_from_json(method: str, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a method, defaults filled in. Raises `ContractError` naming the field."""
    if method not in SETTINGS:
        raise ContractError(f"method {method!r} is not known; it is one of {', '.join(sorted(SETTINGS))}")
    cls = SETTINGS[method]
    optimiser = values.get("optimiser") if isinstance(values, Mapping) else None
    if isinstance(optimiser, Mapping):
        # A method's own defaults stand for what the caller leaves out.
        default = next(entry.default_factory for entry in fields(cls) if entry.name == "optimiser")
        values = {**values, "optimiser": {**asdict(default()), **optimiser}}  # type: ignore[operator]
    return decode(cls, values, f"{method} settings")
