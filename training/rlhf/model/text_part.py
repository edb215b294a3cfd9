"""The text part of a model that also reads images or sound, saved as a base of its own.

python -m training.rlhf.model.text_part FOLDER TARGET
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from training.contract import ContractError

_NAMES = {
    "^model.language_model": "model",
    "^language_model.model": "model",
    "^language_model.lm_head": "lm_head",
}
"""Names of the text part's weights inside the whole, and by themselves."""


def save_text_part(folder: Path, target: Path) -> None:
    """Write decoder, head and tokenizer of the model in `folder` into the new folder `target`.

    Raises `ContractError` where the model has no text part, or not all of its weights are found.
    """
    if target.exists():
        raise ContractError(f"{target} is already there; choose another folder")
    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = whole.get_text_config()
        if text is whole:
            raise ContractError(f"{folder}: model type {whole.model_type!r} is text alone; use it as it is")
        model, loaded = AutoModelForCausalLM.from_pretrained(
            folder,
            config=text,
            key_mapping=_NAMES,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype="auto",
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ContractError(f"{folder}: the text part cannot be loaded ({error})") from error
    if absent := sorted(loaded["missing_keys"]):
        raise ContractError(
            f"{folder}: {len(absent)} tensors of the text part are not found, the first being {absent[0]}; "
            "choose another base model"
        )
    # What was loaded under other names would be saved under them.
    with torch.device("meta"):
        part = AutoModelForCausalLM.from_config(text, dtype=model.dtype)
    part.load_state_dict(model.state_dict(), assign=True)
    part.tie_weights()
    part.save_pretrained(target)
    tokenizer.save_pretrained(target)


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description="Save the text part of a model as a base of its own.")
    parser.add_argument("folder", type=Path, help="a model that reads images or sound beside text")
    parser.add_argument("target", type=Path, help="a new folder for its text part")
    arguments = parser.parse_args()
    try:
        save_text_part(arguments.folder, arguments.target)
    except ContractError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"Saved; add {arguments.target} as a base model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
