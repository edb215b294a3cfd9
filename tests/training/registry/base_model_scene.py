"""Additions of base models: requested, done by a worker, and what they leave in the folder of models."""

import json
from pathlib import Path

from pytest_django import Settings

from annotation.models import User
from training.choices import BaseOrigin
from training.models import BaseModelAddition
from training.services.base_models import NewBaseModel, do_addition, request_base_model


def added(request: NewBaseModel, user: User) -> BaseModelAddition:
    """The addition after a worker has done it."""
    addition = request_base_model(new_base=request, requested_by=user)
    do_addition(addition.pk)
    addition.refresh_from_db()
    return addition


def of_folder(folder: Path) -> NewBaseModel:
    return NewBaseModel(origin=BaseOrigin.FOLDER, folder=str(folder))


def leftovers(settings: Settings) -> list[str]:
    """Return the names in the folder of base models."""
    folder = Path(settings.RONDO_MODELS)
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def change_json(folder: Path, name: str, **values: object) -> None:
    file = folder / name
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
