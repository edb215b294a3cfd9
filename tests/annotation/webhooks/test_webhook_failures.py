"""Failed deliveries: tried again, given up, cut off, and never lost."""

import socket
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler

import pytest
from django.utils import timezone
from pytest_django import Settings
from standardwebhooks import Webhook

from annotation.choices import DeliveryState, WhyDisabled
from annotation.models import (
    AuditEntry,
    Project,
    User,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookMessage,
)
from annotation.services import webhooks
from tests.annotation.webhooks.receiver import Receiver, listening, say
from tests.annotation.webhooks.webhook_scene import judge, let_pass, make_webhook, state_of

pytestmark = pytest.mark.django_db


# ── What goes wrong ───────────────────────────────────────────────────────────────────


def test_a_message_is_tried_again_under_the_same_id_until_it_arrives(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 500, b"<b>down</b>")
    judge(project, alice)
    assert webhooks.deliver_due() == 1
    first = WebhookAttempt.objects.get()
    assert (first.status, first.answer) == (500, "<b>down</b>")
    assert "500" in first.error
    delivery = WebhookDelivery.objects.get()
    # Five seconds, drawn up to a fifth longer or shorter, from when it failed.
    failed_at = WebhookEndpoint.objects.get().failing_since
    assert 4 <= (delivery.next_attempt_at - failed_at).total_seconds() <= 6
    let_pass(seconds=7)
    receiver.answer = lambda handler: say(handler, 200)
    assert webhooks.deliver_due() == 1
    assert receiver.ids == [delivery.message.key] * 2
    for request in receiver.received:
        Webhook(hook.secret).verify(request.body, request.headers)
    assert state_of(delivery) == (DeliveryState.DELIVERED, 8)
    endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.failures, endpoint.failing_since, endpoint.rests_until) == (0, None, None)


def test_pauses_grow_as_the_specification_proposes_and_the_last_try_gives_up(
    project: Project, alice: User, hook: webhooks.NewSecret, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(webhooks, "post", lambda *_, **__: webhooks.AttemptOutcome(error="down"))
    judge(project, alice)
    pauses = []
    while (delivery := WebhookDelivery.objects.get()).state == DeliveryState.WAITING:
        WebhookEndpoint.objects.update(rests_until=None, failing_since=None)
        WebhookDelivery.objects.update(next_attempt_at=timezone.now())
        assert webhooks.deliver_due() == 1
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
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver, status: int, least: int
):
    receiver.answer = lambda handler: say(handler, status, Retry_After="4000")
    judge(project, alice)
    before = timezone.now()
    webhooks.deliver_due()
    waits = (WebhookDelivery.objects.get().next_attempt_at - before).total_seconds()
    assert least <= waits
    assert (waits > 1000) == (least == 4000)


