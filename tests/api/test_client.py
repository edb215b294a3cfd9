"""The client against the application itself: pages, judgments, what is refused, what is sent again."""

import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.core.wsgi import get_wsgi_application
from standardwebhooks import Webhook

from annotation.choices import ImportState
from annotation.exchange import uploads
from annotation.models import (
    FileImport,
    Judgment,
    KeptAnswer,
    Project,
    Prompt,
    User,
    WebhookDelivery,
    WebhookMessage,
)
from annotation.services.people.accounts import create_token
from tests import factories
from tests.api.scene import Scene
from tests.guide_blocks import block
from webapp.api.client import Problem, Rondo, SignatureError, verified

Answer = Callable[[httpx.Request], httpx.Response]


class Flaky(httpx.BaseTransport):
    """The application, after some failures of the way to it: before a request arrives, or after its answer
    left."""

    def __init__(self, failures: list[httpx.Response | Exception | None]) -> None:
        self.failures = failures
        self.application = httpx.WSGITransport(app=get_wsgi_application())
        self.seen: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, httpx.Response):
            return failure
        answer = self.application.handle_request(request)
        if failure is not None:
            raise failure
        return answer


@pytest.fixture
def connect(settings: Any) -> Callable[..., Rondo]:
    """`connect(carol)` is a client of Carol's; further arguments are failures on the way."""
    settings.ALLOWED_HOSTS = ["rondo.test"]

    def make(user: User, *failures: httpx.Response | Exception | None) -> Rondo:
        secret = create_token(
            user=user, name=str(uuid.uuid4()), scopes=["read", "label", "manage", "feedback"]
        ).secret
        slept: list[float] = []
        transport = Flaky(list(failures))
        rondo = Rondo("http://rondo.test/", token=secret, transport=transport, sleep=slept.append)
        rondo.slept, rondo.seen = slept, transport.seen  # type: ignore[attr-defined]
        return rondo

    return make


def test_a_server_gives_feedback_in_one_line_also_a_moment_before_the_completion_is_stored(
    project: Project, scene: Scene, carol: User, connect, monkeypatch: pytest.MonkeyPatch
):
    missing = httpx.Response(404, json={"detail": "No completion of this id is stored."})
    with connect(carol, missing) as rondo:
        stored = rondo.feedback(scene.stored.key, thumb="up", user="u1")
        assert (stored["kind"], stored["value"], len(rondo.slept)) == ("thumb", 1, 1)
        monkeypatch.setattr("webapp.api.client.Rondo", lambda address, token: rondo)
        lines = block("how-to/collect-feedback.md", PROGRAM)
        exec(lines, {"HOST": "", "TOKEN": "", "ID": scene.stored.key})
        assert len(rondo.seen) == 3
        assert rondo.feedback(scene.stored.key, thumb="up", user="u1") == stored
        with pytest.raises(Problem) as refused:
            rondo.feedback("chatcmpl-none", rating=3)
    assert refused.value.status == 404


def test_a_list_is_read_to_its_end(project: Project, carol: User, connect):
    made = [factories.make_prompt(project, f"Question {n}?").pk for n in range(5)]
    with connect(carol) as rondo:
        ids = [prompt["id"] for prompt in rondo.pages("projects/tea/prompts/", page_size=2)]
    assert ids == sorted(made, reverse=True)
    assert len(rondo.seen) == 3


PROGRAM = "from webapp.api.client import Rondo"


def test_the_guides_program_changes_the_settings_for_a_team(
    project: Project, carol: User, connect, monkeypatch: pytest.MonkeyPatch
):
    project.slug = "team"
    project.save()
    rondo = connect(carol)
    monkeypatch.setattr("webapp.api.client.Rondo", lambda address, token: rondo)
    exec(block("tutorials/team-of-twenty.md", PROGRAM), {})
    project.refresh_from_db()
    assert (project.overlap, project.extra_overlap, project.extra_overlap_share) == (2, 1, 0.1)
    assert (project.qualification_pass_share, project.gold_share, project.retest_share) == (0.8, 0.05, 0.05)
    assert (project.review_disagreements, project.review_random_share, project.daily_limit) == (
        True,
        0.05,
        200,
    )


