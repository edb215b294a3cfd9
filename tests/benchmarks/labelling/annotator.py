"""One annotator: what the labelling page sends, as fast as the server answers or after some thought.

A label is one request: the page's script sends the answer, and the server's answer carries the next
comparison (as htmx swaps it in). The first comparison comes with the page.
"""

import http.client
import random
import re
import time
from dataclasses import dataclass, field
from urllib.parse import urlencode

TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="([^"]+)"')
ACTION = re.compile(r'id="judgment" method="post" action="([^"]+)"')
CHOICE = re.compile(r'name="choice" value="(win:[^"]+)"')
KEY = re.compile(r'name="idempotency_key" value="([^"]+)"')
OPTION = re.compile(r'<input type="(?:radio|checkbox)" name="(question\.[^"]+)" [^>]*?value="([^"]*)"')
NUMBER = re.compile(r'inputmode="decimal" name="(question\.[^"]+)"')


@dataclass
class Outcome:
    """The record of one annotator's work."""

    latencies: list[float] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    """Idempotency keys of answers that the server has said it stored."""
    handed: list[str] = field(default_factory=list)
    """Addresses of the comparisons that were handed out."""
    errors: list[str] = field(default_factory=list)


class Annotator:
    """A browser's part, with one connection that stays open."""

    patience = 120.0
    """Seconds until a request that is not answered counts as failed."""

    def __init__(
        self, port: int, session: str, seed: int, *, host: str = "127.0.0.1", project: str = "load"
    ) -> None:
        self.host = host
        self.port = port
        self.label = f"/projects/{project}/label/"
        self.status = 0
        """Status of the last response; 0 where there was none."""
        self.session = session
        self.chance = random.Random(seed)
        self.outcome = Outcome()
        self._connection: http.client.HTTPConnection | None = None

    def work(
        self, until: float, *, think: float = 0.0, wait: float = 0.0, count_from: float = 0.0
    ) -> Outcome:
        """Label until the clock (time.monotonic) says `until`, or nothing is left.

        Comes after `wait` seconds, and thinks for `think` seconds on average before each answer. What is sent
        before the clock says `count_from` is not among the latencies.
        """
        time.sleep(wait)
        page = self._ask("GET", self.label)
        while time.monotonic() < until:
            action = ACTION.search(page)
            if action is None:
                self.outcome.errors.append("no comparison: " + re.sub(r"<[^>]+>|\s+", " ", page)[:200])
                break
            self.outcome.handed.append(action[1])
            key = KEY.search(page)[1]
            form = {
                "csrfmiddlewaretoken": TOKEN.search(page)[1],
                "idempotency_key": key,
                "guideline": "1",
                "active_seconds": "1",
                "span_flags": "[]",
                "choice": self.chance.choice(CHOICE.findall(page)),
                "comment": "",
                # One answer to each question of the project: the last choice that stands there.
                **dict(OPTION.findall(page)),
                **dict.fromkeys(NUMBER.findall(page), "5"),
            }
            if think:
                time.sleep(think * self.chance.uniform(0.5, 1.5))
            began = time.monotonic()
            page = self._ask("POST", action[1], urlencode(form))
            if page:
                if began >= count_from:
                    self.outcome.latencies.append(time.monotonic() - began)
                self.outcome.acknowledged.append(key)
            else:
                page = self._ask("GET", self.label)
        return self.outcome

    def _send(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        """Over the open connection; over a new one, as browsers do, where the server has closed that."""
        if self._connection is not None:
            try:
                self._connection.request(method, path, body, headers)
                return self._connection.getresponse()
            except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
                self._connection = None
        self._connection = http.client.HTTPConnection(self.host, self.port, timeout=self.patience)
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()

    def _ask(self, method: str, path: str, body: str | None = None) -> str:
        headers = {
            "Cookie": f"sessionid={self.session}; csrftoken={'a' * 32}",
            "Host": f"127.0.0.1:{self.port}",
            "HX-Request": "true",
            "X-CSRFToken": "a" * 32,
        }
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            self.status = 0
            answer = self._send(method, path, body, headers)
            text = answer.read().decode()
            self.status = answer.status
        except (OSError, http.client.HTTPException) as error:
            self.outcome.errors.append(f"{method} {type(error).__name__}")
            self._connection = None
            return ""
        if answer.status != 200:
            self.outcome.errors.append(f"{method} {answer.status}")
            return ""
        return text
