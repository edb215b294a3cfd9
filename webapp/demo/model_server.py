"""A model server that composes its responses, for as long as the demo project is created."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, ClassVar

from webapp.demo.texts import DemoResponse, Skill, compose, topics_by_question

STARTER_SKILL = Skill(
    wrong=0.55, irrelevant=0.5, repeated=0.35, truncated=0.25, facts=(1, 3), names_itself=0.012
)
SKILLS: Mapping[str, Skill] = {
    "round-1-policy": Skill(wrong=0.2, irrelevant=0.2, repeated=0.3, truncated=0.08, facts=(3, 5)),
    "round-2-policy": Skill(wrong=0.16, irrelevant=0.2, repeated=0.15, truncated=0.05, facts=(2, 5)),
}
"""By the end of a checkpoint's name; every other model has the starter's."""
_NOISE_OF_SCORES = 0.8


class ScriptedModels:
    """The responses that were composed so far, by their text, and how models answer and score."""

    def __init__(self) -> None:
        self.responses: dict[str, DemoResponse] = {}

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a chat completion request."""
        name, question = str(body["model"]), str(body["messages"][-1]["content"])
        skill = next((skill for end, skill in SKILLS.items() if name.endswith(end)), STARTER_SKILL)
        choices = []
        for index in range(body.get("n", 1)):
            seed = body["seed"] + index
            chance = Random(f"{name}:{question}:{seed}")  # noqa: S311 - texts of a demo
            response = compose(topics_by_question()[question], skill, chance)
            self.responses[response.text] = response
            choices.append(
                {
                    "index": index,
                    "message": {"role": "assistant", "content": response.text},
                    "finish_reason": "length" if response.is_truncated else "stop",
                    "seed": seed,
                    "token_count": len(response.text.split()) * 4 // 3,
                }
            )
        return {"choices": choices, "usage": {"completion_tokens": 0}}

    def score(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a scoring request: the true quality and noise of the model's own."""
        scores = [
            0.5 * self.responses[text].quality + _NOISE_OF_SCORES * _normal(f"{body['model']}:{text}")
            for text in body["completions"]
        ]
        heads = {"heads": {"score": [[score] for score in scores]}, "segments": {}}
        return {"scores": scores, **(heads if body.get("heads") else {})}

    def kl(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request for the divergence of a response from the base, token by token."""
        tokens = [f"{word} " for word in str(body["completion"]).split(" ")]
        ends = [sum(map(len, tokens[: place + 1])) for place in range(len(tokens))]
        offsets = [[end - len(token), end] for token, end in zip(tokens, ends, strict=True)]
        values = [
            0.12 + 0.1 * _normal(f"{body['model']}:{place}:{token}") for place, token in enumerate(tokens)
        ]
        return {"tokens": tokens, "kl": values, "offsets": offsets}


def _normal(name: str) -> float:
    """Return a standard normal number that follows from a name."""
    return Random(hashlib.sha256(name.encode()).digest()).gauss()  # noqa: S311 - scores of a demo


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    models: ClassVar[ScriptedModels]

    def do_GET(self) -> None:
        self._send({"state": "ready", "message": "ready", "progress": 1.0, "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {"/v1/score": self.models.score, "/v1/kl": self.models.kl}
        self._send(answers.get(self.path, self.models.complete)(body))

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line per request."""

    def _send(self, values: Mapping[str, Any]) -> None:
        data = json.dumps(values).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def scripted_model_server() -> Iterator[tuple[str, ScriptedModels]]:
    """Serve on a free port of this machine; yield the address and the models."""
    models = ScriptedModels()
    handler = type("Handler", (_Handler,), {"models": models})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", models
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
