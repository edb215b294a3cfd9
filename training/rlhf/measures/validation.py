"""The last lines of a reward model's log: its held-out log-loss, and the baselines that it does not beat."""

from __future__ import annotations

from collections.abc import Mapping

from training.contract import RewardModelValidation, validation_from_figures
from training.rlhf.runtime.run_folder import log

_NAMES = {
    "constant": "a constant",
    "position": "position alone",
    "length": "length alone",
    "surface": "surface features",
    "frozen": "a head on frozen features",
}


def log_validation(figures: Mapping[str, float]) -> list[str]:
    """Log a reward model's validation; return the warnings among the lines. None without a held-out pair."""
    result = validation_from_figures(figures)
    if result is None:
        return []
    log.info("%s", _summary(result))
    warnings = [
        f"Worse than {_NAMES[name]}: held-out log-loss {result.log_loss:.3f} against {loss:.3f}"
        for name, loss in result.worse_than()
    ]
    for warning in warnings:
        log.warning("%s", warning)
    return warnings


def _summary(result: RewardModelValidation) -> str:
    line = (
        f"Validation on {result.decided} decided held-out judgments: accuracy {result.accuracy:.3f} "
        f"({result.low:.3f} to {result.high:.3f}), log-loss {result.log_loss:.3f}"
    )
    if result.scaled_log_loss is None:
        return f"{line}; too few held-out prompts for a temperature"
    scaled = f"{line}, {result.scaled_log_loss:.3f} with a temperature fitted to other prompts"
    return scaled if result.temperature is None else f"{scaled} (all together {result.temperature:.3g})"
