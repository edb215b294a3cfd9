"""Ground of the feedback tests: an application whose requests are stored, and its page with a key."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.test import Client

from annotation.models import ApiToken, Project, User
from annotation.services.people.accounts import create_token
from tests.training.engine.test_v1 import Upstream, starter, upstream
from training.models import ApplicationRequest, Checkpoint, FeedbackKey, FeedbackSettings
from training.services.feedback.settings import change_settings, create_key, opt_in

__all__ = ["starter", "upstream"]

ORIGIN = "https://app.example.org"


class Application:
    """An application of Carol's: it asks `/v1`, and its pages and its server send feedback."""

    def __init__(self, upstream: Upstream, token: ApiToken, secret: str, key: FeedbackKey) -> None:
        self.upstream, self.token, self.secret, self.key = upstream, token, secret, key
        self.client = Client()

    def answers(self, *texts: str, id: str = "chatcmpl-1", **facts: Any) -> None:
        """The model server answers with these completions."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
                "seed": 7 + index,
                "token_count": 3,
            }
            for index, text in enumerate(texts)
        ]
        body = {"id": id, "object": "chat.completion", "choices": choices, **facts}
        self.upstream.answer = lambda _: httpx.Response(200, json=body)

    def streams(self, *chunks: dict[str, Any] | str) -> None:
        """The model server streams these chunks."""
        written = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
        body = "".join(f"data: {chunk}\n\n" for chunk in written).encode()
        self.upstream.answer = lambda _: httpx.Response(200, content=body)

    def ask(self, question: str = "Why is tea hot?", **body: Any) -> Any:
        """The answer to a request of the application, read to its end."""
        sent = {"model": "starter", "messages": [{"role": "user", "content": question}], **body}
        response = self.client.post(
            "/v1/chat/completions",
            sent,
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}"},
        )
        if response.streaming:
            # The client closes it after the last piece.
            received = b"".join(response)
            return SimpleNamespace(status_code=response.status_code, received=received)
        return response

    def stored(
        self, id: str, *texts: str, question: str = "Why is tea hot?", user: str = ""
    ) -> ApplicationRequest:
        """The stored request of an answer with this id."""
        self.answers(*(texts or ("Because of the water.",)), id=id)
        assert self.ask(question, **({"user": user} if user else {})).status_code == 200
        return ApplicationRequest.objects.get(key=id)

    def give(
        self, completion: str, *, by_key: bool = False, headers: dict[str, str] | None = None, **feedback: Any
    ) -> Any:
        """Send feedback: from the application's server, or from its page."""
        if by_key:
            sent = {"Authorization": f"Bearer {self.key.key}", "Origin": ORIGIN}
        else:
            sent = {"Authorization": f"Bearer {self.secret}"}
        return self.client.post(
            "/api/v1/feedback/",
            {"completion": completion, **feedback},
            content_type="application/json",
            headers={**sent, **(headers or {})},
        )


@pytest.fixture
def feedback_settings(project: Project, carol: User) -> FeedbackSettings:
    """The project stores requests, without e-mail addresses."""
    return change_settings(
        project=project,
        changes={"stores_requests": True, "patterns": [r"[\w.]+@[\w.]+"], "origins": [ORIGIN]},
        changed_by=carol,
    )


@pytest.fixture
def application(
    project: Project,
    carol: User,
    feedback_settings: FeedbackSettings,
    upstream: Upstream,
    starter: Checkpoint,
) -> Application:
    made = create_token(user=carol, name="shop", scopes=["read", "generate", "feedback"])
    opt_in(project=project, token=made.token, opted_by=carol)
    key = create_key(project=project, name="shop page", created_by=carol)
    return Application(upstream, made.token, made.secret, key)


@pytest.fixture
def thumbs(application: Application) -> Callable[..., None]:
    """`thumbs(request, up=3, down=1)`: so many end users, each with a name of its own."""

    def give(request: ApplicationRequest, *, up: int = 0, down: int = 0, prefix: str = "user") -> None:
        for number in range(up + down):
            thumb = "up" if number < up else "down"
            answer = application.give(request.key, thumb=thumb, user=f"{prefix}-{request.key}-{number}")
            assert answer.status_code == 201

    return give
