"""Fixtures of base models: inspections that are forked, and a tiny Llama in a folder."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.tiny import tiny_model_folder
from training.services import base_models
from training.services.runs import launcher


@pytest.fixture
def forked_inspections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fork inspections from a process that has imported torch: each is spared seconds."""
    from tests.forked import Forked

    def run(
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        beat: Callable[[], object],
        seconds: float | None = None,
    ) -> launcher.Ended:
        if tuple(command[:3]) != base_models.INSPECT_COMMAND:
            return launcher.run_process(command, environment=environment, beat=beat, seconds=seconds)
        beat()
        output, errors = tmp_path / "inspection-output", tmp_path / "inspection-errors"
        for file in (output, errors):
            file.write_text("")
        code = Forked(command[2], command[3:], environment, output, errors).wait()
        lines = errors.read_text().strip().splitlines() or [""]
        return launcher.Ended(code=code, output=output.read_text(), last_line=lines[-1].strip())

    monkeypatch.setattr(base_models, "run_process", run)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in a folder of the server."""
    return tiny_model_folder(tmp_path_factory.mktemp("models") / "tiny-llama")
