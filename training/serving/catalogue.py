"""Available models: the base and the checkpoint folders. Imports no torch."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.contract import ContractError, read_manifest
from training.contract.checkpoint import CHECKPOINT_NAME, MANIFEST_FILE
from training.serving.http import RequestError
from training.store import NotInStoreError, Store, StoreError, read_known

# ── Models of the store that machines share: fetched when one is asked for, so no disk need be shared ──


logger = logging.getLogger(__name__)

_LISTED_FOR_SECONDS = 5.0
_CHECKPOINTS, _MODELS = "checkpoints", "models"


class SharedModels:
    """Checkpoints and base models of one store. Thread-safe; an unreachable store is logged."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: frozenset[str] = frozenset()
        self._listed_at = -_LISTED_FOR_SECONDS
        self._manifests: dict[str, tuple[str, str]] = {}
        """Kind and base of each checkpoint that was asked for."""

    def checkpoints(self) -> frozenset[str]:
        """Names of the checkpoints in the store, some seconds old; the last known ones while it is away."""
        if time.monotonic() - self._listed_at >= _LISTED_FOR_SECONDS:
            self._listed_at = time.monotonic()
            try:
                self._names = frozenset(self._store.names(_CHECKPOINTS))
            except StoreError as error:
                logger.warning("The checkpoints of the store are not known now: %s", error)
        return self._names

    def is_gone(self, folder: Path) -> bool:
        """Return whether a local checkpoint was in the store once and is no longer there."""
        return bool(read_known(folder).digests) and folder.name not in self.checkpoints()

    def fetch_checkpoint(self, folder: Path) -> bool:
        """Bring a checkpoint here; whether there is one. Raises `StoreError` where it cannot be had."""
        try:
            self._store.fetch(f"{_CHECKPOINTS}/{folder.name}", folder)
        except NotInStoreError:
            return False
        self._listed_at = -_LISTED_FOR_SECONDS
        return True

    def kind(self, name: str) -> str | None:
        """Return the kind of a checkpoint in the store, cached; None where it is unknown."""
        kind_and_base = self._kind_and_base(name)
        return kind_and_base and kind_and_base[0]

    def base(self, name: str) -> str | None:
        """Return the name of the base of a checkpoint in the store, cached; None where it is unknown."""
        kind_and_base = self._kind_and_base(name)
        return kind_and_base and kind_and_base[1]

    def _kind_and_base(self, name: str) -> tuple[str, str] | None:
        if name not in self._manifests:
            try:
                manifest = json.loads(self._store.read(f"{_CHECKPOINTS}/{name}", MANIFEST_FILE))
                self._manifests[name] = (str(manifest["kind"]), str(manifest["base_model"]))
            except (StoreError, ValueError, KeyError, TypeError) as error:
                logger.warning("Checkpoint %s of the store does not say what it is: %s", name, error)
                return None
        return self._manifests[name]

    def bases(self) -> frozenset[str]:
        """Return the names of the base models in the store; none while it is away."""
        try:
            return frozenset(self._store.names(_MODELS))
        except StoreError as error:
            logger.warning("The base models of the store are not known now: %s", error)
            return frozenset()

    def fetch_base(self, folder: Path) -> None:
        """Bring a base model here that somebody put into the store. Raises `StoreError`."""
        self._store.fetch(f"{_MODELS}/{folder.name}", folder)

    def offer_base(self, folder: Path) -> None:
        """Send a base model to the store where it has none of that name, for machines without it."""
        try:
            self._store.offer(f"{_MODELS}/{folder.name}", folder)
        except StoreError as error:
            logger.warning("%s is not in the store: %s", folder.name, error)


# ── Catalogue ──


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Models by name. A checkpoint's name is its folder's; a folder that appears is a model at once.

    With `shared` so is what appears in the store, and what went from there is none any more.
    """

    base_folder: Path
    checkpoints_folder: Path
    shared: SharedModels | None = None

    @property
    def base_name(self) -> str:
        """Return the base model's id: its folder's name."""
        return self.base_folder.name

    def folder(self, name: str) -> Path:
        """Return the folder of checkpoint `name`, fetched where it is in the store alone.

        Raises `RequestError`: 404 where there is none, 503 where the store does not give it.
        """
        # The pattern knows no separator and no leading dot: a name cannot leave the folder.
        if CHECKPOINT_NAME.fullmatch(name):
            folder = self.checkpoints_folder / name
            if self._is_here(folder) or self._is_fetched(folder):
                return folder
        raise unknown_model(name)

    def _is_here(self, folder: Path) -> bool:
        is_one = CHECKPOINT_NAME.fullmatch(folder.name) and (folder / MANIFEST_FILE).is_file()
        return bool(is_one) and not (self.shared and self.shared.is_gone(folder))

    def _is_fetched(self, folder: Path) -> bool:
        # What is here is either as good as it was sent, or is gone from there.
        if self.shared is None or folder.exists():
            return False
        try:
            return self.shared.fetch_checkpoint(folder)
        except StoreError as error:
            message = f"Checkpoint '{folder.name}' cannot be fetched: {error}"
            raise RequestError(
                503, message, code="store_unavailable", param="model", retry_after=5
            ) from error

    def checkpoints(self) -> list[Path]:
        """Folders of the checkpoints that are here, by name."""
        try:
            folders = sorted(self.checkpoints_folder.iterdir())
        except OSError:
            return []
        return [folder for folder in folders if self._is_here(folder)]

    def names(self) -> list[str]:
        """Ids of all models, the base first."""
        here = {folder.name for folder in self.checkpoints()}
        return [self.base_name, *sorted(here | (self.shared.checkpoints() if self.shared else set()))]

    def entries(self) -> list[dict[str, Any]]:
        """Return all models as OpenAI's `/v1/models` lists them, with their kind beside."""
        return [self.entry(name) for name in self.names()]

    def entry(self, name: str) -> dict[str, Any]:
        """Return one model. Raises `RequestError` 404 where there is none."""
        if name == self.base_name:
            return model_entry(name, self.base_folder / "config.json", kind="starter")
        if (
            self.shared
            and not (self.checkpoints_folder / name).exists()
            and name in self.shared.checkpoints()
        ):
            # To say that there is one, nothing need be fetched.
            return model_entry(name, self.checkpoints_folder / name, kind=self.shared.kind(name))
        manifest = self.folder(name) / MANIFEST_FILE
        try:
            kind: str | None = read_manifest(manifest.parent).kind
        except ContractError:
            # Asking it to answer will say what is wrong with it.
            kind = None
        return model_entry(name, manifest, kind=kind)


def model_entry(name: str, file: Path, *, kind: str | None) -> dict[str, Any]:
    """Return a model as OpenAI's `/v1/models` lists it. file: its age is the model's."""
    try:
        created = int(file.stat().st_mtime)
    except OSError:
        created = 0
    return {"id": name, "object": "model", "created": created, "owned_by": "rondo", "kind": kind}


def unknown_model(name: str) -> RequestError:
    """There is no such model."""
    message = f"The model '{name[:120]}' does not exist. GET /v1/models lists those that do."
    return RequestError(404, message, code="model_not_found", param="model")
