"""Data sets of the Hugging Face hub: their data files, fetched into huggingface-hub's own cache."""

import re
from pathlib import Path

from django.utils.translation import gettext as _

from annotation.errors import Refusal

_ID = re.compile(r"(?:hf://)?(?:datasets/)?([\w.-]+/[\w.-]+)")
_DATA = ["*.parquet", "*.jsonl", "*.jsonl.gz", "*.json", "*.csv"]


def hub_id(name: str) -> str | None:
    """The id of a data set, of `owner/name` or `hf://datasets/owner/name`; None of anything else."""
    match = _ID.fullmatch(name)
    return match.group(1) if match else None


def fetch(name: str, *, revision: str | None = None) -> Path:
    """The folder with the data files of a data set; Parquet alone where there is Parquet.

    No code of the data set is run, and no script fetched. Refuses what is not there, what is private, and a
    machine without a network, each in a sentence.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        files = HfApi().list_repo_files(name, repo_type="dataset", revision=revision)
        patterns = _DATA[:1] if any(file.endswith(".parquet") for file in files) else _DATA
        return Path(
            snapshot_download(
                name, repo_type="dataset", revision=revision, allow_patterns=patterns, max_workers=2
            )
        )
    except RepositoryNotFoundError:
        raise Refusal(
            "unknown_dataset",
            _(
                "The hub has no data set %(name)r that this machine may read. Check the name; "
                "for a private one set HF_TOKEN."
            ),
            field="file",
            name=name,
        ) from None
    except Exception as error:  # The library's own, its HTTP client's, the disk's: they change with versions.
        raise Refusal(
            "dataset_not_fetched",
            _(
                "The data set %(name)r cannot be fetched (%(error)s). Where there is no network, "
                "fetch it elsewhere with `hf download --repo-type dataset %(name)s` and import "
                "the folder."
            ),
            field="file",
            name=name,
            error=type(error).__name__,
        ) from None
