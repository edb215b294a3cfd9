"""Models of the store that machines share: fetched when one is asked for, so no disk need be shared."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from training.contract import MANIFEST_FILE
from training.store import NotInStoreError, Store, StoreError, known_of

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
        return bool(known_of(folder).digests) and folder.name not in self.checkpoints()

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
