"""Messages on their way: signed, sent over real HTTP, tried again, given up, and never lost."""

import json
import socket
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, DjangoCaptureOnCommitCallbacks, Settings
from standardwebhooks import Webhook, WebhookVerificationError

from annotation.choices import DeliveryState, TaskName, Verdict, WhyDisabled
from annotation.models import (
    AuditEntry,
    Project,
    User,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
)
from annotation.services.judgments.submission import JudgmentAnswer, submit_judgment
from annotation.services.webhooks import deliveries, endpoints, messages, sending
from annotation.services.webhooks.signing import draw_secret, headers_of, signature_of
from tests import factories
from tests.annotation.webhooks.receiver import Receiver, listening, say
from tests.annotation.webhooks.webhook_scene import let_pass, make_webhook

pytestmark = pytest.mark.django_db


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    settings.RONDO_WEBHOOK_HOSTS = ["127.0.0.1"]
    with listening() as listener:
        yield listener


@pytest.fixture
def hook(project: Project, carol: User, receiver: Receiver) -> endpoints.NewSecret:
    """A webhook of the project that tells the receiver of judgments."""
    return make_webhook(project, carol, receiver.url)


def judge(project: Project, annotator: User) -> int:
    return factories.make_judgment(factories.make_comparison(project), annotator).pk


def state_of(delivery: WebhookDelivery | None = None) -> tuple[str, int]:
    row = WebhookDelivery.objects.get() if delivery is None else delivery
    row.refresh_from_db()
    return row.state, row.tries_left


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
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    judgment = judge(project, alice)
    assert deliveries.deliver_due() == 1
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
    assert deliveries.deliver_due() == 0


def test_a_change_of_mind_says_what_it_supersedes(project: Project, alice: User, carol: User):
    make_webhook(project, carol, "https://example.org/", "judgment.submitted", "judgment.changed")
    comparison = factories.make_comparison(project)
    first = factories.make_judgment(comparison, alice)
    submit_judgment(
        assignment=first.assignment,
        annotator=alice,
        answer=JudgmentAnswer(verdict=Verdict.EQUAL),
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
    project: Project, alice: User, hook: endpoints.NewSecret, sent: list[object]
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
    hook: endpoints.NewSecret,
    sent: list[object],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
):
    with django_capture_on_commit_callbacks(execute=True):
        judge(project, alice)
        assert sent == []
    assert sent == [(TaskName.DELIVER_WEBHOOKS, [])]


def test_a_judgment_of_a_project_without_webhooks_asks_the_database_nothing_more(
    project: Project, alice: User, django_assert_num_queries: DjangoAssertNumQueries
):
    comparison = factories.make_comparison(project)
    judgment = factories.make_judgment(comparison, alice)
    # The project is at hand on the labelling path: it was loaded to see who may.
    assert judgment.comparison.project.has_webhooks is False
    with django_assert_num_queries(0):
        messages.tell_of_judgment(judgment=judgment, comparison=judgment.comparison)


# ── What goes wrong ───────────────────────────────────────────────────────────────────


def test_a_message_is_tried_again_under_the_same_id_until_it_arrives(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 500, b"<b>down</b>")
    judge(project, alice)
    assert deliveries.deliver_due() == 1
    first = WebhookAttempt.objects.get()
    assert (first.status, first.answer) == (500, "<b>down</b>")
    assert "500" in first.error
    delivery = WebhookDelivery.objects.get()
    # Five seconds, drawn up to a fifth longer or shorter, from when it failed.
    failed_at = WebhookEndpoint.objects.get().failing_since
    assert 4 <= (delivery.next_attempt_at - failed_at).total_seconds() <= 6
    let_pass(seconds=7)
    receiver.answer = lambda handler: say(handler, 200)
    assert deliveries.deliver_due() == 1
    assert receiver.ids == [delivery.message.key] * 2
    for request in receiver.received:
        Webhook(hook.secret).verify(request.body, request.headers)
    assert state_of(delivery) == (DeliveryState.DELIVERED, 8)
    endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.failures, endpoint.failing_since, endpoint.rests_until) == (0, None, None)


