"""A model on a hub before it is downloaded: its commit, licence and files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from training.files.hub.errors import HubError, endpoint, translate_hub_errors

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
