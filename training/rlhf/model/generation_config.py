"""The generation configuration of a model's folder: its end tokens, complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.rlhf.model.templates import turn_end_id

GENERATION_FILE = "generation_config.json"


def end_ids(folder: Path) -> list[int]:
    """Return the end tokens that the generation configuration names, else those of the configuration."""
    for name in (GENERATION_FILE, "config.json"):
        ends = _read(folder / name).get("eos_token_id")
        if ends is not None:
            return list(ends) if isinstance(ends, list) else [ends]
    return []


def add_turn_end(folder: Path, tokenizer: Any) -> None:
    """Add the token that ends a trained row to the end tokens of the model in `folder`, where it is missing:
    programs that load the model would generate past the end of the turn."""
    known, end = end_ids(folder), turn_end_id(tokenizer)
    if end is None or end in known:
        return
    path = folder / GENERATION_FILE
    settings = _read(path) | {"eos_token_id": [*known, end]}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return settings
