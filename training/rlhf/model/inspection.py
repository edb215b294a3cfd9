"""Read what a base model is, and refuse what Rondo cannot train or serve, without reading it whole.

python -m training.rlhf.model.inspection FOLDER [--without-weights]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from training.contract import ContractError
from training.rlhf.model.base_model import refuse_unsupported_folder, try_first_layers
from training.rlhf.model.families import context_limit, read_supported_config, sliding_window, why_not_packed
from training.rlhf.model.templates import renderer

INDEX_FILE = "model.safetensors.index.json"

_SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
_CHAT = (
    {"role": "user", "content": "Name a primary colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "And another?"},
)


def inspect_folder(folder: Path, *, with_weights: bool = True) -> dict[str, Any]:
    """Return the facts of the base model in `folder` as JSON values.

    with_weights: also computes packed rows with the first layers. Raises `ContractError` with the reason
    where the model cannot be trained or served.
    """
    config = read_supported_config(folder)
    _refuse_quantised(config, folder)
    tokenizer = refuse_unsupported_folder(folder)
    packs = why_not_packed(config) is None
    if with_weights:
        refuse_missing_files(folder)
        packs = try_first_layers(config, folder)
    text = config.get_text_config()
    return {
        "model_type": config.model_type,
        "architecture": (config.architectures or [""])[0],
        "context": context_limit(config),
        "window": sliding_window(config),
        "packs": packs,
        "dtype": str(config.dtype or "").removeprefix("torch."),
        "tied": bool(text.tie_word_embeddings),
        "vocabulary": int(text.vocab_size),
        "tokens": len(tokenizer),
        "tokenizer": type(tokenizer).__name__,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "chat_template": str(tokenizer.chat_template),
        **_example(tokenizer),
    }


def refuse_missing_files(folder: Path) -> None:
    """Raise `ContractError` where the folder holds no weights, or lacks a file that its index names."""
    if not any(folder.glob("*.safetensors")):
        raise ContractError(f"{folder}: there are no weights (*.safetensors); fetch the base model again")
    index = folder / INDEX_FILE
    if not index.is_file():
        return
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ContractError(f"{index} cannot be read ({error}); fetch the base model again") from error
    if missing := sorted(name for name in named if not (folder / name).is_file()):
        raise ContractError(
            f"{folder}: {len(missing)} files of weights are missing, the first being {missing[0]}; fetch the "
            "base model again"
        )


def _refuse_quantised(config: Any, folder: Path) -> None:
    """Weights that are stored quantised cannot be trained beside, nor merged with an adapter."""
    quantisation = getattr(config, "quantization_config", None)
    if quantisation:
        settings = quantisation if isinstance(quantisation, dict) else vars(quantisation)
        method = settings.get("quant_method", "unknown")
        raise ContractError(
            f"{folder}: the weights are quantised ({method}); choose the base model's original weights, in "
            "bfloat16, float16 or float32"
        )


def _example(tokenizer: Any) -> dict[str, Any]:
    """Return a chat as the template renders it, and whether the template knows a system message."""
    render = renderer(tokenizer)
    chats = ([_SYSTEM, *_CHAT], list(_CHAT))
    texts = []
    for chat in chats:
        with contextlib.suppress(ContractError):
            texts.append(render(chat, True, {}))
    example = texts[0] if texts else ""
    # Some templates drop a system message without a word, others refuse it.
    return {"example": example, "takes_system": _SYSTEM["content"] in example}


def main(arguments: list[str] | None = None) -> int:
    """Print the facts as JSON; 2 with the reason on stderr where the base model is refused."""
    parser = argparse.ArgumentParser(prog="python -m training.rlhf.model.inspection", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-weights", action="store_true", help="read configuration and tokenizer")
    options = parser.parse_args(arguments)
    try:
        facts = inspect_folder(options.folder, with_weights=not options.without_weights)
    except ContractError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
