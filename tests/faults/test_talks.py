"""Three annotators talk while model server and web processes are killed: nothing is lost or doubled."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.installation import Installation
from tests.faults.talks import PEOPLE, Talker
from tests.loop.recipe import TINY
from tests.tiny import tiny_model_folder
from tests.webapp.running import PATIENCE, ROOT, free_port

TURNS = 4


class Talks(Installation):
    """An installation whose models are a stub that can be killed."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.models_port = free_port()
        super().__init__(folder, models)
        self.models: subprocess.Popen[bytes] | None = None

    @property
    def variables(self) -> dict[str, str]:
        """With the stub in place of the model server."""
        return {**super().variables, "RONDO_MODEL_SERVER_URL": f"http://127.0.0.1:{self.models_port}"}

    def start_models(self) -> None:
        """Start the stub."""
        words = [sys.executable, "-m", "tests.faults.talks", "serve", str(self.models_port)]
        self.models = subprocess.Popen(words, cwd=ROOT)

    def kill_models(self) -> None:
        """SIGKILL the stub."""
        assert self.models is not None
        self.models.send_signal(signal.SIGKILL)
        self.models.wait()

    def scene(self, what: str) -> list[object]:
        """The answer of `tests.faults.talks`."""
        return list(json.loads(self._run([sys.executable, "-m", "tests.faults.talks", what])))

    def close(self) -> None:
        """End the stub too."""
        if self.models is not None:
            self.kill_models()
        super().close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Talks]:
    tiny_model_folder(tmp_path / "models" / TINY)
    installation = Talks(tmp_path, tmp_path / "models")
    yield installation
    installation.close()


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(600)
def test_conversations_survive_the_death_of_the_model_server_and_of_web_processes(house: Talks):
    chance = random.Random(1)
    house._run([sys.executable, "manage.py", "migrate", "--skip-checks", "--verbosity", "0"])
    sessions = [str(session) for session in house.scene("prepare")]
    house.start_models()
    house.start()
    people = [Talker(house.port, session, seed, TURNS) for seed, session in enumerate(sessions)]
    threads = [threading.Thread(target=person.talk, daemon=True) for person in people]
    for thread in threads:
        thread.start()

    def judged(number: int) -> bool:
        return sum(len(person.keys) for person in people) >= number

    # Within half a second of streaming each: in the middle of somebody's turn.
    house.wait(lambda: judged(2), "the first annotations")
    house.kill_models()
    house.start_models()
    house.wait(lambda: judged(5), "annotations after the model server")
    assert house.kill("web", chance)
    house.wait(lambda: judged(8), "annotations after a web process")
    assert house.kill("web", chance)
    house.kill_models()
    house.start_models()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    assert all(person.done.is_set() for person in people), house.logs()

    seen: list[dict] = house.scene("look")  # type: ignore[assignment, type-arg]
    house.stop()
    assert sorted(conversation["annotator"] for conversation in seen) == list(PEOPLE)
    keys = {key for person in people for key in person.keys}
    assert {key for conversation in seen for turn in conversation["turns"] for key in turn["keys"]} == keys
    assert len(keys) == len(PEOPLE) * TURNS
    for talk in seen:
        assert talk["ended"]
        assert [turn["index"] for turn in talk["turns"]] == list(range(1, TURNS + 1))
        for turn, following in zip(talk["turns"], [*talk["turns"][1:], None], strict=True):
            assert (len(turn["keys"]), turn["assignments"]) == (1, 1)
            # Whole, and as the seed gives it, however often the stream broke off.
            for seed, text, stored in turn["responses"]:
                assert text == stored == "".join(f"{seed}-{number} " for number in range(10))
            if following is not None:
                assert turn["went_on"] in turn["best"]
                assert following["messages"][-2]["content"] == turn["went_on"]