def test_pauses_grow_as_the_specification_proposes_and_the_last_try_gives_up(
    project: Project, alice: User, hook: endpoints.NewSecret, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(deliveries, "post", lambda *_, **__: sending.Outcome(error="down"))
    judge(project, alice)
    pauses = []
    while (delivery := WebhookDelivery.objects.get()).state == DeliveryState.WAITING:
        WebhookEndpoint.objects.update(rests_until=None, failing_since=None)
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())
        assert deliveries.deliver_due() == 1
        delivery.refresh_from_db()
        if delivery.next_attempt_at:
            failed_at = WebhookEndpoint.objects.get().failing_since
            pauses.append((delivery.next_attempt_at - failed_at).total_seconds())
    assert WebhookAttempt.objects.count() == 10
    proposed = [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    assert len(pauses) == len(proposed)
    for pause, expected in zip(pauses, proposed, strict=True):
        assert 0.8 * expected <= pause <= 1.2 * expected
    assert len({round(pause / planned, 6) for pause, planned in zip(pauses, proposed, strict=True)}) > 1
    assert (delivery.state, delivery.tries_left) == (DeliveryState.GIVEN_UP, 0)
    assert delivery.finished_at is not None


@pytest.mark.parametrize(("status", "least"), [(429, 4000), (503, 4000), (500, 4)])
def test_a_receiver_that_says_when_to_come_back_is_left_alone_until_then(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver, status: int, least: int
):
    receiver.answer = lambda handler: say(handler, status, Retry_After="4000")
    judge(project, alice)
    before = timezone.now()
    deliveries.deliver_due()
    waits = (WebhookDelivery.objects.get().next_attempt_at - before).total_seconds()
    assert least <= waits
    assert (waits > 1000) == (least == 4000)


def test_a_worker_that_died_between_sending_and_noting_it_loses_nothing(
    project: Project,
    alice: User,
    hook: endpoints.NewSecret,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
):
    """The message comes again, under the id by which the receiver drops doubles."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    judge(project, alice)
    with monkeypatch.context() as patch:
        patch.setattr(deliveries, "_note", killed)
        with pytest.raises(Killed):
            deliveries.deliver_due()
    # While its claim lasts nobody else sends it.
    assert deliveries.deliver_due() == 0
    let_pass(seconds=61)
    assert deliveries.deliver_due() == 1
    assert len(set(receiver.ids)) == 1
    assert len(receiver.ids) == 2
    assert state_of() == (DeliveryState.DELIVERED, 8)


def test_a_message_on_which_every_worker_dies_is_given_up(
    project: Project, alice: User, hook: endpoints.NewSecret
):
    judge(project, alice)
    WebhookDelivery.objects.update(tries_left=0)
    assert deliveries.deliver_due() == 0
    assert state_of() == (DeliveryState.GIVEN_UP, 0)


def test_who_lost_the_claim_writes_nothing(project: Project, alice: User, hook: endpoints.NewSecret):
    judge(project, alice)
    late = deliveries._claim_due()
    let_pass(seconds=61)
    assert deliveries._claim_due() is not None
    deliveries._note(late, sending.Outcome(status=204), timezone.now())
    assert state_of() == (DeliveryState.WAITING, 8)
    assert not WebhookAttempt.objects.exists()


def test_a_redirect_is_not_followed(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 302, Location=receiver.url)
    judge(project, alice)
    deliveries.deliver_due()
    assert len(receiver.received) == 1
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status == 302
    assert "not followed" in attempt.error


def test_a_receiver_that_drips_its_answer_is_cut_off(
    project: Project,
    alice: User,
    hook: endpoints.NewSecret,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
):
    """Each byte comes well within any pause that a socket allows, and yet the whole has to end."""
    monkeypatch.setattr(sending, "SECONDS", 0.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        try:
            while True:
                handler.wfile.write(b"X")
                handler.wfile.flush()
                time.sleep(0.05)
        except OSError:
            handler.close_connection = True

    receiver.answer = drip
    judge(project, alice)
    deliveries.deliver_due()
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status is None
    assert "0.5 seconds" in attempt.error


def test_a_long_answer_is_kept_in_part_and_does_not_undo_the_success(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    def pour(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            for _ in range(10_000):
                handler.wfile.write("é\0".encode() * 1000)
        except OSError:
            handler.close_connection = True

    receiver.answer = pour
    judge(project, alice)
    deliveries.deliver_due()
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.answer == "é\ufffd" * 500
    assert state_of()[0] == DeliveryState.DELIVERED


@pytest.mark.parametrize("listens", [False, True])
def test_a_receiver_that_hangs_up_or_is_not_there_is_a_failure_that_is_told(
    project: Project, alice: User, carol: User, settings: Settings, listens: bool
):
    settings.RONDO_WEBHOOK_HOSTS = ["127.0.0.1"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if listens:
            listener.listen()
        make_webhook(project, carol, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        if listens:
            listener.close()
        judge(project, alice)
        deliveries.deliver_due()
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status is None
    assert attempt.error.startswith("It could not be sent")


def test_a_name_that_leads_inside_when_it_is_sent_is_not_asked(
    project: Project, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
):
    """It may have led elsewhere when it was entered; what counts is where the connection would go."""
    with listening() as inside:
        monkeypatch.setattr(
            "annotation.services.webhooks.addresses.addresses_of", lambda host, port: ["127.0.0.1"]
        )
        port = inside.url.split(":")[2].split("/")[0]
        make_webhook(project, carol, f"https://rebound.example:{port}/hook")
        judge(project, alice)
        deliveries.deliver_due()
        assert inside.received == []
    [attempt] = WebhookAttempt.objects.all()
    assert "inside a private network" in attempt.error
    assert "RONDO_WEBHOOK_HOSTS" in attempt.error


def test_an_address_that_fails_rests_so_that_others_need_not_wait_for_it(
    project: Project,
    alice: User,
    hook: endpoints.NewSecret,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(deliveries, "REST", timedelta(hours=1))
    monkeypatch.setattr(deliveries, "LONGEST_REST", timedelta(hours=3))
    receiver.answer = lambda handler: say(handler, 500)
    for _ in range(4):
        judge(project, alice)
    # One attempt at a time, with 1, 2, 3 and 3 hours after them, whatever waits.
    for hours in (1, 2, 3, 3):
        assert deliveries.deliver_due() == 1
        let_pass(minutes=60 * hours - 1)
        assert deliveries.deliver_due() == 0
        let_pass(minutes=1)
    receiver.answer = lambda handler: say(handler, 200)
    # It is back, and so is everything that waited for it.
    assert deliveries.deliver_due() == 4
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {DeliveryState.DELIVERED}


def test_a_webhook_that_fails_for_days_is_switched_off(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 500)
    judge(project, alice)
    judge(project, alice)
    deliveries.deliver_due()
    let_pass(days=4, hours=23)
    deliveries.deliver_due()
    assert WebhookEndpoint.objects.get().is_enabled
    let_pass(hours=2)
    deliveries.deliver_due()
    endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.is_enabled, endpoint.why_disabled) == (False, WhyDisabled.FAILING)
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {DeliveryState.GIVEN_UP}
    project.refresh_from_db()
    assert not project.has_webhooks
    assert AuditEntry.objects.get(action="webhook.disable").actor is None
    # What happens from now on is not even written down.
    judge(project, alice)
    assert WebhookMessage.objects.count() == 2


def test_a_receiver_that_is_gone_for_good_is_believed(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 410)
    judge(project, alice)
    deliveries.deliver_due()
    assert WebhookEndpoint.objects.get().why_disabled == WhyDisabled.GONE
    assert state_of()[0] == DeliveryState.GIVEN_UP


def test_a_message_that_was_written_while_its_webhook_was_switched_off_is_not_sent(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver
):
    judge(project, alice)
    WebhookEndpoint.objects.update(is_enabled=False)
    deliveries.deliver_due()
    assert receiver.received == []
    assert state_of()[0] == DeliveryState.GIVEN_UP


# ── By hand, and by the clock ─────────────────────────────────────────────────────────


def test_a_message_that_was_given_up_is_sent_again_by_hand(
    project: Project, alice: User, carol: User, hook: endpoints.NewSecret, receiver: Receiver
):
    judge(project, alice)
    deliveries.deliver_due()
    delivery = WebhookDelivery.objects.get()
    deliveries.resend(delivery=delivery, sent_by=carol)
    assert state_of(delivery) == (DeliveryState.WAITING, 10)
    assert deliveries.deliver_due() == 1
    assert receiver.ids == [delivery.message.key] * 2
    assert delivery.attempts.count() == 2
    assert AuditEntry.objects.filter(action="webhook.resend", actor=carol).count() == 1


def test_a_secret_that_is_rotated_signs_beside_the_new_one_for_a_day(
    project: Project, alice: User, carol: User, hook: endpoints.NewSecret, receiver: Receiver
):
    rotated = endpoints.rotate_secret(endpoint=hook.endpoint, rotated_by=carol)
    judge(project, alice)
    deliveries.deliver_due()
    for secret in (hook.secret, rotated.secret):
        Webhook(secret).verify(receiver.received[0].body, receiver.received[0].headers)
    let_pass(hours=25)
    judge(project, alice)
    deliveries.deliver_due()
    Webhook(rotated.secret).verify(receiver.received[1].body, receiver.received[1].headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(hook.secret).verify(receiver.received[1].body, receiver.received[1].headers)


def test_under_another_secret_key_nothing_is_sent_unsigned(
    project: Project, alice: User, hook: endpoints.NewSecret, receiver: Receiver, settings: Settings
):
    judge(project, alice)
    before, settings.SECRET_KEY = settings.SECRET_KEY, "another key altogether"
    deliveries.deliver_due()
    assert receiver.received == []
    assert "draw a new one" in WebhookAttempt.objects.get().error
    # Who keeps the old key among the fallbacks loses nothing.
    settings.SECRET_KEY_FALLBACKS = [before]
    let_pass(seconds=7)
    deliveries.deliver_due()
    Webhook(hook.secret).verify(receiver.received[0].body, receiver.received[0].headers)


def test_messages_are_forgotten_after_a_month_but_never_on_their_way(
    project: Project, alice: User, hook: endpoints.NewSecret
):
    judge(project, alice)
    deliveries.deliver_due()
    judge(project, alice)
    _done, waiting = WebhookMessage.objects.order_by("pk")
    deliveries.forget_messages(now=timezone.now() + timedelta(days=29))
    assert WebhookMessage.objects.count() == 2
    deliveries.forget_messages(now=timezone.now() + timedelta(days=31))
    assert list(WebhookMessage.objects.all()) == [waiting]
