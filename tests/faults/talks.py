"""Annotators who talk with models, the models' stub, and what stands in the database afterwards.

python -m tests.faults.talks serve PORT   a model server that streams slowly, whatever model is asked
python -m tests.faults.talks prepare      a project with two checkpoints and three annotators; session keys
python -m tests.faults.talks look         every conversation, turn by turn
"""

import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

from tests.benchmarks.labelling.annotator import ACTION, CHOICE, KEY, Annotator

PROJECT = "tea"
PEOPLE = ("ann", "ben", "cem")
_BETWEEN_WORDS = 0.05
_PAUSE = 0.3
_LINK = re.compile(rf"/projects/{PROJECT}/conversations/([0-9a-f-]{{36}})/")


# ── People ────────────────────────────────────────────────────────────────────────────


class Talker(Annotator):
    """One annotator with one conversation of so many turns, who tries again whatever fails."""

    patience = 20.0

    def __init__(self, port: int, session: str, seed: int, turns: int) -> None:
        super().__init__(port, session, seed, project=PROJECT)
        self.turns = turns
        self.keys: set[str] = set()
        """Idempotency keys of the annotations that the server took."""
        self.done = threading.Event()
        self.list = f"/projects/{PROJECT}/conversations/"

    def talk(self) -> None:
        """Talk until the conversation is over."""
        there = self.begin()
        message_count = 0
        while not self.done.is_set():
            page = self._ask("GET", there)
            if self.status != 200:
                time.sleep(_PAUSE)
            elif ACTION.search(page):
                self.judge(page)
            elif 'name="text"' in page and message_count < self.turns:
                self._ask("POST", f"{there}say/", urlencode({"text": f"Question {message_count + 1}?"}))
                message_count += self.status == 200
            elif "data-write" in page:
                self._ask("POST", f"{there}write/", "")
            elif "has ended" in page:
                self.done.set()
            else:
                self._ask("POST", f"{there}end/", urlencode({"rating": 3}))

    def begin(self) -> str:
        """Begin, unless the server did so before it died."""
        while True:
            if link := _LINK.search(self._ask("GET", self.list)):
                return link[0]
            if self.status == 200:
                self._ask("POST", f"{self.list}begin/", "task=")
            time.sleep(_PAUSE)

    def judge(self, page: str) -> None:
        """Send the labelling form until the server has it."""
        key = KEY.search(page)[1]
        form = {
            "idempotency_key": key,
            "conversation": _LINK.search(page)[1],
            "span_flags": "[]",
            "active_seconds": "1",
            "choice": self.chance.choice(CHOICE.findall(page)),
        }
        for _try in range(200):
            self._ask("POST", ACTION.search(page)[1], urlencode(form))
            if self.status == 200:
                self.keys.add(key)
                return
            assert self.status == 0 or self.status >= 500, self.status
            time.sleep(_PAUSE)


# ── Models ────────────────────────────────────────────────────────────────────────────


class Models(BaseHTTPRequestHandler):
    """Streams ten words that tell the seed."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        body = json.dumps({"state": "ready", "message": "ready", "progress": 1.0, "data": []}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        """Stream the words of the request's seed."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(10):
            self._event({"index": 0, "delta": {"content": f"{request['seed']}-{number} "}})
            time.sleep(_BETWEEN_WORDS)
        self._event({"index": 0, "delta": {}, "finish_reason": "stop", "token_count": 10})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, choice: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        self.wfile.flush()


def serve(port: int) -> None:
    """Answer until killed."""
    ThreadingHTTPServer(("127.0.0.1", port), Models).serve_forever()


# ── The database ──────────────────────────────────────────────────────────────────────


def prepare() -> list[str]:
    """A project in which three annotators may talk; the session of each."""
    from annotation.models import User
    from tests import factories
    from tests.benchmarks.labelling.fill import session_of
    from tests.training.comparing.arena_scene import make_checkpoints
    from training.services.conversations import save_conversation_settings

    people = [User.objects.create_user(name) for name in PEOPLE]
    manager = User.objects.create_user("manager")
    project = factories.make_project(slug=PROJECT, annotators=people, managers=[manager])
    save_conversation_settings(
        project=project, actor=manager, checkpoints=make_checkpoints(project), most_turns=20
    )
    return [session_of(person) for person in people]


def look() -> list[dict[str, Any]]:
    """Every conversation with its turns, their responses and annotations."""
    from annotation.models import Conversation

    return [
        {
            "annotator": conversation.annotator.username,
            "ended": conversation.ended_at is not None,
            "turns": [
                {
                    "index": turn.index,
                    "messages": turn.prompt.messages,
                    "went_on": turn.continued_with.text if turn.continued_with else None,
                    "responses": [
                        (
                            response.seed,
                            response.text,
                            response.completion.text if response.completion else None,
                        )
                        for response in turn.responses.order_by("position").select_related("completion")
                    ],
                    "keys": [str(judgment.idempotency_key) for judgment in turn.comparison.judgments.all()],
                    "best": [
                        row.completion.text
                        for judgment in turn.comparison.judgments.all()
                        for row in judgment.ranks.filter(rank=1)
                    ],
                    "assignments": turn.comparison.assignments.count(),
                }
                for turn in conversation.turns.select_related("prompt", "comparison", "continued_with")
            ],
        }
        for conversation in Conversation.objects.select_related("annotator")
    ]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        import django

        django.setup()
        json.dump({"prepare": prepare, "look": look}[sys.argv[1]](), sys.stdout)
