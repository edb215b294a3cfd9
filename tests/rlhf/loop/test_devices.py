"""A process without a GPU of its own is refused in words, before torch fails."""

import pytest
import torch

from training.contract import ContractError
from training.rlhf.runtime.run_folder import resolve_device


def test_more_processes_than_gpus_are_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(
        ContractError, match=r"process 2 of this machine has no GPU, because it sees 2; lower processes"
    ):
        resolve_device("auto", local_rank=2)
    assert resolve_device("cpu", local_rank=7) == torch.device("cpu")
