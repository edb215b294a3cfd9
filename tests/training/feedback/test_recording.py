"""Requests of applications are stored by opt-in, redacted, after the answer, and never at its expense."""

import json
from datetime import timedelta
from functools import partial

import httpx
import pytest
from django.db import DatabaseError
from django.utils import timezone

from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Completion, Project, Prompt, User
from annotation.services.people.accounts import create_token
from tests import factories
from tests.refusals import refused
from tests.training.engine.test_v1 import outsource
from tests.training.feedback.conftest import Application
from training.models import ApplicationRequest, Feedback, FeedbackSettings, RequestOptIn
from training.services.feedback import recording
from training.services.feedback.recording import Erased, erase_expired, erase_user, pseudonym
from training.services.feedback.settings import Redactor, change_settings, opt_in, opt_out

pytestmark = pytest.mark.django_db

HOT = {"id": "a", "choices": [{"index": 0, "delta": {"content": "Hot"}}]}


def test_a_stored_request_has_prompt_completions_and_provenance(application: Application, project: Project):
    application.answers("It was heated.", "Physics.", id="chatcmpl-9")
    answer = application.ask(user="anna", temperature=0.5, seed=3, n=2, stop="x")
    assert answer.json()["id"] == "chatcmpl-9"
    row = ApplicationRequest.objects.get()
    assert (row.project, row.key, row.checkpoint.name, row.token_name) == (
        project,
        "chatcmpl-9",
        "starter",
        "shop",
    )
    assert row.messages == [{"role": "user", "content": "Why is tea hot?"}]
    assert row.choices == [
        {"text": "It was heated.", "seed": 7, "finish_reason": "stop", "token_count": 3},
        {"text": "Physics.", "seed": 8, "finish_reason": "stop", "token_count": 3},
    ]
    assert row.sampling == {"temperature": 0.5, "seed": 3, "n": 2}
    assert (row.pseudonym, row.is_streamed) == (pseudonym(project.pk, "anna"), False)
    assert "anna" not in row.pseudonym
    # No prompt of the project: rounds and snapshots are as before.
    assert not Prompt.objects.exists()
    assert not Completion.objects.exists()


def test_a_streamed_answer_is_passed_on_as_it_is_and_stored_whole(application: Application):
    pieces = [
        {"id": "chatcmpl-s", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
        {"id": "chatcmpl-s", "choices": [{"index": 0, "delta": {"content": "Hot\u2028"}}]},
        {
            "id": "chatcmpl-s",
            "choices": [{"index": 0, "delta": {"content": "wäter"}, "finish_reason": "length"}],
        },
        {"id": "chatcmpl-s", "choices": [], "usage": {"completion_tokens": 2}},
    ]
    application.streams(*[json.dumps(piece, ensure_ascii=False) for piece in pieces], "[DONE]")
    received = application.ask(stream=True).received
    assert received.count(b"data: ") == 5
    row = ApplicationRequest.objects.get()
    assert row.is_streamed
    assert row.choices == [
        {"text": "Hot\u2028wäter", "seed": None, "finish_reason": "length", "token_count": None}
    ]


@pytest.mark.parametrize(
    "chunks",
    [
        # Broken off, and failed within.
        [HOT],
        [HOT, {"error": {"message": "x"}}, "[DONE]"],
        ["no JSON", "[DONE]"],
        [{"id": "a", "choices": [{"index": 1, "delta": {"content": "Hot"}}]}, "[DONE]"],
        [{"choices": [{"index": 0, "delta": {"content": "Hot"}}]}, "[DONE]"],
    ],
)
def test_an_answer_that_is_not_whole_is_passed_on_and_not_stored(
    application: Application, chunks: list[object]
):
    application.streams(*chunks)  # type: ignore[arg-type]
    assert application.ask(stream=True).status_code == 200
    assert not ApplicationRequest.objects.exists()
    assert FeedbackSettings.objects.get().problem


@pytest.mark.django_db(transaction=True)
def test_a_stream_that_the_client_leaves_is_not_stored(application: Application):
    application.streams(HOT, "[DONE]")
    response = application.client.post(
        "/v1/chat/completions",
        {"model": "starter", "messages": [{"role": "user", "content": "Why?"}], "stream": True},
        content_type="application/json",
        headers={"Authorization": f"Bearer {application.secret}"},
    )
    response.close()
    assert not ApplicationRequest.objects.exists()


@pytest.mark.parametrize("off", ["project", "token"])
def test_nothing_is_stored_unless_project_and_token_opted_in(
    off: str, application: Application, project: Project, carol: User
):
    if off == "project":
        change_settings(project=project, changes={"stores_requests": False}, changed_by=carol)
    else:
        opt_out(row=RequestOptIn.objects.get(), opted_by=carol)
    application.answers("Hot.")
    assert application.ask().status_code == 200
    assert not ApplicationRequest.objects.exists()


def test_the_checkpoint_of_another_project_is_answered_and_not_stored(application: Application, carol: User):
    coffee = factories.make_project(slug="coffee", managers=[carol])
    outsource("theirs", project=coffee, server_url="https://models.example")
    application.answers("Hot.")
    assert application.ask(model="theirs").status_code == 200
    assert not ApplicationRequest.objects.exists()


def test_what_patterns_match_is_replaced_before_anything_is_stored(application: Application):
    application.answers("Write to tea@example.org.", id="a")
    application.ask("I am anna@example.org, who are you?")
    row = ApplicationRequest.objects.get()
    assert row.messages[0]["content"] == "I am [redacted], who are you?"
    assert row.choices[0]["text"] == "Write to [redacted]"
    assert row.redactions == 2


def test_a_pattern_that_takes_too_long_stores_nothing_and_the_answer_comes(
    application: Application, feedback_settings: FeedbackSettings, monkeypatch: pytest.MonkeyPatch
):
    # It could not be saved: it is written past the service, and takes exponential time.
    FeedbackSettings.objects.update(patterns=[r"(?:a|aa)+$"])
    monkeypatch.setattr(recording, "Redactor", partial(Redactor, seconds=0.05))
    application.answers("Hot.")
    assert application.ask("a" * 5_000 + "b").json()["choices"][0]["message"]["content"] == "Hot."
    assert not ApplicationRequest.objects.exists()
    assert "too long" in FeedbackSettings.objects.get().problem


def test_a_database_that_fails_does_not_break_the_answer(
    application: Application, monkeypatch: pytest.MonkeyPatch
):
    application.answers("Hot.")

    def fail(**_: object) -> None:
        raise DatabaseError("gone")

    monkeypatch.setattr(ApplicationRequest.objects, "create", fail)
    assert application.ask().status_code == 200
    monkeypatch.setattr(RequestOptIn.objects, "filter", fail)
    assert application.ask().status_code == 200


def test_a_refusal_of_the_model_server_is_not_stored(application: Application):
    application.upstream.answer = lambda _: httpx.Response(400, json={"error": {"message": "no"}})
    assert application.ask().status_code == 400
    assert not ApplicationRequest.objects.exists()


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}],
        [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
        [{"role": "assistant", "content": "Hello"}],
        "text",
    ],
)
def test_a_chat_that_is_no_prompt_is_answered_and_not_stored(application: Application, messages: object):
    application.answers("Hot.")
    assert application.ask(messages=messages).status_code == 200
    assert not ApplicationRequest.objects.exists()
    assert FeedbackSettings.objects.get().problem


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_with_tool_calls_comes_and_is_not_stored(application: Application, stream: bool):
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
    choice = {"index": 0, "delta" if stream else "message": message, "finish_reason": "tool_calls"}
    body = json.dumps({"id": "a", "choices": [choice]})
    answer = httpx.Response(200, text=f"data: {body}\n\ndata: [DONE]\n\n" if stream else body)
    application.upstream.answer = lambda _: answer
    tools = [{"type": "function", "function": {"name": "clock"}}]
    assert application.ask(tools=tools, stream=stream).status_code == 200
    assert not ApplicationRequest.objects.exists()
    assert "tool calls" in FeedbackSettings.objects.get().problem


