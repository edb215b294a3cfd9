"""Convert a GGUF file from the command line.

python -m training.rlhf.gguf_files FILE INTO
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from training.contract import ContractError
from training.rlhf.gguf_files import TOKENIZER_FILES, convert


def main(arguments: list[str] | None = None) -> int:
    """Convert a file into a new folder; 2 with the reason on stderr where it is refused."""
    parser = argparse.ArgumentParser(prog="python -m training.rlhf.gguf_files", description=__doc__)
    parser.add_argument("file", type=Path, help="a GGUF file; tokenizer files beside it are used")
    parser.add_argument("into", type=Path, help="folder for the model in transformers' format")
    parser.add_argument(
        "--alone", action="store_true", help="look for tokenizer files in INTO, not beside the file"
    )
    options = parser.parse_args(arguments)
    try:
        if not options.alone:
            options.into.mkdir(parents=True, exist_ok=True)
            for name in TOKENIZER_FILES:
                if (tokenizer_file := options.file.parent / name).is_file():
                    shutil.copyfile(tokenizer_file, options.into / name)
        convert(options.file, options.into)
    except (ContractError, OSError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