def test_a_worker_that_died_between_sending_and_noting_it_loses_nothing(
    project: Project,
    alice: User,
    hook: webhooks.NewSecret,
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
        patch.setattr(webhooks, "_note", killed)
        with pytest.raises(Killed):
            webhooks.deliver_due()
    # While its claim lasts nobody else sends it.
    assert webhooks.deliver_due() == 0
    let_pass(seconds=61)
    assert webhooks.deliver_due() == 1
    assert len(set(receiver.ids)) == 1
    assert len(receiver.ids) == 2
    assert state_of() == (DeliveryState.DELIVERED, 8)


def test_a_message_on_which_every_worker_dies_is_given_up(
    project: Project, alice: User, hook: webhooks.NewSecret
):
    judge(project, alice)
    WebhookDelivery.objects.update(tries_left=0)
    assert webhooks.deliver_due() == 0
    assert state_of() == (DeliveryState.GIVEN_UP, 0)


def test_who_lost_the_claim_writes_nothing(project: Project, alice: User, hook: webhooks.NewSecret):
    judge(project, alice)
    late = webhooks._claim_due()
    let_pass(seconds=61)
    assert webhooks._claim_due() is not None
    webhooks._note(late, webhooks.AttemptOutcome(status=204), timezone.now())
    assert state_of() == (DeliveryState.WAITING, 8)
    assert not WebhookAttempt.objects.exists()


def test_a_redirect_is_not_followed(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 302, Location=receiver.url)
    judge(project, alice)
    webhooks.deliver_due()
    assert len(receiver.received) == 1
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status == 302
    assert "not followed" in attempt.error


def test_a_receiver_that_drips_its_answer_is_cut_off(
    project: Project,
    alice: User,
    hook: webhooks.NewSecret,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
):
    """Each byte comes well within any pause that a socket allows, and yet the whole has to end."""
    monkeypatch.setattr(webhooks, "SECONDS", 0.5)

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
    webhooks.deliver_due()
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status is None
    assert "0.5 seconds" in attempt.error


def test_a_long_answer_is_kept_in_part_and_does_not_undo_the_success(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
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
    webhooks.deliver_due()
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
        webhooks.deliver_due()
    [attempt] = WebhookAttempt.objects.all()
    assert attempt.status is None
    assert attempt.error.startswith("It could not be sent")


def test_a_name_that_leads_inside_when_it_is_sent_is_not_asked(
    project: Project, alice: User, carol: User, monkeypatch: pytest.MonkeyPatch
):
    """It may have led elsewhere when it was entered; what counts is where the connection would go."""
    with listening() as inside:
        monkeypatch.setattr("annotation.services.addresses.addresses_of", lambda host, port: ["127.0.0.1"])
        port = inside.url.split(":")[2].split("/")[0]
        make_webhook(project, carol, f"https://rebound.example:{port}/hook")
        judge(project, alice)
        webhooks.deliver_due()
        assert inside.received == []
    [attempt] = WebhookAttempt.objects.all()
    assert "inside a private network" in attempt.error
    assert "RONDO_WEBHOOK_HOSTS" in attempt.error


def test_an_address_that_fails_rests_so_that_others_need_not_wait_for_it(
    project: Project,
    alice: User,
    hook: webhooks.NewSecret,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(webhooks, "REST", timedelta(hours=1))
    monkeypatch.setattr(webhooks, "LONGEST_REST", timedelta(hours=3))
    receiver.answer = lambda handler: say(handler, 500)
    for _ in range(4):
        judge(project, alice)
    # One attempt at a time, with 1, 2, 3 and 3 hours after them, whatever waits.
    for hours in (1, 2, 3, 3):
        assert webhooks.deliver_due() == 1
        let_pass(minutes=60 * hours - 1)
        assert webhooks.deliver_due() == 0
        let_pass(minutes=1)
    receiver.answer = lambda handler: say(handler, 200)
    # It is back, and so is everything that waited for it.
    assert webhooks.deliver_due() == 4
    assert set(WebhookDelivery.objects.values_list("state", flat=True)) == {DeliveryState.DELIVERED}


def test_a_webhook_that_fails_for_days_is_switched_off(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 500)
    judge(project, alice)
    judge(project, alice)
    webhooks.deliver_due()
    let_pass(days=4, hours=23)
    webhooks.deliver_due()
    assert WebhookEndpoint.objects.get().is_enabled
    let_pass(hours=2)
    webhooks.deliver_due()
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
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    receiver.answer = lambda handler: say(handler, 410)
    judge(project, alice)
    webhooks.deliver_due()
    assert WebhookEndpoint.objects.get().why_disabled == WhyDisabled.GONE
    assert state_of()[0] == DeliveryState.GIVEN_UP


def test_a_message_that_was_written_while_its_webhook_was_switched_off_is_not_sent(
    project: Project, alice: User, hook: webhooks.NewSecret, receiver: Receiver
):
    judge(project, alice)
    WebhookEndpoint.objects.update(is_enabled=False)
    webhooks.deliver_due()
    assert receiver.received == []
    assert state_of()[0] == DeliveryState.GIVEN_UP