def test_the_guides_program_labels_all_there_is(
    project: Project, alice: User, connect, monkeypatch: pytest.MonkeyPatch
):
    for _number in range(3):
        factories.make_comparison(project, texts=["short", "much longer"])
    snippet = block("how-to/use-the-api.md", PROGRAM)
    rondo = connect(alice)
    # All of the program is the guide's, but for the way to the server.
    monkeypatch.setattr("webapp.api.client.Rondo", lambda address, token: rondo)
    exec(snippet, {})
    best = [j.ranks.get(rank=1).completion.text for j in Judgment.objects.all()]
    assert best == ["much longer"] * 3


def test_what_is_refused_says_which_field_is_wrong(project: Project, carol: User, connect):
    with pytest.raises(Problem, match=r"items\.0\.prompt") as refused:
        connect(carol).post("projects/tea/prompts/", {"items": [{}]})
    assert (refused.value.status, refused.value.errors[0]["field"]) == (422, "items.0.prompt")


@pytest.mark.parametrize(
    ("failure", "pauses"),
    [
        (httpx.Response(503), [0.5]),
        (httpx.Response(429, headers={"Retry-After": "7"}), [7.0]),
        (httpx.ReadError("the answer was lost"), [0.5]),
    ],
    ids=["the server is away", "too often", "the answer was lost"],
)
def test_what_fails_on_the_way_is_sent_again_and_done_once(
    project: Project, carol: User, connect, failure, pauses
):
    rondo = connect(carol, failure)
    result = rondo.post(
        "projects/tea/prompts/", {"items": [{"prompt": [{"role": "user", "content": "Tea?"}]}]}
    )
    assert (result["added"], Prompt.objects.count(), rondo.slept) == (1, 1, pauses)
    keys = {request.headers["Idempotency-Key"] for request in rondo.seen}
    assert (len(rondo.seen), len(keys), KeptAnswer.objects.count()) == (2, 1, 1)


def test_a_server_that_stays_away_is_told(project: Project, carol: User, connect):
    rondo = connect(carol, *(httpx.Response(503) for _ in range(5)))
    with pytest.raises(Problem, match="503"):
        rondo.get("me/")
    assert rondo.slept == [0.5, 1.0, 2.0, 4.0]


def test_a_change_is_made_again_when_somebody_came_between(scene: Scene, admin: User, connect):
    rondo = connect(admin)
    path = f"checkpoints/{scene.starter.name}/"

    def add_tag(read):
        if len(rondo.seen) == 1:
            # Somebody else is quicker, once.
            type(scene.starter).objects.filter(pk=scene.starter.pk).update(tags=["theirs"])
        return {"tags": [*read["tags"], "ours"]}

    assert rondo.change(path, add_tag)["tags"] == ["theirs", "ours"]
    assert [request.method for request in rondo.seen] == ["GET", "PATCH", "GET", "PATCH"]


# ── Files and webhooks ────────────────────────────────────────────────────────────────


def test_a_file_is_brought_in_and_waited_for(project: Project, carol: User, connect, tmp_path, settings):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    votes = tmp_path / "votes.csv"
    votes.write_text("asked,answer_1,answer_2,winner\nTea?,Green.,Black.,1\n")

    def do_imports(_seconds: float) -> None:
        # The worker works while the program sleeps.
        for record in FileImport.objects.filter(state=ImportState.WAITING):
            uploads.do_import(record.pk)

    with connect(carol, httpx.ConnectError("down")) as rondo:
        rondo._sleep = do_imports
        done = rondo.import_file("tea", votes, mapping={"prompt": "asked"})
        assert (done["state"], done["counts"]["judgments"]) == ("finished", 1)
        votes.write_text("asked,answer_1,answer_2,winner\nTea?,Green.,,1\n")
        bad = rondo.import_file("tea", votes, mapping={"prompt": "asked"})
        assert (bad["state"], bad["errors_total"]) == ("failed", 1)
        with pytest.raises(Problem, match="422"):
            rondo.import_file("tea", votes, mapping={"prompt": "no such column"})
        rondo._sleep = lambda _seconds: None
        with pytest.raises(TimeoutError, match="waiting"):
            rondo.import_file("tea", votes, mapping={"prompt": "asked"}, seconds=2)


