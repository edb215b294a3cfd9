"""The text part of a model that also reads images or sound, saved as a base of its own.

python -m training.rlhf.model.text_part FOLDER TARGET

Rondo trains and serves the text part where it stands; servers of others, such as vLLM, load the whole.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transformers import AutoTokenizer

from training.contract import ContractError
from training.rlhf.model.base_model import read_model
from training.rlhf.model.families import is_text_part


def save_text_part(folder: Path, target: Path) -> None:
    """Write decoder, head and tokenizer of the model in `folder` into the new folder `target`.

    Raises `ContractError` where the model has no text part, or not all of its weights are found.
    """
    if target.exists():
        raise ContractError(f"{target} is already there; choose another folder")
    if not is_text_part(folder):
        raise ContractError(f"{folder}: this model is text alone; use it as it is")
    part = read_model(folder, dtype="auto")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ContractError(f"{folder}: the tokenizer cannot be loaded ({error})") from error
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
