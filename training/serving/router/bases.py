"""The base models that can be served, and the base that each model stands on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.contract import CHECKPOINT_NAME, ContractError, read_manifest
from training.rlhf import starter
from training.serving.catalogue import Catalogue, entry_of, unknown_model
from training.serving.errors import RequestError


@dataclass(frozen=True, slots=True)
class Bases:
    """All models by name. A folder that appears whole in the models folder is a base at once."""

    models_folder: Path
    catalogue: Catalogue
    """Of the default base; it knows the checkpoints of all."""

    @property
    def default(self) -> str:
        """Return the base that is served first."""
        return self.catalogue.base_name

    def names(self) -> list[str]:
        """Names of all bases, the default first."""
        try:
            folders = sorted(self.models_folder.iterdir())
        except OSError:
            folders = []
        here = {
            folder.name
            for folder in folders
            if CHECKPOINT_NAME.fullmatch(folder.name) and starter.is_complete(folder)
        }
        shared = self.catalogue.shared
        others = here | (shared.bases() if shared else frozenset())
        return [self.default, *sorted(others - {self.default})]

    def folder(self, base: str) -> Path:
        """Return a base's folder."""
        return self.models_folder / base

    def base_of(self, model: str) -> str:
        """Return the base that a model stands on.

        Raises `RequestError`: 404 where there is no such model, 409 where its base is not here.
        """
        names = self.names()
        if model in names:
            return model
        base = self._base_of_checkpoint(model)
        if base in names:
            return base
        if len(names) == 1:
            # The folder of the base may bear another name: its server compares digests.
            return self.default
        message = f"Checkpoint '{model}' stands on base '{base}', which is not here. Add that base model."
        raise RequestError(409, message, code="base_missing", param="model")

    def _base_of_checkpoint(self, model: str) -> str:
        shared = self.catalogue.shared
        if not CHECKPOINT_NAME.fullmatch(model):
            raise unknown_model(model)
        if shared and not (self.catalogue.checkpoints_folder / model).exists():
            if model not in shared.checkpoints():
                raise unknown_model(model)
            return shared.base(model) or self.default
        try:
            return read_manifest(self.catalogue.folder(model)).base_model
        except ContractError:
            # The server of the default base says what is wrong with it.
            return self.default

    def entries(self) -> list[dict[str, Any]]:
        """Return all models as OpenAI's `/v1/models` lists them, each with its base."""
        bases = self.names()
        checkpoints = [name for name in self.catalogue.names()[1:] if name not in bases]
        return [self.entry(name) for name in (*bases, *checkpoints)]

    def entry(self, name: str) -> dict[str, Any]:
        """Return one model. Raises `RequestError` 404 where there is none."""
        if name in self.names():
            return entry_of(name, self.folder(name) / "config.json", kind="starter") | {"base": name}
        return self.catalogue.entry(name) | {"base": self._base_of_checkpoint(name)}