def test_the_guides_lines_bring_a_file_in_and_take_one_out(
    project: Project, carol: User, connect, tmp_path: Path, settings, monkeypatch: pytest.MonkeyPatch
):
    settings.RONDO_IMPORTS = tmp_path / "imports"
    monkeypatch.chdir(tmp_path)
    Path("votes.csv").write_text("question,answer_1,answer_2,winner\nTea?,Green.,Black.,1\n")

    def do_imports(_seconds: float) -> None:
        uploads.do_import(FileImport.objects.get().pk)

    with connect(carol) as rondo:
        rondo._sleep = do_imports
        exec(block("how-to/use-the-api.md", "rondo.import_file"), {"rondo": rondo})
    [pair] = [json.loads(line) for line in Path("pairs.jsonl").read_text().splitlines()]
    assert (pair["chosen"][-1]["content"], pair["rejected"][-1]["content"]) == ("Green.", "Black.")


def test_judgments_are_written_to_a_file_with_an_account_of_them(
    project: Project, alice: User, carol: User, connect, tmp_path
):
    factories.make_judgment(factories.make_comparison(project), alice)
    with connect(carol) as rondo:
        account = rondo.export_file("tea", "trl-preference", tmp_path / "pairs.jsonl", rounds="1")
        assert (account["rows"], account["filters"]["rounds"]) == (1, [1])
        assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == 1
        with pytest.raises(Problem, match="404"):
            rondo.export_file("tea", "nothing", tmp_path / "nothing.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.jsonl"]


def test_a_receiver_verifies_what_it_is_told(project: Project, carol: User, connect):
    with connect(carol) as rondo:
        made = rondo.add_webhook("tea", "https://example.org/hook", ["round.promoted"])
        rondo.post(f"projects/tea/webhooks/{made['id']}/test/")
        [delivery] = rondo.deliveries("tea", webhook=made["id"])
        WebhookDelivery.objects.update(state="given_up", next_attempt_at=None)
        assert rondo.resend("tea", delivery["id"])["state"] == "waiting"
    body = WebhookMessage.objects.get().body.encode()
    # Signed by the library of the specification, not by us.
    sent = datetime.now(UTC)
    signature = Webhook(made["secret"]).sign(delivery["message"], sent, body.decode())
    headers = {
        "Webhook-Id": delivery["message"],
        "Webhook-Timestamp": str(int(sent.timestamp())),
        "Webhook-Signature": f"v1,bm8= {signature}",
    }
    assert verified(made["secret"], headers, body)["type"] == "webhook.test"
    names: dict[str, Any] = {
        "secret": made["secret"],
        "request": SimpleNamespace(headers=headers, body=body),
    }
    exec(block("how-to/receive-webhooks.md", "from webapp.api.client import verified"), names)
    assert names["event"]["type"] == "webhook.test"
    for wrong, why in (
        ({"secret": "whsec_bm8="}, "not that of this secret"),
        ({"body": body + b" "}, "not that of this secret"),
        ({"headers": {**headers, "Webhook-Id": "msg_other"}}, "not that of this secret"),
        ({"headers": {}}, "no signature"),
        ({"headers": {**headers, "Webhook-Timestamp": "soon"}}, "no signature"),
        ({"now": sent.timestamp() + 302}, "too long ago"),
    ):
        arguments: dict[str, Any] = {"secret": made["secret"], "headers": headers, "body": body, **wrong}
        with pytest.raises(SignatureError, match=why):
            verified(arguments.pop("secret"), arguments.pop("headers"), arguments.pop("body"), **arguments)
