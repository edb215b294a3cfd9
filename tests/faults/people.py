"""Annotators who send an answer until the server has taken it, as the page's outbox does, with a ledger."""

import random
import re
import threading
from collections.abc import Sequence
from urllib.parse import urlencode

from tests.benchmarks.labelling.annotator import ACTION, CHOICE, KEY, TOKEN, Annotator
from tests.faults.ledger import Ledger, Said

_PAUSE_AFTER_FAILURE = 0.3
_PAUSE_WITHOUT_WORK = 0.5


class Person(Annotator):
    """One annotator at one of several web servers; whoever does not answer is left for the next."""

    patience = 20.0  # as the page's own

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        session: str,
        seed: int,
        *,
        ledger: Ledger,
        project: str,
        think: float,
    ) -> None:
        host, port = addresses[seed % len(addresses)]
        super().__init__(port, session, seed, host=host, project=project)
        self.addresses = list(addresses)
        self.ledger = ledger
        self.think = think
        self.turn = 0

    def stay(self, enough: threading.Event) -> None:
        """Judge until it is enough; what is under way then is sent to its end."""
        page = ""
        while not enough.is_set():
            if not ACTION.search(page):
                page = self._try("GET", self.label)
                if not ACTION.search(page):
                    enough.wait(_PAUSE_WITHOUT_WORK)
                continue
            enough.wait(self.think * self.chance.uniform(0.5, 1.5))
            page = self._judge(page)

    def _judge(self, page: str) -> str:
        address = ACTION.search(page)[1]
        self.turn += 1
        judgment = Said(
            key=KEY.search(page)[1],
            assignment=int(re.search(r"/(\d+)/submit/$", address)[1]),
            choice=self.chance.choice(CHOICE.findall(page)),
            comment=f"{self.session[:8]} says {self.turn}: {self.chance.random()}",
        )
        form = {
            "csrfmiddlewaretoken": TOKEN.search(page)[1],
            "idempotency_key": judgment.key,
            "guideline": "1",
            "active_seconds": "1",
            "span_flags": "[]",
            "choice": judgment.choice,
            "comment": judgment.comment,
        }
        self.ledger.sent(judgment)
        tries = 0
        while True:
            tries += 1
            answer = self._try("POST", address, urlencode(form))
            if self.status == 200:
                self.ledger.stored(judgment, tries=tries)
                return answer
            if 300 <= self.status < 500:
                self.ledger.refused(judgment, status=self.status)
                return ""

    def _try(self, method: str, path: str, body: str | None = None) -> str:
        """Ask; after a failure wait a little and turn to the next server."""
        answer = self._ask(method, path, body)
        if self.status == 0 or self.status >= 500:
            self._connection = None
            place = self.addresses.index((self.host, self.port))
            self.host, self.port = self.addresses[(place + 1) % len(self.addresses)]
            threading.Event().wait(_PAUSE_AFTER_FAILURE * random.uniform(0.5, 1.5))
        return answer
