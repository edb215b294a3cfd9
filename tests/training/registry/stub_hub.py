"""A Hugging Face hub inside the test: models are folders, each at one commit."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class StubHub:
    """The contents of the hub, and the requests to it."""

    folders: dict[str, Path] = field(default_factory=dict)
    """By repository."""
    licences: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    """Of private repositories, the token that may read them."""
    cut_after: dict[str, int] = field(default_factory=dict)
    """By file name, bytes after which the connection is closed, once."""
    ranges: list[tuple[str, str]] = field(default_factory=list)
    """File and Range header of each download that goes on."""
    downloads: list[str] = field(default_factory=list)
    """Files, one entry for each GET."""
    url: str = ""


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: StubHub, *parts: Any) -> None:
        self.hub = hub
        super().__init__(*parts)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, *, body: bool) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            repository, revision = "/".join(parts[2:4]), parts[5] if len(parts) > 5 else "main"
        else:
            repository, revision = "/".join(parts[:2]), parts[3] if len(parts) > 3 else "main"
        folder = self.hub.folders.get(repository)
        token = self.hub.tokens.get(repository)
        if folder is None or (token and self.headers.get("Authorization") != f"Bearer {token}"):
            return self._refuse("RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._refuse("RevisionNotFound")
        if parts[0] == "api":
            return self._send(json.dumps(self._facts(repository, folder)).encode())
        return self._file(folder / parts[4], body=body)

    def _facts(self, repository: str, folder: Path) -> dict[str, Any]:
        files = [{"rfilename": file.name, "size": file.stat().st_size} for file in sorted(folder.iterdir())]
        return {
            "id": repository,
            "sha": COMMIT,
            "tags": [],
            "cardData": {"license": self.hub.licences.get(repository)},
            "siblings": [*files, {"rfilename": "onnx/model.onnx", "size": 10}],
        }

    def _file(self, file: Path, *, body: bool) -> None:
        if not file.is_file():
            return self._refuse("EntryNotFound")
        content = file.read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        requested_range = self.headers.get("Range", "")
        status = 200
        if requested_range and body:
            self.hub.ranges.append((file.name, requested_range))
            begin = int(requested_range.removeprefix("bytes=").partition("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            content, status = content[begin:], 206
        if body:
            self.hub.downloads.append(file.name)
        self._send(
            content if body else b"", status=status, length=len(content), headers=headers, cut=file.name
        )

    def _send(
        self,
        content: bytes,
        *,
        status: int = 200,
        length: int | None = None,
        headers: dict[str, str] | None = None,
        cut: str = "",
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        most = self.hub.cut_after.pop(cut, None) if content else None
        self.wfile.write(content if most is None else content[:most])
        if most is not None:
            self.close_connection = True

    def _refuse(self, code: str) -> None:
        self._send(b"{}", status=401 if code == "RepoNotFound" else 404, headers={"X-Error-Code": code})


@contextmanager
def running_hub() -> Iterator[StubHub]:
    """A hub on a free port of this machine."""
    hub = StubHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
