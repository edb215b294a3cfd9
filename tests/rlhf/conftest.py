"""Fixtures of the trainer's tests: one tiny base model for the whole session."""

import os
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_model_folder
from training.rlhf.model.backbone import Backbone
from training.rlhf.starter import ensure


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny base model. Tests read it and never write to it."""
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the real starter model, made once for all processes that test, and never written to."""
    shared = tmp_path_factory.getbasetemp()
    return ensure((shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "starter")


@pytest.fixture
def backbone(base: Path) -> Backbone:
    """The tiny base, freshly loaded, float32 on the CPU."""
    return Backbone.load(base, device="cpu", dtype=torch.float32)
