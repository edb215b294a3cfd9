"""Client of a Hugging Face hub: base models are looked up and downloaded. Imports no Django and no torch.

RONDO_HUB_TOKEN=… python -m training.files.hub OWNER/NAME COMMIT --into FOLDER [--only FILE …]
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DEFAULT_ENDPOINT = "https://huggingface.co"


class HubError(Exception):
    """A hub's refusal, or a reply that cannot be used."""


class HubUnreachableError(HubError):
    """The hub does not answer. The same may be tried again."""


def endpoint() -> str:
    """Return the hub's address: HF_ENDPOINT, or that of huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


@contextmanager
def translate_hub_errors(repository: str, revision: str) -> Iterator[None]:
    """Raise errors of `huggingface_hub` and its HTTP client as `HubError`."""
    # Imported late: it takes a second, and most processes never ask a hub.
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{repository} is gated. Accept its terms on {endpoint()}/{repository} with the account of "
            "RONDO_HUB_TOKEN, then try again."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{repository} has no revision {revision!r}. Name a branch, tag or commit.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{endpoint()} has no model {repository}, or does not show it. Check the spelling; for a private "
            "model set RONDO_HUB_TOKEN to a token that may read it."
        ) from error
    except errors.HFValidationError as error:
        raise HubError(f"{repository!r} is no model id. Write OWNER/NAME, as on {endpoint()}.") from error
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise _unreachable(error) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status == 429 or status >= 500:
            raise HubUnreachableError(
                f"The hub at {endpoint()} answered {status}. Try again later."
            ) from error
        raise HubError(f"The hub at {endpoint()} refused {repository} with status {status}.") from error
    except OSError:
        # The disk: whoever called knows the folder.
        raise
    except Exception as error:
        # Only requests are made in here, and the errors of the client's transport have no public name.
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> HubUnreachableError:
    return HubUnreachableError(
        f"The hub at {endpoint()} cannot be reached ({_reason(error)}). Connect this machine to it, set "
        "HF_ENDPOINT to a mirror, or copy the model's folder here and add it as a folder."
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# ── A model on a hub before it is downloaded: its commit, licence and files ──


LOOKUP_SECONDS = 10.0
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")

_WANTED = re.compile(r"[^/]+\.(?:json|jinja|model|txt)|(?:LICEN[CS]E|NOTICE|USE_POLICY|README)[^/]*")
_LONGEST_NAME = 200
_WEIGHTS = re.compile(r"model[^/]*\.safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """A model at one commit."""

    repository: str
    revision: str
    """The commit; it never changes, as a branch does."""
    licence: str
    """As the model's card names it; empty where it names none."""
    licence_url: str
    files: dict[str, int] = field(default_factory=dict)
    """Sizes in bytes of the files that are downloaded."""

    @property
    def size(self) -> int:
        """Return the bytes to download."""
        return sum(self.files.values())

    @property
    def small_files(self) -> tuple[str, ...]:
        """Return the files besides the weights, by which a model can be refused."""
        return tuple(name for name in self.files if not _WEIGHTS.fullmatch(name))


def look_up(repository: str, *, revision: str = "", token: str = "") -> HubModel:
    """Ask the hub for a model; an empty revision is its main branch.

    Raises `HubError`: no such model or revision, gated, no weights as safetensors; `HubUnreachableError`.
    """
    if not REPOSITORY.fullmatch(repository):
        raise HubError(f"{repository[:100]!r} is no model id. Write OWNER/NAME, as on {endpoint()}.")
    from huggingface_hub import HfApi

    api: Any = HfApi(endpoint=endpoint(), token=token or False)
    with translate_hub_errors(repository, revision):
        model = api.model_info(
            repository, revision=revision or None, files_metadata=True, timeout=LOOKUP_SECONDS
        )
    files = {
        file.rfilename: int(file.size or 0) for file in model.siblings or () if _is_wanted(file.rfilename)
    }
    if not any(_WEIGHTS.fullmatch(name) for name in files):
        raise HubError(
            f"{repository} has no weights in transformers' format (model*.safetensors). Choose a repository "
            "that has them."
        )
    licence, url = _licence(model, repository)
    return HubModel(
        repository=repository, revision=str(model.sha), licence=licence, licence_url=url, files=files
    )


def _is_wanted(name: str) -> bool:
    return bool(_WEIGHTS.fullmatch(name) or _WANTED.fullmatch(name))


def _licence(model: Any, repository: str) -> tuple[str, str]:
    """Return name and address of the licence, from the card's metadata or the tags."""
    card = model.card_data.to_dict() if model.card_data else {}
    tags = [tag.removeprefix("license:") for tag in model.tags or () if tag.startswith("license:")]
    name = card.get("license") or next(iter(tags), "")
    if isinstance(name, list):
        name = ", ".join(map(str, name))
    if name == "other":
        name = card.get("license_name") or name
    page = f"{endpoint()}/{repository}"
    link = str(card.get("license_link") or "")
    return str(name)[:_LONGEST_NAME], link if _is_of_the_hub(link) else page


def _is_of_the_hub(link: str) -> bool:
    """Return whether a link leads to the hub over TLS: whoever wrote the card may have written anything."""
    try:
        parts = urlsplit(link)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    hubs = {"huggingface.co", urlsplit(endpoint()).hostname}
    return (
        parts.scheme == "https"
        and host in hubs
        and port in (None, 443)
        and parts.username is None
        and link.isprintable()
        and not any(char.isspace() or char == "\\" for char in link)
    )


# ── Download files of a model at one commit. What is there already is not downloaded again ──


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
    parser = argparse.ArgumentParser(
        prog="python -m training.files.hub", description="Download files of a model at one commit."
    )
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
