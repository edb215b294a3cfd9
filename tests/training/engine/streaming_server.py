"""A model server inside the test that also streams, tells every head's scores and the divergence."""

import json
from typing import Any

import httpx

from tests.training.engine.fake_server import FakeServer


class StreamingServer(FakeServer):
    """`FakeServer` with what side by side asks for; `knows_kl` takes the divergence away."""

    knows_kl = True

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if trouble := self.trouble(request):
            return trouble
        if request.method == "POST":
            body = json.loads(request.content)
            if body.get("stream"):
                self.asked.append(body)
                return self._streamed(body)
            if request.url.path == "/v1/kl":
                return self._kl(body)
            if request.url.path == "/v1/score" and body.get("heads"):
                self.asked.append(body)
                return self._scored(body)
        return super().__call__(request)

    def _streamed(self, body: dict[str, Any]) -> httpx.Response:
        words = self.text(body).split(" ")
        pieces = [word if place == 0 else f" {word}" for place, word in enumerate(words)]
        chunks = [{"choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
        ending = {"index": 0, "delta": {}, "finish_reason": "stop", "token_count": len(pieces)}
        chunks.append({"choices": [{**ending, "seed": body["seed"]}]})
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
        return httpx.Response(
            200, text="".join([*lines, "data: [DONE]\n\n"]), headers={"Content-Type": "text/event-stream"}
        )

    def _scored(self, body: dict[str, Any]) -> httpx.Response:
        texts = body["completions"]
        segments = [[{"start": 0, "end": 3, "reward": -1.5}] for _ in texts]
        return httpx.Response(
            200,
            json={
                "scores": [self.score(text) for text in texts],
                "heads": {"preference": [[self.score(text)] for text in texts]},
                "segments": {"untruthful": segments},
            },
        )

    def _kl(self, body: dict[str, Any]) -> httpx.Response:
        if not self.knows_kl:
            return httpx.Response(404, json={"error": {"message": "no such address"}})
        first = body["completion"][:4]
        return httpx.Response(200, json={"tokens": [first], "kl": [0.75], "offsets": [[0, len(first)]]})
