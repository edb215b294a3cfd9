"""Ground of the loop tests: a tiny model."""

from pathlib import Path

import pytest

from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models folder that holds the tiny model."""
    folder = tmp_path_factory.mktemp("models")
    tiny_model_folder(folder / TINY)
    return folder
