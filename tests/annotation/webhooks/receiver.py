"""A program that receives events over real HTTP and answers them as a test wants."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Received:
    """One request as it came."""

    headers: dict[str, str]
    """By names in small letters."""
    body: bytes


@dataclass
class Receiver:
    """The requests received, in their order, and the answer to the next one."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    answer: Answer = lambda handler: say(handler, 204)

    @property
    def ids(self) -> list[str]:
        """The `webhook-id` of each request."""
        return [request.headers["webhook-id"] for request in self.received]


def say(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    """Answer with a status, a body and headers (`Retry_After` for `Retry-After`)."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def listening() -> Iterator[Receiver]:
    """A receiver at an address of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(headers, body))
            receiver.answer(self)

        def do_GET(self) -> None:
            raise AssertionError("A webhook is never fetched: a redirect was followed.")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
