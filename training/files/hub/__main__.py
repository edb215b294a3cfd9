"""Download files of a model at one commit. What is there already is not downloaded again.

RONDO_HUB_TOKEN=… python -m training.files.hub OWNER/NAME COMMIT --into FOLDER [--only FILE …]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from training.files.hub.errors import HubError, HubUnreachableError, endpoint, translate_hub_errors
from training.files.hub.lookup import look_up

TOKEN_VARIABLE = "RONDO_HUB_TOKEN"  # noqa: S105 - the name of a variable
UNREACHABLE = 75
"""Exit status where trying again may help (EX_TEMPFAIL)."""


def download(repository: str, revision: str, folder: Path, *, token: str, only: tuple[str, ...] = ()) -> None:
    """Download a model's files into `folder`; a file that was cut off goes on. Raises `HubError`."""
    from huggingface_hub import hf_hub_download

    model = look_up(repository, revision=revision, token=token)
    for name in only or tuple(model.files):
        with translate_hub_errors(repository, revision):
            hf_hub_download(
                repository,
                name,
                revision=model.revision,
                local_dir=folder,
                token=token or False,
                endpoint=endpoint(),
            )


def main(arguments: list[str] | None = None) -> int:
    """Download from the command line: 0 when all is there, 75 where the hub does not answer, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m training.files.hub", description=__doc__)
    parser.add_argument("repository")
    parser.add_argument("revision")
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=())
    options = parser.parse_args(arguments)
    try:
        download(
            options.repository,
            options.revision,
            options.into,
            token=os.environ.get(TOKEN_VARIABLE, ""),
            only=tuple(options.only),
        )
    except HubUnreachableError as error:
        print(error, file=sys.stderr)
        return UNREACHABLE
    except HubError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{options.into} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
