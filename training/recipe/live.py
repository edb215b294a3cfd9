"""Settings of an update of live learning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from training.contract import ContractError
from training.contract.methods import settings_from_json
from training.contract.methods.common import OptimiserSettings
from training.contract.methods.policy import PreferenceSettings
from training.recipe.recipe import FEW_LAYERS


def default_live_policy() -> dict[str, Any]:
    """Return the settings of an update: direct preference optimisation, one pass over its judgments.

    On two cores the starter learns from one judgment in some seconds, and somebody waits for it. The
    reference is the base, so that many small updates do not add up to a long way.
    """
    settings = PreferenceSettings(
        lora=FEW_LAYERS,
        beta=0.1,
        reference="base",
        optimiser=OptimiserSettings(
            learning_rate=3e-4,
            warmup_steps=0,
            schedule="constant",
            batch_size=4,
            epochs=1,
            max_steps=6,
            save_every=2,
            evaluate_every=0,
            keep_best=False,
        ),
    )
    return dataclasses.asdict(settings)


def live_policy(values: Mapping[str, Any]) -> PreferenceSettings:
    """Return the settings in decoded JSON. Raises `ContractError` that names the field."""
    settings = settings_from_json("preference", values)
    if not isinstance(settings, PreferenceSettings):
        raise ContractError("policy: an update is direct preference optimisation")
    if settings.optimiser.max_steps is None:
        raise ContractError("policy, optimiser, max_steps: is null; an update is a handful of steps")
    return settings


def continuing(settings: PreferenceSettings, parent: Mapping[str, Any]) -> PreferenceSettings:
    """Return the settings with the adapter of a checkpoint that training continues, by its run's settings."""
    adapter = {name: parent[name] for name in ("adapter", "lora") if name in parent}
    return live_policy({**dataclasses.asdict(settings), **adapter})
