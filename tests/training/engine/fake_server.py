"""A model server inside the test: an answer is made of its seed, and never names its model."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from training.engine import Engine


class FakeServer:
    """A handler for `httpx.MockTransport`. `trouble` decides instead, as long as it returns a response."""

    def __init__(self) -> None:
        self.tells_seeds = True
        self.asked: list[dict[str, Any]] = []
        self.trouble: Callable[[httpx.Request], httpx.Response | None] = lambda request: None
        self.text: Callable[[dict[str, Any]], str] = lambda body: f"Answer {body['seed']}."
        self.score: Callable[[str], float] = len
        self.kl: list[float] | None = None
        """Of every answer's tokens; None: the server does not know the question."""

    def engine(self, *_: object, **__: object) -> Engine:
        """Return an engine that asks this server, whatever it is made with."""
        return Engine(transport=httpx.MockTransport(self))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if trouble := self.trouble(request):
            return trouble
        if request.url.path == "/health":
            return httpx.Response(200, json={"state": "ready", "message": "ready", "progress": 1.0})
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "starter"}]})
        body = json.loads(request.content)
        self.asked.append(body)
        if request.url.path == "/v1/score":
            scores = [self.score(text) for text in body["completions"]]
            heads = {"heads": {"score": [[score] for score in scores]}, "segments": {}}
            return httpx.Response(200, json={"scores": scores, **(heads if body.get("heads") else {})})
        if request.url.path == "/v1/kl":
            if self.kl is None:
                return httpx.Response(404, json={"error": {"message": "Not Found."}})
            tokens = [str(place) for place in range(len(self.kl))]
            offsets = [[place, place + 1] for place in range(len(self.kl))]
            return httpx.Response(200, json={"tokens": tokens, "kl": self.kl, "offsets": offsets})
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": self.text({**body, "seed": seed})},
                "finish_reason": "stop",
                **({"seed": seed, "token_count": 7} if self.tells_seeds else {}),
            }
            for index, seed in enumerate(range(body["seed"], body["seed"] + body["n"]))
        ]
        return httpx.Response(200, json={"choices": choices, "usage": {"completion_tokens": 7 * body["n"]}})
