"""What the trainer's tests share: one tiny base model for the whole session."""

from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_model_folder
from training.rlhf.backbone import Backbone


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny base model. Tests read it and never write to it."""
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def backbone(base: Path) -> Backbone:
    """The tiny base, freshly loaded, float32 on the CPU."""
    return Backbone.load(base, device="cpu", dtype=torch.float32)