def test_content_in_parts_and_the_role_of_a_developer_are_read(application: Application):
    application.answers("Hot.")
    parts = [{"type": "text", "text": "Why "}, {"type": "text", "text": "so?"}]
    application.ask(
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    )
    assert ApplicationRequest.objects.get().messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why so?"},
    ]


def test_the_same_id_twice_is_one_stored_request_and_two_answers(application: Application):
    application.answers("Hot.", id="same")
    assert [application.ask().status_code for _ in range(2)] == [200, 200]
    assert ApplicationRequest.objects.count() == 1


# ── opting in ─────────────────────────────────────────────────────────────────────────


def test_only_managers_opt_in_and_only_their_own_tokens_that_generate(
    project: Project, alice: User, carol: User, admin: User
):
    labels = create_token(user=alice, name="x", scopes=["generate"]).token
    with refused("manager_changes_feedback", NotAllowed):
        opt_in(project=project, token=labels, opted_by=alice)
    with refused("unknown_token"):
        opt_in(project=project, token=labels, opted_by=carol)
    reads = create_token(user=carol, name="reads", scopes=["read"]).token
    with refused("token_lacks_scope"):
        opt_in(project=project, token=reads, opted_by=carol)
    good = create_token(user=carol, name="good", scopes=["generate"]).token
    assert opt_in(project=project, token=good, opted_by=carol) == opt_in(
        project=project, token=good, opted_by=carol
    )
    coffee = factories.make_project(slug="coffee", managers=[carol])
    with refused("token_of_other_project"):
        opt_in(project=coffee, token=good, opted_by=carol)


# ── deletion ──────────────────────────────────────────────────────────────────────────


def test_requests_are_deleted_after_the_retention_of_their_project(application: Application):
    old, new = application.stored("old"), application.stored("new")
    application.give("old", thumb="up")
    now = timezone.now()
    ApplicationRequest.objects.filter(pk=old.pk).update(created_at=now - timedelta(days=30, minutes=1))
    ApplicationRequest.objects.filter(pk=new.pk).update(created_at=now - timedelta(days=29))
    assert erase_expired(now=now) == 1
    assert list(ApplicationRequest.objects.all()) == [new]
    assert not Feedback.objects.exists()


def test_an_end_user_is_deleted_by_id_with_requests_and_feedback(
    application: Application, project: Project, carol: User
):
    application.stored("hers", user="anna")
    others = application.stored("others", user="ben")
    application.give("hers", thumb="up", user="ben")
    application.give("others", thumb="up", user="anna")
    application.give("others", thumb="down", user="ben")
    erased = erase_user(project=project, user_id="anna", erased_by=carol)
    assert erased == Erased(requests=1, feedback=2, comparisons=0, remaining=0)
    assert list(ApplicationRequest.objects.all()) == [others]
    assert Feedback.objects.get().author == pseudonym(project.pk, "ben")
    entry = AuditEntry.objects.get(action="feedback.erase")
    assert "anna" not in json.dumps(entry.details) + entry.subject


def test_an_end_user_is_found_under_an_earlier_secret_key(
    application: Application, project: Project, carol: User, settings
):
    application.stored("hers", user="anna")
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another key than before, and as long as one should be"
    assert erase_user(project=project, user_id="anna", erased_by=carol).requests == 1
