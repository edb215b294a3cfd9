"""Base models from the hub and of other model servers."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from pytest_django import Settings

from annotation.choices import JobState
from annotation.errors import Refusal
from annotation.models import AuditEntry, User
from tests.training.registry.base_model_scene import added, change_json, leftovers
from tests.training.registry.stub_hub import COMMIT, StubHub, running_hub
from training.choices import BaseOrigin
from training.engine import Engine
from training.files.hub import download
from training.models import BaseModel, BaseModelAddition, Checkpoint
from training.services import base_models
from training.services.base_models import (
    NewBaseModel,
    cancel_addition,
    do_addition,
    look_up_on_hub,
    request_base_model,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("forked_inspections")]

MEBIBYTE = 1024**2


@pytest.fixture
def hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubHub]:
    """A hub with the tiny Llama under the Apache licence."""
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        running.folders["maker/tiny-llama"] = Path(shutil.copytree(llama, tmp_path / "on-hub"))
        running.licences["maker/tiny-llama"] = "apache-2.0"
        yield running


def of_hub(licence: str | None = "apache-2.0", revision: str = "") -> NewBaseModel:
    return NewBaseModel(
        origin=BaseOrigin.HUB, repository="maker/tiny-llama", revision=revision, licence=licence
    )


# ── The hub ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_a_model_of_the_hub_is_pinned_to_its_commit_and_downloaded_once_its_licence_is_accepted(
    hub: StubHub, admin: User, settings: Settings
):
    hub_model = look_up_on_hub(repository="maker/tiny-llama")
    assert (hub_model.revision, hub_model.licence) == (COMMIT, "apache-2.0")
    assert hub_model.size == sum(file.stat().st_size for file in hub.folders["maker/tiny-llama"].iterdir())
    for licence in (None, "mit"):
        with pytest.raises(Refusal, match=r"apache-2\.0") as refused:
            request_base_model(new_base=of_hub(licence), requested_by=admin)
        assert refused.value.field == "licence"
    addition = added(of_hub(), admin)
    assert (addition.state, addition.error) == (JobState.FINISHED, "")
    base = BaseModel.objects.get(name="tiny-llama")
    assert (base.repository, base.revision, base.licence) == ("maker/tiny-llama", COMMIT, "apache-2.0")
    assert leftovers(settings) == ["tiny-llama"]
    assert not (base.path / ".cache").exists()


def test_a_download_that_was_cut_off_goes_on_where_it_was(hub: StubHub, tmp_path: Path):
    weights = hub.folders["maker/tiny-llama"] / "model.safetensors"
    weights.write_bytes(random.Random(1).randbytes(25 * MEBIBYTE))
    hub.cut_after = {weights.name: 15 * MEBIBYTE}
    download("maker/tiny-llama", COMMIT, tmp_path / "into", token="")
    # The client writes pieces of 10 MiB: the first was whole.
    assert hub.ranges == [(weights.name, f"bytes={10 * MEBIBYTE}-")]
    assert (tmp_path / "into" / weights.name).read_bytes() == weights.read_bytes()
    download("maker/tiny-llama", COMMIT, tmp_path / "into", token="")
    assert hub.downloads.count(weights.name) == 2


@pytest.mark.slow
def test_what_is_not_supported_is_refused_before_its_weights_are_downloaded(
    hub: StubHub, admin: User, settings: Settings
):
    change_json(hub.folders["maker/tiny-llama"], "config.json", model_type="bert")
    addition = added(of_hub(), admin)
    assert addition.state == JobState.FAILED
    assert "encoder" in addition.error
    assert "model.safetensors" not in hub.downloads
    assert leftovers(settings) == []


def test_a_private_model_needs_the_token_which_is_stored_nowhere(
    hub: StubHub, admin: User, settings: Settings
):
    hub.tokens["maker/tiny-llama"] = "hf_secret"
    with pytest.raises(Refusal, match="RONDO_HUB_TOKEN"):
        look_up_on_hub(repository="maker/tiny-llama")
    settings.RONDO_HUB_TOKEN = "hf_secret"
    addition = request_base_model(new_base=of_hub(), requested_by=admin)
    row = BaseModelAddition.objects.filter(pk=addition.pk).values().get()
    assert "hf_secret" not in repr(row)
    assert "hf_secret" not in repr(list(AuditEntry.objects.values()))


@pytest.mark.parametrize(
    ("repository", "revision", "says"),
    [
        ("maker/nothing", "", "has no model maker/nothing"),
        ("maker/tiny-llama", "v9", "no revision 'v9'"),
        ("no-owner", "", "OWNER/NAME"),
        ("../../etc/passwd", "", "OWNER/NAME"),
    ],
)
def test_a_wrong_hub_id_is_refused_at_once(repository: str, revision: str, says: str, hub: StubHub):
    with pytest.raises(Refusal) as refused:
        look_up_on_hub(repository=repository, revision=revision)
    assert says in refused.value.message


def test_without_a_network_the_hub_is_said_to_be_unreachable_with_remedies(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Refusal) as refused:
        look_up_on_hub(repository="maker/tiny-llama")
    assert "http://127.0.0.1:9 cannot be reached" in refused.value.message
    assert "add it as a folder" in refused.value.message


def test_a_disk_without_room_refuses_a_download_before_it_begins(
    hub: StubHub, admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    usage = SimpleNamespace(total=10**9, used=10**9 - 1000, free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    addition = added(of_hub(), admin)
    assert addition.state == JobState.FAILED
    assert "Free some space" in addition.error
    assert hub.downloads == []
    assert leftovers(settings) == []


def test_a_hub_that_goes_away_lets_the_addition_wait_with_what_it_has(
    hub: StubHub, admin: User, monkeypatch: pytest.MonkeyPatch
):
    addition = request_base_model(new_base=of_hub(), requested_by=admin)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    do_addition(addition.pk)
    addition.refresh_from_db()
    assert addition.state == JobState.WAITING
    assert "cannot be reached" in addition.message
    cancel_addition(addition=addition, cancelled_by=admin)
    do_addition(addition.pk)
    addition.refresh_from_db()
    assert addition.state == JobState.FAILED
    assert "cancelled" in addition.error
    assert not addition.staging.exists()


# ── Servers ───────────────────────────────────────────────────────────────────────────


def _served(monkeypatch: pytest.MonkeyPatch, settings: Settings, answer: httpx.Response) -> None:
    settings.RONDO_MODEL_SERVER_HOSTS = ["gpu-box:8000"]

    def engine(**options: object) -> Engine:
        options["transport"] = httpx.MockTransport(lambda request: answer)
        return Engine(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(base_models, "Engine", engine)


def test_a_model_of_another_server_is_added_when_that_server_knows_it(
    admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    _served(monkeypatch, settings, httpx.Response(200, json={"data": [{"id": "maker/large"}]}))
    request = NewBaseModel(
        origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="maker/large"
    )
    assert added(request, admin).error == ""
    base = BaseModel.objects.get(name="large")
    assert (base.origin, base.has_files, base.files) == (BaseOrigin.SERVER, False, [])
    assert (base.starter.server_url, base.starter.server_model) == ("http://gpu-box:8000/v1", "maker/large")
    other = NewBaseModel(origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="small")
    refused = added(other, admin)
    assert refused.state == JobState.FAILED
    assert "It serves: maker/large" in refused.error
    assert not Checkpoint.objects.filter(name="small").exists()


def test_a_server_that_does_not_answer_is_not_added(
    admin: User, settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    _served(monkeypatch, settings, httpx.Response(500, json={"error": {"message": "broken"}}))
    request = NewBaseModel(
        origin=BaseOrigin.SERVER, server_url="http://gpu-box:8000/v1", server_model="large"
    )
    assert added(request, admin).state == JobState.FAILED
    assert not BaseModel.objects.exists()
    inside = NewBaseModel(
        origin=BaseOrigin.SERVER, server_url="http://169.254.169.254/v1", server_model="large"
    )
    with pytest.raises(Refusal) as refused:
        request_base_model(new_base=inside, requested_by=admin)
    assert refused.value.field == "server_url"
