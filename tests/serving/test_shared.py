"""The catalogue of a model server that has a store: what appears there is a model, what goes is none."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from training.contract.checkpoint import Manifest, write_manifest
from training.contract.files import sha256_of_file
from training.serving.catalogue import Catalogue, SharedModels
from training.serving.http import RequestError
from training.store import Store, StoreUnreachableError


def checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter.bin").write_text(f"weights of {folder.name}")
    manifest = Manifest(
        kind="reward",
        name=folder.name,
        base_model="base",
        base_digest="b" * 64,
        spec={},
        snapshot_digest="c" * 64,
        seed=1,
        commit="",
        steps=1,
        metrics={},
        dropped=[],
        heads=["score"],
        files={"adapter.bin": sha256_of_file(folder / "adapter.bin")},
        versions={},
    )
    write_manifest(folder, manifest)
    return folder


@pytest.fixture
def store() -> Store:
    return Store(f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def catalogue(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalogue:
    """On an empty disk; it looks into the store at every question."""
    monkeypatch.setattr("training.serving.catalogue._LISTED_FOR_SECONDS", 0.0)
    base = tmp_path / "here" / "models" / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    return Catalogue(base, tmp_path / "here" / "checkpoints", SharedModels(store))


def test_what_appears_in_the_store_is_a_model_and_is_fetched_when_it_is_asked_for(
    store: Store, catalogue: Catalogue, tmp_path: Path
):
    assert catalogue.names() == ["base"]
    origin = checkpoint(tmp_path / "there" / "tea-1")
    store.publish("checkpoints/tea-1", origin)
    assert catalogue.names() == ["base", "tea-1"]
    assert [entry["kind"] for entry in catalogue.entries()] == ["starter", "reward"]
    # To be listed it need not be here.
    assert not catalogue.checkpoints_folder.exists()
    folder = catalogue.folder("tea-1")
    assert (folder / "adapter.bin").read_text() == "weights of tea-1"
    assert catalogue.entry("tea-1")["kind"] == "reward"


def test_what_goes_from_the_store_is_no_model_any_more_and_what_was_never_there_stays_one(
    store: Store, catalogue: Catalogue, tmp_path: Path
):
    store.publish("checkpoints/tea-1", checkpoint(tmp_path / "there" / "tea-1"))
    catalogue.folder("tea-1")
    checkpoint(catalogue.checkpoints_folder / "mine")
    store.remove("checkpoints/tea-1")
    assert catalogue.names() == ["base", "mine"]
    assert catalogue.folder("mine").is_dir()
    with pytest.raises(RequestError) as caught:
        catalogue.folder("tea-1")
    assert caught.value.status == 404


def test_while_the_store_is_away_what_is_here_is_served_and_the_rest_asked_for_later(
    store: Store, catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("tea-1", "tea-2"):
        store.publish(f"checkpoints/{name}", checkpoint(tmp_path / "there" / name))
    catalogue.folder("tea-1")
    catalogue.names()

    def nobody(*_: Any) -> None:
        raise StoreUnreachableError("The cable is cut.")

    for what in ("read", "sizes"):
        monkeypatch.setattr(f"training.store.Objects.{what}", nobody)
    assert catalogue.folder("tea-1").is_dir()
    assert catalogue.names() == ["base", "tea-1", "tea-2"]
    with pytest.raises(RequestError, match="The cable is cut") as caught:
        catalogue.folder("tea-2")
    assert caught.value.status == 503
    assert not (catalogue.checkpoints_folder / "tea-2").exists()


def test_a_base_model_that_one_machine_has_is_had_by_all_but_never_half_of_it(
    store: Store, catalogue: Catalogue, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    models = SharedModels(store)
    models.offer_base(catalogue.base_folder)
    models.fetch_base(tmp_path / "elsewhere" / "base")
    assert (tmp_path / "elsewhere" / "base" / "config.json").read_text() == "{}"
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "model.safetensors").symlink_to(catalogue.base_folder / "config.json")
    models.offer_base(linked)
    assert store.names("models") == ["base"]
    assert "holds links" in caplog.text
