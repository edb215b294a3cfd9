"""Memory that a base model needs when it is served, and when it is trained by each method."""

import dataclasses
from dataclasses import dataclass
from functools import cache

from training.contract import RewardSettings, Settings
from training.models import BaseModel
from training.recipe import default_recipe
from training.recipe.presets import PRESETS
from training.recipe.recipe import Recipe
from training.services.runs.memory import PROCESS_BYTES, Memory, Shape, memory_of

CACHE_TOKENS = 32768 + 16384
"""Places for keys and values of the model server: `cache_tokens` and `kept_tokens` of its limits."""
_PRECISIONS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Bytes of one use, by the precision of the frozen base."""

    name: str
    """Identifier: `serving`, or a method's preset."""
    title: str
    float32: int
    bfloat16: int
    full: int | None = None
    """Training every parameter instead of an adapter; None where there is no training."""


def estimates_of(base: BaseModel) -> list[Estimate]:
    """Return the memory estimates of a base model, by the formulas of the dry run; none before inspection."""
    if "shape" not in base.facts:
        return []
    shape, parameters = Shape(**base.facts["shape"]), int(base.facts["parameters"])
    serving = {name: serving_bytes(shape, parameters, size) for name, size in _PRECISIONS.items()}
    return [
        Estimate(name="serving", title="serving", **serving),
        *(_of_method(name, title, method, shape, parameters) for name, title, method in _methods()),
    ]


def serving_bytes(shape: Shape, parameters: int, weight_bytes: int) -> int:
    """Return the memory of the model server: weights, keys and values, and the process."""
    places = CACHE_TOKENS * 2 * shape.layers * shape.key_heads * shape.head_size
    return (parameters + places) * weight_bytes + PROCESS_BYTES


def _of_method(name: str, title: str, method: Settings, shape: Shape, parameters: int) -> Estimate:
    def memory(settings: Settings, weight_bytes: int) -> Memory:
        return memory_of(settings, shape, parameters=parameters, base_bytes=weight_bytes)

    whole = _without_adapter(method)
    return Estimate(
        name=name,
        title=title,
        **{precision: memory(method, size).total for precision, size in _PRECISIONS.items()},
        full=None if whole is None else memory(whole, 4).total,
    )


def _without_adapter(method: Settings) -> Settings | None:
    try:
        return dataclasses.replace(method, adapter="none")
    except (TypeError, ValueError):
        return None


@cache
def _methods() -> tuple[tuple[str, str, Settings], ...]:
    reward: RewardSettings = Recipe.from_json(default_recipe()).reward
    presets = ((name, title, make()) for name, (title, make) in PRESETS.items())
    return (("reward", "reward model", reward), *presets)
