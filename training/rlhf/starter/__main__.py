"""Fetch the starter model from the command line.

python -m training.rlhf.starter --into var/models
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.rlhf.starter import LOCAL_FOLDER_VARIABLE, STARTER_NAME, StarterError, ensure


def main(arguments: list[str] | None = None) -> int:
    """Fetch the starter model from the command line; 0 when it is there, 1 when it cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m training.rlhf.starter", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="models folder, e.g. var/models")
    parser.add_argument("--from-folder", type=Path, help=f"local model; default {LOCAL_FOLDER_VARIABLE}")
    options = parser.parse_args(arguments)
    last: tuple[str, int] = ("", -1)

    def show(message: str, done: int, total: int) -> None:
        nonlocal last
        tenths = 10 * done // total if total else 0
        if (message, tenths) != last:
            last = (message, tenths)
            print(f"{message}: {10 * tenths} %" if total else message, flush=True)

    try:
        folder = ensure(options.into, report=show, local_folder=options.from_folder)
    except StarterError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{STARTER_NAME} is in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
