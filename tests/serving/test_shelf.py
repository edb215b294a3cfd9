"""Checkpoints in memory: who is dropped, who never is, and what they weigh."""

from __future__ import annotations

import gc
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.serving.conftest import Folders, write_checkpoint
from tests.tiny import tiny_model_folder
from training.contract.methods.common import LoraSettings
from training.rlhf.model.backbone import Backbone
from training.rlhf.rollout.generate import rollout
from training.rlhf.sampling import SamplingParameters
from training.serving.catalogue import Catalogue
from training.serving.http import RequestError
from training.serving.model import Shelf
from training.serving.worker import NotNowError


@pytest.fixture
def shelf(folders: Folders) -> Shelf:
    backbone = Backbone.load(folders.base, device="cpu", dtype=torch.float32)
    return Shelf(backbone, Catalogue(folders.base, folders.checkpoints), max_adapters=2)


def use(shelf: Shelf, *names: str) -> None:
    for name in names:
        with shelf.holding(name):
            pass


def test_the_one_not_used_for_longest_makes_place(shelf: Shelf):
    use(shelf, "zero", "warm", "zero", "hot")
    assert shelf.loaded == ("zero", "hot")


def test_one_in_use_is_never_dropped(shelf: Shelf):
    with shelf.holding("zero"):
        use(shelf, "warm", "hot", "reward")
        assert shelf.loaded == ("zero", "reward")
        with shelf.holding("hot"), pytest.raises(NotNowError, match="max-adapters"):
            use(shelf, "warm")
        # The base takes no place, and what is there is there.
        with shelf.holding("hot", shelf.base_name, "zero") as (hot, base, zero):
            assert base.adapter is None
            assert {hot.name, zero.name} == set(shelf.loaded)
    use(shelf, "warm")
    assert shelf.loaded == ("zero", "warm")


def test_two_that_do_not_fit_together_give_back_the_one_that_did(shelf: Shelf):
    with shelf.holding("zero"):
        with pytest.raises(NotNowError), shelf.holding("hot", "warm"):
            pass
        use(shelf, "warm")
        assert shelf.loaded == ("zero", "warm")


def test_an_answer_that_has_begun_ends_with_the_content_that_it_began_with(shelf: Shelf, folders: Folders):
    folder = folders.checkpoints / "changing"
    write_checkpoint(folders.base, folder, trained=0.3, seed=1)
    try:
        with shelf.holding("changing") as (before,):
            shutil.rmtree(folder)
            write_checkpoint(folders.base, folder, trained=0.3, seed=2)
            with shelf.holding("changing") as (after,):
                assert before.adapter != after.adapter
                assert list(shelf.loaded) == ["changing", "changing"]
        # What it was before makes place when another content is asked for.
        use(shelf, "warm", "changing")
        assert list(shelf.loaded) == ["warm", "changing"]
    finally:
        shutil.rmtree(folder)
    with pytest.raises(RequestError):
        use(shelf, "changing")
    assert list(shelf.loaded) == ["warm"]


def bytes_of_tensors() -> int:
    """All that tensors hold in this process, each piece of memory once."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        # Asked of its exact type: a weak reference whose object is gone answers isinstance with an error,
        # and a tensor that a compiler in another test pretends to have (FakeTensor) has no memory.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"
    }
    return sum(storages.values())


def test_eight_checkpoints_of_one_base_weigh_little_more_than_one(tmp_path: Path):
    base = tiny_model_folder(tmp_path / "base")
    # An adapter of the share of the base that a small one has of a real base: the tiny base is very narrow.
    shape = LoraSettings(rank=1, targets=("q_proj", "v_proj"))
    before = bytes_of_tensors()
    backbone = Backbone.load(base, device="cpu", dtype=torch.float32)
    sizes = [bytes_of_tensors() - before]
    for number in range(8):
        backbone.add_adapter(f"adapter {number}", shape, seed=number, trainable=False)
        rollout(backbone, [[0, 65, 66]], SamplingParameters(max_tokens=2), adapter=f"adapter {number}")
        sizes.append(bytes_of_tensors() - before)
    [adapter] = {later - earlier for earlier, later in pairwise(sizes)}
    # A and B of two layers in each of three blocks, float32: nothing of the base is there twice.
    assert adapter == 3 * 4 * ((48 + 48) + (48 + 24))
    assert sizes[8] <= 1.15 * sizes[1]
