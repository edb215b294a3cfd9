"""Messages to receivers: signed, sent over real HTTP after the commit, sent again by hand, and forgotten."""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks, Settings
from standardwebhooks import Webhook, WebhookVerificationError

from annotation.choices import DeliveryState, TaskName, Verdict
from annotation.models import AuditEntry, Project, User, WebhookAttempt, WebhookDelivery, WebhookMessage
from annotation.services import webhooks
from annotation.services.judgments.submission import submit_judgment
from annotation.services.webhooks import draw_secret, headers_of, signature_of
from tests import factories
from tests.annotation.webhooks.receiver import Receiver
from tests.annotation.webhooks.webhook_scene import judge, let_pass, make_webhook, state_of
from tests.records import judgment_record

pytestmark = pytest.mark.django_db


# ── Signatures ────────────────────────────────────────────────────────────────────────


def test_a_signature_is_the_one_of_the_specifications_own_example():
    """The example of the libraries of Standard Webhooks: secret, id, time and body, and what they sign to."""
    assert (
        signature_of(
            secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            timestamp=1614265330,
            body=b'{"test": 2432232314}',
        )
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_what_is_signed_is_verified_by_the_library_that_receivers_use():
    secret, body = draw_secret(), '{"type":"judgment.submitted","data":{"said":"Käse — 🧀"}}'.encode()
    now = int(time.time())
    headers = headers_of(secrets_=[secret], message_id="msg_1", timestamp=now, body=body)
    assert Webhook(secret).verify(body, headers) == json.loads(body)
    for changed in (
        {**headers, "webhook-id": "msg_2"},
        {**headers, "webhook-timestamp": str(now + 1)},
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, changed)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(draw_secret()).verify(body, headers)


def test_a_secret_that_is_none_is_refused():
    with pytest.raises(ValueError, match="whsec_"):
        signature_of(secret="whsec_not base64!", message_id="m", timestamp=1, body=b"")


# ── From the deed to the receiver ─────────────────────────────────────────────────────


def test_a_judgment_reaches_its_receiver_signed_and_names_nobody(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    judgment = judge(project, alice)
    assert webhooks.deliver_due() == 1
    [request] = receiver.received
    event = Webhook(hook.secret).verify(request.body, request.headers)
    assert event["type"] == "judgment.submitted"
    assert event["data"]["judgment"] == judgment
    assert (event["data"]["project"], event["data"]["verdict"]) == ("tea", "ranked")
    assert event["data"]["path"].startswith("/api/v1/projects/tea/comparisons/")
    assert datetime.fromisoformat(event["timestamp"]).tzinfo == UTC
    assert b"alice" not in request.body
    assert request.headers["content-type"] == "application/json"
    assert state_of() == (DeliveryState.DELIVERED, 9)
    [attempt] = WebhookAttempt.objects.all()
    assert (attempt.status, attempt.error, attempt.answer) == (204, "", "")
    # Nothing is left to do, and nothing is sent twice.
    assert webhooks.deliver_due() == 0


def test_a_change_of_mind_says_what_it_supersedes(project: Project, alice: User, carol: User):
    make_webhook(project, carol, "https://example.org/", "judgment.submitted", "judgment.changed")
    comparison = factories.make_comparison(project)
    first = factories.make_judgment(comparison, alice)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=judgment_record(verdict=Verdict.EQUAL),
        idempotency_key=uuid.uuid4(),
    )
    events = [json.loads(message.body) for message in WebhookMessage.objects.order_by("pk")]
    assert [event["type"] for event in events] == ["judgment.submitted", "judgment.changed"]
    assert [event["data"]["supersedes"] for event in events] == [None, first.pk]


def test_only_events_that_were_chosen_are_told_and_only_of_the_own_project(
    project: Project, alice: User, carol: User
):
    make_webhook(project, carol, "https://example.org/rounds", "round.promoted")
    other = factories.make_project(slug="coffee", managers=[carol])
    make_webhook(other, carol, "https://example.org/coffee")
    judge(project, alice)
    assert not WebhookMessage.objects.exists()


def test_what_is_rolled_back_was_never_told(
    project: Project, alice: User, hook: webhooks.NewSecret, sent: list[object]
):
    with transaction.atomic():
        judge(project, alice)
        assert WebhookDelivery.objects.count() == 1
        transaction.set_rollback(True)
    assert not WebhookMessage.objects.exists()
    assert sent == []


def test_a_worker_is_told_after_the_commit(
    project: Project,
    alice: User,
    hook: webhooks.NewSecret,
    sent: list[tuple[str, list[object]]],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
):
    with django_capture_on_commit_callbacks(execute=True):
        judge(project, alice)
        assert sent == []
    # Every fiftieth annotation of the database also has a learning curve drawn.
    assert [name for name, _ in sent if name != TaskName.UPDATE_ACQUISITION] == [TaskName.DELIVER_WEBHOOKS]


def test_a_judgment_of_a_project_without_webhooks_asks_the_database_nothing_more(
    project: Project, alice: User, django_assert_num_queries: DjangoAssertNumQueries
):
    comparison = factories.make_comparison(project)
    judgment = factories.make_judgment(comparison, alice)
    # The project is at hand on the labelling path: it was loaded to see who may.
    assert judgment.comparison.project.has_webhooks is False
    with django_assert_num_queries(0):
        webhooks.tell_of_judgment(judgment=judgment, comparison=judgment.comparison)


# ── By hand, and by the clock ─────────────────────────────────────────────────────────


def test_a_message_that_was_given_up_is_sent_again_by_hand(
    project: Project, alice: User, carol: User, hook: webhooks.NewSecret, receiver: Receiver
):
    judge(project, alice)
    webhooks.deliver_due()
    delivery = WebhookDelivery.objects.get()
    webhooks.resend(delivery=delivery, sent_by=carol)
    assert state_of(delivery) == (DeliveryState.WAITING, 10)
    assert webhooks.deliver_due() == 1
    assert receiver.ids == [delivery.message.key] * 2
    assert delivery.attempts.count() == 2
    assert AuditEntry.objects.filter(action="webhook.resend", actor=carol).count() == 1


def test_a_secret_that_is_rotated_signs_beside_the_new_one_for_a_day(
    project: Project, alice: User, carol: User, hook: webhooks.NewSecret, receiver: Receiver
):
    rotated = webhooks.rotate_secret(endpoint=hook.endpoint, rotated_by=carol)
    judge(project, alice)
    webhooks.deliver_due()
    for secret in (hook.secret, rotated.secret):
        Webhook(secret).verify(receiver.received[0].body, receiver.received[0].headers)
    let_pass(hours=25)
    judge(project, alice)
    webhooks.deliver_due()
    Webhook(rotated.secret).verify(receiver.received[1].body, receiver.received[1].headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(hook.secret).verify(receiver.received[1].body, receiver.received[1].headers)


def test_under_another_secret_key_nothing_is_sent_unsigned(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver, settings: Settings
):
    judge(project, alice)
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another key altogether"
    webhooks.deliver_due()
    assert receiver.received == []
    assert "draw a new one" in WebhookAttempt.objects.get().error
    # Who keeps the old key among the fallbacks loses nothing.
    settings.SECRET_KEY_FALLBACKS = [before]
    let_pass(seconds=7)
    webhooks.deliver_due()
    Webhook(hook.secret).verify(receiver.received[0].body, receiver.received[0].headers)


def test_messages_are_forgotten_after_a_month_but_never_on_their_way(
    project: Project, alice: User, hook: webhooks.NewSecret
):
    judge(project, alice)
    webhooks.deliver_due()
    judge(project, alice)
    _done, waiting = WebhookMessage.objects.order_by("pk")
    webhooks.forget_messages(now=timezone.now() + timedelta(days=29))
    assert WebhookMessage.objects.count() == 2
    webhooks.forget_messages(now=timezone.now() + timedelta(days=31))
    assert list(WebhookMessage.objects.all()) == [waiting]
