"""A recipe that takes seconds with the tiny model. Imports no torch."""

from typing import Any

TINY = "tiny"

_LORA = {"rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj"]}


def tiny_recipe(*, steps: int = 6) -> dict[str, Any]:
    """Both methods for a few large steps that save after each; short answers."""
    optimiser = {
        "learning_rate": 5e-3,
        "warmup_steps": 0,
        "batch_size": 4,
        "micro_batch_tokens": 256,
        "epochs": 1000,
        "max_steps": steps,
        "save_every": 1,
        "evaluate_every": 0,
    }
    return {
        "reward": {"lora": _LORA, "optimiser": optimiser},
        "policy": {"lora": _LORA, "optimiser": optimiser},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 12},
        "seed": 5,
    }
