"""Downloads of runs and checkpoints by way of the API, and the reasons for a round's decision."""

import io
import zipfile

import pytest
from django.conf import settings

from annotation.models import Project, User
from tests.api.scene import Asker, Scene
from tests.training.registry.registry_rows import make_trained
from training.models import CheckpointExport, Round
from training.models.rounds import reason


def content(answer) -> bytes:
    return b"".join(answer.streaming_content)


def test_a_run_is_downloaded_whole_without_secrets(scene: Scene, as_carol: Asker):
    scene.run.path.mkdir(parents=True)
    (scene.run.path / "log.txt").write_text(f"the key is {settings.SECRET_KEY}\n")
    (scene.run.path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    answer = as_carol.get(f"/runs/{scene.run.pk}/archive/", Accept="application/zip")
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/zip")
    with zipfile.ZipFile(io.BytesIO(content(answer))) as archive:
        assert sorted(archive.namelist()) == ["reward-tea/log.txt", "reward-tea/metrics.jsonl"]
        assert archive.read("reward-tea/log.txt") == b"the key is [struck out]\n"


def test_metrics_are_downloaded_for_tensorboard(scene: Scene, as_carol: Asker, tmp_path):
    scene.run.path.mkdir(parents=True)
    (scene.run.path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}\n')
    file = tmp_path / "events.out.tfevents.1.run"
    file.write_bytes(content(as_carol.get(f"/runs/{scene.run.pk}/events/")))
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    steps = [event.step for event in loader.EventFileLoader(str(file)).Load() if event.summary.value]
    assert steps == [1, 2]


def test_a_finished_export_is_downloaded(project: Project, as_carol: Asker):
    checkpoint = make_trained("tea-policy", project)
    export = CheckpointExport.objects.create(checkpoint=checkpoint, state="finished", folder="exports/1")
    address = f"/checkpoints/tea-policy/exports/{export.pk}/archive/"
    assert as_carol.get(address).status_code == 404
    export.path.mkdir(parents=True)
    (export.path / "README.md").write_text("# Tea\n")
    with zipfile.ZipFile(io.BytesIO(content(as_carol.get(address)))) as archive:
        assert archive.read("tea-policy/README.md") == b"# Tea\n"


@pytest.mark.parametrize(
    ("language", "sentence"), [("en", "3 of 5 annotations by people are in."), ("de", "von 5")]
)
def test_a_decision_is_said_in_the_language_of_the_request(
    scene: Scene, carol: User, as_carol: Asker, language: str, sentence: str
):
    Round.objects.update(reasons=[reason("people_came", judgments=3, wanted=5)])
    carol.language = language
    carol.save()
    [text] = as_carol.get("/projects/tea/rounds/1/", **{"Accept-Language": language}).json()["reasons"]
    assert sentence in text
