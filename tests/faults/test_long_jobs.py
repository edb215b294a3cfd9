"""Four long jobs wait for a model server that never answers; what people wait for goes on beside them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.webapp.running import ROOT, free_port

AT_WORK = """
SELECT (SELECT count(*) FROM training_judge WHERE worker <> '')
     + (SELECT count(*) FROM training_roundstep WHERE worker <> '')
"""


class _Waiting(Installation):
    """An installation whose model server takes every request and answers none."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.models_port = free_port()
        super().__init__(folder, models)
        words = [sys.executable, "-m", "tests.faults.long_jobs", "serve", str(self.models_port)]
        self.models = subprocess.Popen(words, cwd=ROOT)

    @property
    def variables(self) -> dict[str, str]:
        """With the silent one in place of the model server."""
        return {**super().variables, "RONDO_MODEL_SERVER_URL": f"http://127.0.0.1:{self.models_port}"}

    def close(self) -> None:
        """End the silent server too."""
        self.models.kill()
        self.models.wait()
        super().close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[_Waiting]:
    tiny_model_folder(tmp_path / "models" / TINY)
    installation = _Waiting(tmp_path, tmp_path / "models")
    yield installation
    installation.close()


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_an_import_of_one_row_is_done_in_seconds_while_four_long_jobs_hold_their_lane(house: _Waiting):
    scene = [sys.executable, "-m", "tests.faults.long_jobs"]
    house._run([sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"])
    house._run([*scene, "prepare"])
    house.start()
    house.wait(lambda: house.value(AT_WORK) == 4, "four long jobs at work")

    imported = json.loads(house._run([*scene, "import"]))
    of_it = f"FROM annotation_fileimport WHERE id = {imported}"
    house.wait(lambda: house.value(f"SELECT state {of_it}") == "finished", "the import", seconds=30)
    seconds = house.value(f"SELECT extract(epoch FROM finished_at - created_at) {of_it}")
    print(f"an import of one row beside four long jobs: {seconds:.1f} s")
    assert seconds < 30
    assert house.value(AT_WORK) == 4
